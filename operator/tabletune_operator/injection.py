"""What the admission webhook adds to new pods of a target, and the table of it that the webhook answers from.

The reconcile writes the table, the webhook's thread reads it: every change puts a new mapping in place of the old one, so a reader
never waits and never sees half of one. Nothing of it is stored: an operator that starts fills it anew with its first reconciles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tabletune.speculative_config import TABLE_FIELD
from tabletune.table import Table
from tabletune_operator.crd import Controller
from tabletune_operator.observation import ObjectRef
from tabletune_operator.pods import OwnImage
from tabletune_operator.restore import canonical


@dataclass(frozen=True, slots=True)
class WorkloadKey:
    """Whose pods: the workload that a pod's controller belongs to."""

    namespace: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Injection:
    """What new pods of one target get. All of it is from the DraftTable but what must be as it was when the table was measured.

    `image` and `speculation` are those of the target that was measured: a pod that has others was made from a newer template, which
    the table says nothing about. `config` None takes the speculation off, and needs neither plugin nor sidecar.
    """

    draft_table: ObjectRef
    workload: WorkloadKey
    selector: Mapping[str, Any]  # LabelSelector of the workload
    container: str
    image: str
    speculation: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    controller: Controller
    own_image: OwnImage
    python_path: str

    @property
    def digest(self) -> str:
        """On every pod that got it, so that replicas show which setting they run; whatever the pod's own template says.

        Our own image is not in it: an operator of another version replaces no replica, and only new ones get its image. Nor are the
        edges of the table: another one of the same lengths reaches running replicas without a restart.
        """
        told = {
            "draftTable": self.draft_table.name,
            "container": self.container,
            "config": _launched(self.config),
            "controller": self.controller.model_dump(mode="json"),
            "pythonPath": self.python_path,
        }
        return hashlib.sha256(canonical(told).encode()).hexdigest()[:12]


def _launched(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What only a restart changes: the lengths of the table stand for it."""
    if config is None or TABLE_FIELD not in config:
        return config
    try:
        lengths = sorted(set(Table.parse(config[TABLE_FIELD]).lengths))
    except ValueError:
        return config
    return {**config, TABLE_FIELD: lengths}


def _nobody(_: Injection | ObjectRef) -> None:
    """Nobody has to know."""


class InjectionTable:
    """Written by the reconcile, read by the webhook; the other way round only the last refusal of each DraftTable.

    `on_change` hears of each injection that is put, and of each DraftTable whose injection is removed.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[Injection | ObjectRef], None] = _nobody
        self._by_workload: Mapping[WorkloadKey, Injection] = MappingProxyType({})
        self._refusals: Mapping[ObjectRef, str] = MappingProxyType({})

    @property
    def by_workload(self) -> Mapping[WorkloadKey, Injection]:
        """As it is at this moment; it does not change any more."""
        return self._by_workload

    def put(self, injection: Injection) -> None:
        """In place of whatever the DraftTable had."""
        if self._by_workload.get(injection.workload) == injection:
            return
        others = self._without(injection.draft_table)
        self._by_workload = MappingProxyType({**others, injection.workload: injection})
        self._forget(injection.draft_table)
        self.on_change(injection)

    def remove(self, draft_table: ObjectRef) -> None:
        """One that is not there is removed already."""
        if not any(each.draft_table == draft_table for each in self._by_workload.values()):
            return
        self._by_workload = MappingProxyType(self._without(draft_table))
        self._forget(draft_table)
        self.on_change(draft_table)

    def refuse(self, draft_table: ObjectRef, why: str) -> None:
        self._refusals = MappingProxyType({**self._refusals, draft_table: why})

    def refusal(self, draft_table: ObjectRef) -> str | None:
        """Why a pod of its target was let in without it, the last time that one was; None: none was since the table changed."""
        return self._refusals.get(draft_table)

    def _without(self, draft_table: ObjectRef) -> dict[WorkloadKey, Injection]:
        return {key: each for key, each in self._by_workload.items() if each.draft_table != draft_table}

    def _forget(self, draft_table: ObjectRef) -> None:
        self._refusals = MappingProxyType({ref: why for ref, why in self._refusals.items() if ref != draft_table})
