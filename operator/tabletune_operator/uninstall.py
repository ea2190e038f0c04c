"""Deletes the DraftTables before the operator goes, and waits until it has given every workload back.

The chart's pre-delete hook runs it (`python3 -m tabletune_operator.uninstall`) while the operator still works. It never removes a
finalizer itself: a workload would then keep the operator's settings for ever. When the time is up, it fails with what is left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

from kubernetes.aio import client, config

from tabletune_operator.crd import GROUP, PLURAL, VERSION

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DraftTableState:
    """A DraftTable as far as uninstalling needs to know it."""

    namespace: str
    name: str
    deleting: bool
    message: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        metadata = body["metadata"]
        message = body.get("status", {}).get("display", {}).get("message", "")
        return cls(metadata["namespace"], metadata["name"], "deletionTimestamp" in metadata, message)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class DraftTables:
    """The DraftTables of some namespaces, or of all when none is named."""

    def __init__(self, api: client.CustomObjectsApi, namespaces: Sequence[str]) -> None:
        self._api = api
        self._namespaces = tuple(namespaces)

    async def list(self) -> tuple[DraftTableState, ...]:
        pages: list[Any]
        try:
            if self._namespaces:
                pages = [await self._api.list_namespaced_custom_object(GROUP, VERSION, space, PLURAL) for space in self._namespaces]
            else:
                pages = [await self._api.list_cluster_custom_object(GROUP, VERSION, PLURAL)]
        except client.ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:  # the definition is gone, and every DraftTable with it
                return ()
            raise
        return tuple(DraftTableState.of(body) for page in pages for body in page["items"])

    async def delete(self, table: DraftTableState) -> None:
        try:
            await self._api.delete_namespaced_custom_object(GROUP, VERSION, table.namespace, PLURAL, table.name)
        except client.ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise


def show(text: str) -> None:
    print(text, flush=True)


async def warn_of_kept(tables: DraftTables) -> int:
    """Say what keeping the DraftTables means; change nothing."""
    kept = await tables.list()
    for table in kept:
        show(f"warning: DraftTable {table} stays, and its workload keeps its table, plugin and sidecar.")
    if kept:
        show("warning: deleting one of them waits until an operator runs again. Install the chart again before you delete them.")
    return 0


async def delete_all(tables: DraftTables, timeout_seconds: int) -> int:
    """Delete every DraftTable and wait until all are gone; 1 when some are still there after `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    before: dict[str, DraftTableState] = {}
    while True:
        present = {str(table): table for table in await tables.list()}
        for name in before.keys() - present.keys():
            show(f"DraftTable {name} is gone.")
        for name, table in present.items():
            if not table.deleting:
                show(f"DraftTable {name}: deleting; the operator gives its workload back.")
                await tables.delete(table)
            elif name in before and table.message != before[name].message:
                show(f"DraftTable {name}: {table.message}")
        if not present:
            show("No DraftTable is left.")
            return 0
        if time.monotonic() >= deadline:
            _report_left(tuple(present.values()), timeout_seconds)
            return 1
        before = present
        await asyncio.sleep(POLL_SECONDS)


def _report_left(left: Sequence[DraftTableState], timeout_seconds: int) -> None:
    show(f"error: After {timeout_seconds} seconds some DraftTables are still there ({len(left)}). Nothing of the release is deleted yet.")
    for table in left:
        show(f"error: DraftTable {table}: {table.message or 'no word from the operator'}")
    show("Read the operator's log (deployment/tabletune-operator), repair the cause and run helm uninstall again.")
    show("To give up on a workload and leave it as it is now, remove the finalizers of its DraftTable by hand (docs/install.md).")


async def run(options: argparse.Namespace) -> int:
    config.load_incluster_config()  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api:
        tables = DraftTables(client.CustomObjectsApi(api), options.namespace)
        if options.drafttables == "Keep":
            return await warn_of_kept(tables)
        return await delete_all(tables, options.timeout_seconds)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tabletune_operator.uninstall", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--drafttables", choices=("Delete", "Keep"), required=True, help="what to do with the DraftTables")
    parser.add_argument("--timeout-seconds", type=int, required=True, help="how long to wait until all are gone")
    parser.add_argument("--namespace", action="append", default=[], help="a namespace that the operator serves; none: all")
    return parser.parse_args(arguments)


def main() -> None:
    sys.exit(asyncio.run(run(parse_options(sys.argv[1:]))))


if __name__ == "__main__":
    main()
