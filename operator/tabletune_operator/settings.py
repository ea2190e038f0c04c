"""What the operator is started with: flags, else the environment that the chart sets."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tabletune_operator.pods import OwnImage

DEFAULT_LIVENESS = "http://0.0.0.0:8080/healthz"
DEFAULT_METRICS_PORT = 9479


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """`namespaces` is empty when the whole cluster is served."""

    namespaces: tuple[str, ...]
    image: OwnImage
    liveness: str
    metrics_port: int
    verbose: bool


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> OperatorSettings:
    """Exits with a usage message, as argparse does, when the image is not named anywhere."""
    parser = argparse.ArgumentParser(prog="tabletune-operator", description="Serves DraftTables: measures, rolls out, keeps right.")
    parser.add_argument(
        "--namespace", action="append", metavar="NS", help="serve this namespace; may be repeated; default: all ($TABLETUNE_NAMESPACES)"
    )
    parser.add_argument(
        "--image", default=environment.get("TABLETUNE_IMAGE"), help="TableTune's image, for Jobs and sidecars ($TABLETUNE_IMAGE)"
    )
    parser.add_argument(
        "--image-pull-policy",
        default=environment.get("TABLETUNE_IMAGE_PULL_POLICY", "IfNotPresent"),
        choices=("Always", "IfNotPresent", "Never"),
        help="of that image ($TABLETUNE_IMAGE_PULL_POLICY)",
    )
    parser.add_argument("--liveness", default=DEFAULT_LIVENESS, metavar="URL", help="where health is served (default %(default)s)")
    parser.add_argument("--metrics-port", type=int, default=DEFAULT_METRICS_PORT, metavar="PORT", help="of /metrics (default %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="log what the framework does, too")
    flags = parser.parse_args(arguments)
    if not flags.image:
        parser.error("--image is missing and TABLETUNE_IMAGE is not set: name TableTune's image, which Jobs and sidecars run")
    named = flags.namespace or [name.strip() for name in environment.get("TABLETUNE_NAMESPACES", "").split(",")]
    return OperatorSettings(
        namespaces=tuple(sorted({name for name in named if name})),
        image=OwnImage(flags.image, flags.image_pull_policy),
        liveness=flags.liveness,
        metrics_port=flags.metrics_port,
        verbose=flags.verbose,
    )
