"""One replica's GPU, lent to the profiling Job: what is written on the target, and how it is given back. Pure.

`replicas` and the record of it are written in one update that holds the resource version that was read: neither is there without
the other, and nobody's change in between is lost. An update, not an apply: a manager that stops applying `replicas` has it deleted,
and a Deployment without it gets 1. Of Deployments only: the replica that is stopped must not be a certain one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tabletune_operator.crd import GROUP
from tabletune_operator.kinds import called, replicas_of
from tabletune_operator.times import parse_time, to_time

BORROWED_ANNOTATION = f"{GROUP}/borrowed"
"""On the target while one of its replicas is lent; removed when that is over."""

FIELD_MANAGER = GROUP
LOAN_VERSION = 1

Body = Mapping[str, Any]


class LoanError(ValueError):
    """The annotation cannot be read: what is wrong, and what that means."""


@dataclass(frozen=True, slots=True)
class Loan:
    """What the annotation holds."""

    draft_table: str
    replicas: int  # before the loan
    at: datetime

    @property
    def left(self) -> int:
        """`replicas` as we set it."""
        return self.replicas - 1


def read_loan(deployment: Body) -> Loan | None:
    """Raises LoanError."""
    text = (deployment["metadata"].get("annotations") or {}).get(BORROWED_ANNOTATION)
    if text is None:
        return None
    try:
        value = json.loads(text)
        loan, version = Loan(str(value["draftTable"]), int(value["replicas"]), parse_time(value["at"])), value["formatVersion"]
    except (ValueError, TypeError, KeyError) as error:
        raise LoanError(f"{_where(deployment)} cannot be read ({error!r:.60}), so how many replicas it had is not known.") from error
    if version != LOAN_VERSION:
        raise LoanError(f"{_where(deployment)} has formatVersion {version}; this TableTune reads {LOAN_VERSION}.")
    return loan


def _where(deployment: Body) -> str:
    return f"Annotation {BORROWED_ANNOTATION} of {called(deployment)}"


def take_replica(deployment: Body, draft_table: str, now: datetime) -> dict[str, Any]:
    """The whole object to write: one replica less, and the record of it."""
    changed, before = copy.deepcopy(dict(deployment)), replicas_of(deployment)
    record = {"formatVersion": LOAN_VERSION, "draftTable": draft_table, "replicas": before, "at": to_time(now)}
    changed["metadata"]["annotations"] = {**(changed["metadata"].get("annotations") or {}), BORROWED_ANNOTATION: json.dumps(record)}
    changed["spec"]["replicas"] = before - 1
    return changed


def return_replica(deployment: Body, loan: Loan) -> dict[str, Any]:
    """The whole object to write: as many replicas as before. The record stays until `close_loan`."""
    changed = copy.deepcopy(dict(deployment))
    changed["spec"]["replicas"] = loan.replicas
    return changed


def close_loan(deployment: Body) -> dict[str, Any]:
    """The whole object to write: no record, and `replicas` is no field of ours any more.

    Nobody owns it then, so whoever applies it next (GitOps) has it without a conflict, and an apply without it leaves it alone. To
    write the former owner into `managedFields` would not: an apply that has left it out meanwhile would delete it.
    """
    changed = copy.deepcopy(dict(deployment))
    metadata = changed["metadata"]
    metadata["annotations"].pop(BORROWED_ANNOTATION)
    if not metadata["annotations"]:
        del metadata["annotations"]
    for entry in metadata.get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Update":
            fields = entry.get("fieldsV1") or {}
            _forget(fields, "f:spec", "f:replicas")
            # "." is the map of annotations itself, ours where there was none.
            _forget(fields.get("f:metadata", {}), "f:annotations", ".", f"f:{BORROWED_ANNOTATION}")
            _forget(fields, "f:metadata")
    if "managedFields" in metadata:
        metadata["managedFields"] = [entry for entry in metadata["managedFields"] if entry.get("fieldsV1") != {}]
    return changed


def _forget(fields: dict[str, Any], parent: str, *names: str) -> None:
    """Without these fields; a parent that holds no other goes too."""
    owned = fields.get(parent)
    if owned is None:
        return
    for name in names:
        owned.pop(name, None)
    if not owned:
        del fields[parent]
