"""What the operator is started with: flags, else the environment that the chart sets."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabletune_operator.pods import OwnImage
from tabletune_operator.webhook import AdmissionSettings

DEFAULT_ADMISSION_PORT = 9443
ADMISSION_NAME = "tabletune-admission"
"""Of the chart's Service and Secret."""
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
    admission: AdmissionSettings | None  # None: no webhook, so no mode Admission


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
    parser.add_argument(
        "--admission",
        default=environment.get("TABLETUNE_ADMISSION"),
        metavar="NAME",
        help="serve the admission webhook of this MutatingWebhookConfiguration ($TABLETUNE_ADMISSION)",
    )
    parser.add_argument(
        "--admission-namespace",
        default=environment.get("TABLETUNE_NAMESPACE"),
        metavar="NS",
        help="where its Service and its Secret are, both named tabletune-admission ($TABLETUNE_NAMESPACE)",
    )
    parser.add_argument(
        "--admission-folder",
        type=Path,
        default=environment.get("TABLETUNE_ADMISSION_FOLDER"),
        metavar="FOLDER",
        help="cert-manager's tls.crt and tls.key, instead of an own certificate in the Secret ($TABLETUNE_ADMISSION_FOLDER)",
    )
    parser.add_argument("--admission-port", type=int, default=DEFAULT_ADMISSION_PORT, metavar="PORT", help="default %(default)s")
    parser.add_argument("--metrics-port", type=int, default=DEFAULT_METRICS_PORT, metavar="PORT", help="of /metrics (default %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="log what the framework does, too")
    flags = parser.parse_args(arguments)
    if not flags.image:
        parser.error("--image is missing and TABLETUNE_IMAGE is not set: name TableTune's image, which Jobs and sidecars run")
    if flags.admission and not flags.admission_namespace:
        parser.error("--admission-namespace is missing and TABLETUNE_NAMESPACE is not set: name the operator's own namespace")
    named = flags.namespace or [name.strip() for name in environment.get("TABLETUNE_NAMESPACES", "").split(",")]
    return OperatorSettings(
        namespaces=tuple(sorted({name for name in named if name})),
        image=OwnImage(flags.image, flags.image_pull_policy),
        liveness=flags.liveness,
        metrics_port=flags.metrics_port,
        verbose=flags.verbose,
        admission=_admission(flags) if flags.admission else None,
    )


def _admission(flags: argparse.Namespace) -> AdmissionSettings:
    return AdmissionSettings(
        port=flags.admission_port,
        namespace=flags.admission_namespace,
        service=ADMISSION_NAME,
        secret=ADMISSION_NAME,
        configuration=flags.admission,
        folder=flags.admission_folder,
    )
