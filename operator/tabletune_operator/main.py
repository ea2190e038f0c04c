"""`tabletune-operator`: wires settings, log and kopf together."""

from __future__ import annotations

import logging
import os
import sys

import kopf

from tabletune_operator.handlers import build_registry
from tabletune_operator.settings import parse_settings


def main() -> None:
    settings = parse_settings(sys.argv[1:], os.environ)
    kopf.configure(verbose=settings.verbose)
    if not settings.verbose:
        # Frameworks tell of every call; what we do is in our own log lines.
        for framework in ("kopf", "httpx", "aiohttp.access"):
            logging.getLogger(framework).setLevel(logging.WARNING)
    kopf.run(
        registry=build_registry(settings),
        memo=kopf.Memo(),
        standalone=True,  # one replica, Recreate: two peers of equal priority would pause each other
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        liveness_endpoint=settings.liveness,
    )


if __name__ == "__main__":
    main()
