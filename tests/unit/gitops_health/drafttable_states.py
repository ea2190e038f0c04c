"""A DraftTable in every state that the operator can write: the real decision over the small world's observations, and over each reason."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from test_decide_invariants import OBJECT, RESULT, TARGET, decided
from test_decide_invariants import states as observed_states
from world import NOW

from tabletune_operator.conditions import REASONS, STAGES, Outlook, Reason, condition_of
from tabletune_operator.decide import summarised
from tabletune_operator.decide.stage import Stage

ON_HOLD = frozenset({"AwaitingApproval", "Suspended"})
"""Words for the state of an object that waits for a person's word, with nothing wrong."""


def body(status: Mapping[str, Any] | None, generation: int = 1) -> dict[str, Any]:
    metadata = {"name": "chat", "namespace": "llm", "generation": generation, "creationTimestamp": "2026-11-30T14:30:00Z"}
    found = {"apiVersion": "tabletune.io/v1alpha1", "kind": "DraftTable", "metadata": metadata, "spec": {"targetRef": {"name": "decode"}}}
    return found if status is None else {**found, "status": dict(status)}


@functools.cache
def observed() -> dict[str, dict[str, Any]]:
    """The objects of all observations, by what is the case there."""
    assert OBJECT and TARGET and RESULT
    found = {}
    for param in observed_states():
        _, plan = decided(*param.values)
        if plan.status is not None:
            found[str(param.id)] = body(plan.status)
    return found


def good(stage: str) -> Reason:
    return next(reason for reason in REASONS if (reason.type, reason.outlook) == (stage, Outlook.GOOD))


def behind(stage: str) -> Reason:
    return next(reason for reason in REASONS if (reason.type, reason.outlook) == (stage, Outlook.BEHIND))


def by_reason() -> Iterator[tuple[Reason, dict[str, Any]]]:
    """Each reason where it decides: the stages before it are good, and those after it wait for it."""
    for reason in REASONS:
        if reason.outlook is Outlook.BEHIND:
            continue
        at = STAGES.index(reason.type)
        later = good if reason.outlook is Outlook.GOOD else behind
        reasons = (*map(good, STAGES[:at]), reason, *map(later, STAGES[at + 1 :]))
        stages = tuple(Stage(each, f"Message of {each.name}. Nothing to do.") for each in reasons)
        conditions = (*(condition_of(s.reason, s.message, 1, NOW) for s in stages), *summarised(stages, 1, NOW))
        yield reason, body({"observedGeneration": 1, "conditions": [condition.to_status() for condition in conditions]})


def condition(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (one,) = (c for c in found["status"]["conditions"] if c["type"] == kind)
    return dict(one)
