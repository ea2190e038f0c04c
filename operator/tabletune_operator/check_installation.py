"""Checks an installation from inside the cluster: the API is served, its schema holds, the operator is alive.

The chart's test hook runs it (`python3 -m tabletune_operator.check_installation`). It stores nothing: DraftTables are sent as a dry run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from kubernetes.aio import client, config

from tabletune_operator.crd import GROUP, KIND, PLURAL, VERSION

OPERATOR = "tabletune-operator"
START_SECONDS = 60
"""How long an operator that was installed a moment ago may take to be alive."""
POLL_SECONDS = 1.0


class InstallationError(Exception):
    """What is wrong with the installation, and what to do."""


async def check_served(api: client.ApiClient) -> str:
    """The definition is established: discovery, which everyone may read, offers DraftTables."""
    try:
        found = await client.CustomObjectsApi(api).get_api_resources(GROUP, VERSION)
    except client.ApiException as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        raise InstallationError(f"The API server does not serve {GROUP}/{VERSION}. Install the chart with crds.install=Install.") from error
    if PLURAL not in {resource.name for resource in found.resources}:
        raise InstallationError(f"{GROUP}/{VERSION} is served without {PLURAL}. Install the chart with crds.install=Install.")
    return f"{GROUP}/{VERSION} {PLURAL} is served"


async def check_accepted(api: client.ApiClient, namespace: str) -> str:
    """The least DraftTable that a user can write is accepted."""
    try:
        await _create_dry_run(api, namespace, {"targetRef": {"name": "some-deployment"}})
    except client.ApiException as error:
        raise InstallationError(f"A plain DraftTable is refused: {error.reason}: {error.body}") from error
    return f"a DraftTable is accepted in {namespace}"


async def check_refused(api: client.ApiClient, namespace: str) -> str:
    """The schema holds: a DraftTable without a target is refused as invalid."""
    try:
        await _create_dry_run(api, namespace, {})
    except client.ApiException as error:
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            return "a DraftTable without spec.targetRef is refused"
        raise
    raise InstallationError("A DraftTable without spec.targetRef is accepted: the definition is an old or a changed one. Upgrade it.")


async def check_alive(api: client.ApiClient, namespace: str) -> str:
    """The operator's newest Deployment is available: its pod answers the liveness probe."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        deployment = await client.AppsV1Api(api).read_namespaced_deployment(OPERATOR, namespace)
        metadata, spec, status = deployment.metadata, deployment.spec, deployment.status
        if metadata and status and status.observed_generation == metadata.generation and status.available_replicas:
            return f"{OPERATOR} is alive"
        if spec and spec.replicas == 0:
            scale = f"kubectl -n {namespace} scale deployment/{OPERATOR} --replicas=1"
            raise InstallationError(f"{OPERATOR} is not available: it is scaled to 0 replicas. Run {scale}.")
        if time.monotonic() >= deadline:
            raise InstallationError(f"{OPERATOR} is not available. See kubectl -n {namespace} describe deployment/{OPERATOR} and its log.")
        await asyncio.sleep(POLL_SECONDS)


async def _create_dry_run(api: client.ApiClient, namespace: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": "installation-check"}, "spec": spec}
    await client.CustomObjectsApi(api).create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body, dry_run="All")


async def run(options: argparse.Namespace) -> int:
    config.load_incluster_config()  # type: ignore[no-untyped-call]
    failures = 0
    async with client.ApiClient() as api:
        for check in (
            check_served(api),
            check_accepted(api, options.namespace),
            check_refused(api, options.namespace),
            check_alive(api, options.release_namespace),
        ):
            try:
                print(f"ok: {await check}", flush=True)
            except (InstallationError, client.ApiException) as error:
                failures += 1
                print(f"failed: {error}", flush=True)
    return min(failures, 1)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tabletune_operator.check_installation", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--release-namespace", required=True, help="where the operator runs")
    parser.add_argument("--namespace", required=True, help="a namespace that the operator serves")
    return parser.parse_args(arguments)


def main() -> None:
    sys.exit(asyncio.run(run(parse_options(sys.argv[1:]))))


if __name__ == "__main__":
    main()
