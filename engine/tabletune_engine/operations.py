"""The engine socket's operations (docs/protocol.md): reads their fields, asks the parts, words the answers."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeGuard

from tabletune.channel import ChannelError
from tabletune_engine.control import Control
from tabletune_engine.graph_report import GraphState
from tabletune_engine.policy import BadTableError, Exploring, LengthNotInLaunchSetError, Policy, Ranges
from tabletune_engine.recorder import Recorder
from tabletune_engine.server import Handler


class Operations:
    """Answers for one engine start.

    `policy` is None when the engine's table cannot be replaced; `inactive_reason` says why, or what went wrong later.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        policy: Policy | None,
        control: Control | None,
        engine: Mapping[str, Any],
        graphs: Callable[[], GraphState],
        reject_by: Callable[[], str | None],
        inactive_reason: str | None,
    ) -> None:
        self._inactive_reason = inactive_reason
        self._plugin_version = version("tabletune")
        self._recorder = recorder
        self._policy = policy
        self._control = control
        self._engine = engine
        self._graphs = graphs
        self._reject_by = reject_by
        self._boot_id = uuid.uuid4().hex
        self._started_at = time.monotonic()
        self._changing = threading.Lock()  # of two clients that change something, the second waits

    def handlers(self) -> dict[str, Handler]:
        """By operation."""
        return {
            "hello": self._hello,
            "counts": self._counts,
            "steps": self._steps,
            "record": self._record,
            "table": self._table,
            "force": self._force,
        }

    def deactivate(self, reason: str) -> None:
        """From now on no length can be chosen here, and no guess is rejected."""
        self._inactive_reason = reason
        if self._control is not None:
            self._control.set_reject(False)

    def _boot(self) -> dict[str, Any]:
        return {"bootId": self._boot_id, "uptimeSeconds": round(time.monotonic() - self._started_at, 3)}

    def _hello(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self._boot(),
            "plugin": self._plugin_version,
            "active": self._inactive_reason is None,
            "inactiveReason": self._inactive_reason,
            "rejectBy": self._reject_by(),
            "engine": {**self._engine, "graphCells": self._graphs().to_fact()},
        }

    def _counts(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        seen, policy = self._recorder, self._policy
        # Positions first: they grow before the rest does, and must never look larger.
        drafted_steps, drafted, kept = seen.positions()
        return {
            **self._boot(),
            "draftedSteps": drafted_steps,
            "drafted": drafted,
            "kept": kept,
            "requestSteps": seen.request_steps,
            "tokens": seen.tokens,
            "chosen": seen.chosen(),
            "steps": seen.steps,
            "violations": seen.violations,
            "exploringSteps": policy.exploring_steps if policy else 0,
            "swaps": policy.swaps if policy else 0,
            "graphCures": self._graphs().cures,
            "batchSizeLast": seen.batch_size_last,
            "draftLengthLast": seen.draft_length_last,
        }

    def _steps(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._boot(), "cells": self._recorder.cells()}

    def _record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        on = _flag(fields, "on", None)
        self._recorder.record(on)
        return {"on": on}

    def _table(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        with self._changing:
            policy = self._active_policy()
            ranges = _ranges(fields.get("ranges"))
            hysteresis = _count(fields, "hysteresis")
            explore = _exploring(fields.get("explore"))
            try:
                policy.follow(ranges, hysteresis, explore)
            except BadTableError as error:
                raise ChannelError("BadTable", str(error)) from error
            except LengthNotInLaunchSetError as error:
                raise ChannelError("LengthNotInLaunchSet", str(error)) from error
            return {"inForce": [list(row) for row in policy.ranges], "generation": policy.generation}

    def _force(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        with self._changing:
            policy = self._active_policy()
            k = fields.get("draftLength")
            if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
                raise ChannelError("BadMessage", '"draftLength" must be an integer, or null to follow the table.')
            reject = _flag(fields, "reject", False)
            if reject and self._reject_by() is None:
                raise ChannelError(
                    "RejectNotPossible",
                    "Neither this engine nor the plugin can reject every guess. "
                    'Start the engine with rejection_sample_method "synthetic" and all rates 0.',
                )
            try:
                policy.force(k)
            except LengthNotInLaunchSetError as error:
                raise ChannelError("LengthNotInLaunchSet", str(error)) from error
            if self._control is not None:
                self._control.set_reject(reject)
            return {"draftLength": policy.forced, "reject": reject}

    def _active_policy(self) -> Policy:
        if self._policy is None or self._inactive_reason is not None:
            raise ChannelError("Inactive", self._inactive_reason or "The engine was left as it was.")
        return self._policy


def _ranges(value: Any) -> Ranges:
    rows = _rows(value, 1, 1, 0)
    if not rows:
        raise ChannelError("BadTable", '"ranges" must be a list of [first, last, k], whole numbers from 1, 1 and 0 up.')
    return tuple((first, last, k) for first, last, k in rows)


def _exploring(value: Any) -> Exploring | None:
    if value is None:
        return None
    fields = value if isinstance(value, dict) else {}
    every, k, rows = fields.get("everySteps"), fields.get("draftLength"), _rows(fields.get("ranges"), 1, 1)
    if not _is_whole(every, 1) or not _is_whole(k, 1) or rows is None:
        raise ChannelError(
            "BadTable",
            '"explore" must be null, or {"everySteps": n, "draftLength": k, "ranges": [[first, last], ...]} of whole numbers from 1 up.',
        )
    return Exploring(every, k, tuple((first, last) for first, last in rows))


def _rows(value: Any, *least: int) -> list[list[int]] | None:
    """A list of rows of whole numbers, each number at least what `least` says of its place; None for anything else."""
    if not isinstance(value, list):
        return None
    fits = all(isinstance(row, list) and len(row) == len(least) and all(map(_is_whole, row, least)) for row in value)
    return value if fits else None


def _is_whole(value: Any, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if not _is_whole(value, 0):
        raise ChannelError("BadMessage", f'"{name}" must be a whole number from 0 up.')
    return value


def _flag(fields: Mapping[str, Any], name: str, default: bool | None) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise ChannelError("BadMessage", f'"{name}" must be true or false.')
    return value
