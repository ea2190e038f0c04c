"""Manifests that are applied again and again, by the tools of platform teams, while a table is measured and rolled out beside them.

What each tool does to which field is in tests/api/test_gitops.py; here is that nobody fights: the operator gives in and says so, and
where the tool was told to leave our fields, the table stays.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gitops_tools import GitOps, Repeating
from place import Place
from workloads import draft_table, service, stand_in

EVERY = "3s"
STILL_ROUNDS = 4
MOST_ROLL_OUTS = 2
"""So often the operator may roll out before it gives in; each is followed by the tool's way back."""

TOLD = ("--ignore-jq", '.spec.template.spec.containers[] | select(.name == "modelserver") | .args', "--respect-ignore-differences")


@dataclass(frozen=True, slots=True)
class Case:
    """A tool, and the reason of RolledOut that it ends with."""

    tool: str
    ends: str
    options: tuple[str, ...] = ()
    rollout: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "kubectl": Case("kubectl", "PutBack"),
    "server-side": Case("kubectl-server-side-force", "PutBack"),
    "flux": Case("flux", "ManagedElsewhere"),
    "argo": Case("argo", "ManagedElsewhere"),
    "argo-untold": Case("argo", "ManagedElsewhere", rollout={"ownership": "Override"}),  # after a second try, by itself
    # By drift alone: a sync that had read the old arguments when ours came writes them back (docs/gitops-conflicts.md).
    "argo-told": Case("argo", "Proved", TOLD, {"ownership": "Override"}),
}


def test_applied_again_and_again(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        tools = {name: _start(stack, place, name, case) for name, case in CASES.items()}
        for name, case in CASES.items():
            place.until(lambda name=name: place.list("Deployment", f"llm-d.ai/guide={name}"), f"{name} made its Deployment")
            place.wait_ready(name)
            place.create(service(name))
            place.create(draft_table(name, name, rollout=case.rollout))
        for name, case in CASES.items():
            place.wait("RolledOut", case.ends, name, seconds=600)
        settled = _wait_still(place, tools)
        for name, case in CASES.items():
            assert place.conditions(name)["RolledOut"]["reason"] == case.ends
            changes = settled[name] - 1
            assert changes <= (1 if case.ends == "Proved" else 2 * MOST_ROLL_OUTS), f"{name}: the pod template changed {changes} times"

        # Recommend takes away what is left of ours, and is the end of it.
        for name in CASES:
            place.edit("DraftTable", name, {"spec": {"rollout": {"mode": "Recommend"}}})
        for name in CASES:
            place.wait("RolledOut", "Recommended", name)
            place.until(lambda name=name: place.conditions(name)["Ready"]["status"] == "True", f"DraftTable {name} is ready")
        for name, revision in _wait_still(place, tools).items():
            assert revision <= settled[name] + 1, f"{name}: taking ours away changed the pod template {revision - settled[name]} times"
        rounds = {name: tool.rounds() for name, tool in tools.items()}
    for name, found in rounds.items():
        assert [done for done in found if done.error] == []
        changes = sum(done.changed for done in found if done.before)  # its first round makes the Deployment
        assert changes <= MOST_ROLL_OUTS, f"{name} changed its Deployment {changes} times"
    assert place.jobs_started() == 1


def _start(stack: contextlib.ExitStack, place: Place, name: str, case: Case) -> Repeating:
    """The tool, from now on, with a Deployment of this name."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    tools, options = GitOps(place.cluster.environment), ("--name", name, *case.options)
    return stack.enter_context(tools.repeating(case.tool, place.namespace, folder, stand_in(name), every=EVERY, options=options))


def _wait_still(place: Place, tools: Mapping[str, Repeating]) -> dict[str, int]:
    """Revisions of the pod templates, after several rounds of each tool that changed nothing; no container was restarted by then."""
    done = {name: len(tool.rounds()) + 1 for name, tool in tools.items()}  # one is under way, and may have begun before what is settled now
    for name, tool in tools.items():
        until = done[name] + STILL_ROUNDS
        place.until(lambda tool=tool, until=until: len(tool.rounds()) >= until, f"{STILL_ROUNDS} more rounds of {name}", seconds=300)
        changing = [found for found in tool.rounds()[done[name] :] if found.changed]
        assert changing == [], f"{name} still changes its Deployment"
        place.wait_ready(name)
        assert sum(place.restarts(name).values()) == 0
    return {name: place.revision(name) for name in tools}
