"""Hundreds of observed states: whatever is combined, a decision is made, says everything, and never does what it must not."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from world import NOW, World, deployment, draft_table
from world_files import files, sidecar_state

from tabletune.profile import Fingerprint
from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import LONGEST_MESSAGE, REASONS, STAGES, SUMMARIES, parse_conditions
from tabletune_operator.decide import decide
from tabletune_operator.files import parse_files
from tabletune_operator.launch_file import LaunchFile, Reading, to_launch_file
from tabletune_operator.loan import Loan, take_replica
from tabletune_operator.observation import Damage, ObjectRef, Observation, Queue, Rival
from tabletune_operator.owners import Owner, Writer
from tabletune_operator.plan import ApplyMark, ApplyRollout, BorrowReplica, EnsureJob, EnsureJobDeleted, Plan, RestoreTarget, ReturnReplica
from tabletune_operator.sidecars import parse_state
from tabletune_operator.status import DraftTableStatus
from tabletune_operator.target import TargetError

NEXT_STEP = re.compile(
    r"\b(nothing to do|set|remove|delete|free|wait|see|follow|update|create|change|correct|add|keep|write|name|commit|upgrade|"
    r"scale|make|give|start|restore|to try|kubectl)\b",
    re.IGNORECASE,
)

Change = Callable[[Observation], Observation]


@functools.cache
def scenes() -> dict[str, Observation]:
    """Observations of a world at work; each is then changed in every way at once."""

    async def build() -> dict[str, Observation]:
        made = World(deployment(), draft_table())
        found: dict[str, Observation] = {}

        async def keep(name: str) -> None:
            seen = await made.observe()
            assert seen is not None
            found[name] = seen

        await keep("no replica")
        made.roll()
        await keep("new")
        await made.turn()
        await keep("job started")
        made.progress()
        await made.turn()
        made.progress(cellsDone=30, percent=41)
        await keep("profiling")
        made.finish_profile()
        await keep("job done")
        await made.turns(2)
        await keep("rolling out")
        await made.turns(2)
        await keep("tracking")
        return found

    return asyncio.run(build())


def same(seen: Observation) -> Observation:
    return seen


def with_target(original: Any) -> Change:
    return lambda seen: replace(seen, workload=replace(seen.workload, original=original)) if seen.workload else seen


def with_files(kind: VerdictKind) -> Change:
    def change(seen: Observation) -> Observation:
        fingerprint = (
            seen.files.profile.fingerprint if seen.files is not None and not isinstance(seen.files, Damage) else Fingerprint.of({})
        )
        return replace(seen, files=parse_files("chat-tabletune", files(fingerprint, kind), None))

    return change


def with_job(**fields: Any) -> Change:
    return lambda seen: replace(seen, job=replace(seen.job, **fields)) if seen.job else seen


def with_pods(**fields: Any) -> Change:
    def change(seen: Observation) -> Observation:
        if seen.workload is None:
            return seen
        return replace(
            seen, workload=replace(seen.workload, replicas=tuple(replace(r, pod=replace(r.pod, **fields)) for r in seen.workload.replicas))
        )

    return change


def with_sidecars(honoured: str | None) -> Change:
    def change(seen: Observation) -> Observation:
        if seen.workload is None:
            return seen
        state = parse_state(sidecar_state(honoured)) if honoured is not None else None
        silence = None if state is not None else "cannot be reached"
        replicas = tuple(replace(r, sidecar=state, silence=silence) for r in seen.workload.replicas)
        return replace(seen, workload=replace(seen.workload, replicas=replicas))

    return change


def lent(*, with_replicas: int, damaged: bool = False) -> Change:
    """One of two replicas, to this DraftTable's Job, since it began."""

    def change(seen: Observation) -> Observation:
        if seen.workload is None:
            return seen
        since = seen.job.created if seen.job is not None else seen.now
        body = take_replica(seen.workload.body, seen.draft.ref.name, since)
        body["spec"]["replicas"] = with_replicas
        loan = Damage("Annotation tabletune.io/borrowed cannot be read.") if damaged else Loan(seen.draft.ref.name, 2, since)
        return replace(seen, workload=replace(seen.workload, body=body, loan=loan))

    return change


def with_rollout(**fields: Any) -> Change:
    def change(seen: Observation) -> Observation:
        spec = seen.draft.spec
        assert not isinstance(spec, Damage)
        rollout = spec.rollout.model_copy(update=fields)
        return replace(seen, draft=replace(seen.draft, spec=spec.model_copy(update={"rollout": rollout})))

    return change


def with_workload(**fields: Any) -> Change:
    return lambda seen: replace(seen, workload=replace(seen.workload, **fields)) if seen.workload else seen


def with_state(state: str) -> Change:
    def change(seen: Observation) -> Observation:
        spec = seen.draft.spec
        assert not isinstance(spec, Damage)
        return replace(seen, draft=replace(seen.draft, spec=spec.model_copy(update={"state": state})))

    return change


def with_profile(**fields: Any) -> Change:
    def change(seen: Observation) -> Observation:
        spec = seen.draft.spec
        assert not isinstance(spec, Damage)
        profile = spec.profile.model_copy(update=fields)
        return replace(seen, draft=replace(seen.draft, spec=spec.model_copy(update={"profile": profile})))

    return change


def with_manifest(**fields: Any) -> Change:
    def change(seen: Observation) -> Observation:
        if seen.workload is None or seen.workload.manifest is None:
            return seen
        return replace(seen, workload=replace(seen.workload, manifest=replace(seen.workload.manifest, **fields)))

    return change


def reads_our_file(mark: str | None) -> Change:
    """A target that we did not roll out, and what its engine reads at its start."""
    held = LaunchFile("uid-file", is_labelled=True, text=to_launch_file("chat", None), before={"method": "ngram"}, others={})

    def change(seen: Observation) -> Observation:
        seen = with_manifest(reading=Reading(is_read=True, problem=None), mark=mark)(seen)
        if seen.workload is None:
            return seen
        return replace(seen, workload=replace(seen.workload, owner=None, rolled=None), launch_file=held)

    return change


OBJECT: dict[str, Change] = {
    "as it is": same,
    "deleting": lambda seen: replace(seen, draft=replace(seen.draft, deleting=True)),
    "no finalizer": lambda seen: replace(seen, draft=replace(seen.draft, has_finalizer=False)),
    "spec damaged": lambda seen: replace(seen, draft=replace(seen.draft, spec=Damage("spec.profile cannot be read."))),
    "recommend": with_rollout(mode="Recommend"),
    "manual": with_rollout(approval="Manual"),
    "another approved": lambda seen: replace(seen, draft=replace(with_rollout(approval="Manual")(seen).draft, approve="0123456789ab")),
    "config file": with_rollout(mode="ConfigFile"),
    "borrows": with_profile(placement="BorrowReplica"),
    "never": with_profile(policy="Never"),
    "asked again": lambda seen: replace(seen, draft=replace(seen.draft, reprofile="1")),
    "suspended": with_state("Suspended"),
    "older rival": lambda seen: replace(seen, rivals=(Rival("first", NOW - timedelta(days=1)),)),
    "status lost": lambda seen: replace(seen, draft=replace(seen.draft, status=type(seen.draft.status)(), conditions={})),
}
TARGET: dict[str, Change] = {
    "as it is": same,
    "gone": lambda seen: replace(seen, workload=None),
    "refused": with_target(TargetError("TwoEngines", "Containers a, b run vLLM. Name one in spec.targetRef.container.")),
    "record damaged": with_target(Damage("Annotation tabletune.io/record cannot be read. Write the template back by hand.")),
    "foreign": lambda seen: replace(seen, workload=replace(seen.workload, foreign="no --speculative-config")) if seen.workload else seen,
    "put back": with_workload(foreign="--speculative-config {}", put_back=True, writer=Writer("argocd-controller", NOW)),
    "kept by Argo CD": with_workload(managed_by=Owner("Argo CD application serving", fights=True, cure="let it ignore them")),
    "being scaled": lambda seen: replace(seen, around=replace(seen.around, scaling="it is being scaled from 1 to 2 replicas")),
    "no room": lambda seen: replace(seen, around=replace(seen.around, room=0)),
    "another rolls out": lambda seen: replace(seen, rollouts=Queue(ObjectRef("llm", "first"), ())),
    "of another": lambda seen: replace(seen, workload=replace(seen.workload, owner="other")) if seen.workload else seen,
    "crashing": with_pods(ready=False, crash="container modelserver ended 5 times (exit code 1)", restarts=5),
    "never ready": with_pods(ready=False, created=NOW - timedelta(days=1)),
    "waits for a GPU": with_pods(ready=False, waits_for_gpu=True, unschedulable="Insufficient nvidia.com/gpu"),
    "lent": lent(with_replicas=1),
    "lent, and scaled since": lent(with_replicas=5),
    "lent, unreadable": lent(with_replicas=1, damaged=True),
    "not honoured": with_sidecars("NotHonoured"),
    "silent": with_sidecars(None),
    "reads our file": reads_our_file(None),
    "reads our file, marked": reads_our_file("abc123"),
    "has an overlay": with_manifest(has_parts=True),
}
RESULT: dict[str, Change] = {
    "as it is": same,
    "damaged": lambda seen: replace(seen, files=Damage("ConfigMap chat-tabletune, table.json: ranges is missing. Restore it.")),
    "missing": lambda seen: replace(seen, files=None),
    "off": with_files(VerdictKind.OFF),
    "fixed": with_files(VerdictKind.FIXED),
    "present": with_files(VerdictKind.PRESENT),
    "blocked": with_files(VerdictKind.BLOCKED),
    "job failed": with_job(failure="BackoffLimitExceeded: ", ended_at=NOW),
    "job deleting": with_job(deleting=True),
    "job of another request": with_job(request="other"),
    "no node": lambda seen: replace(seen, pool=None, products=()),
    "queued": lambda seen: replace(seen, queue=Queue(ObjectRef("llm", "first"), ())),
}


SCENES = ("no replica", "new", "job started", "profiling", "job done", "rolling out", "tracking")


def states() -> Iterator[Any]:
    for scene in SCENES:
        for names in itertools.product(OBJECT, TARGET, RESULT):
            # All pairs of changes, not all triples: 7 scenes and 300 changes of each.
            if sum(name != "as it is" for name in names) <= 2:
                yield pytest.param(scene, *names, id="; ".join((scene, *(name for name in names if name != "as it is"))))


def changed(scene: str, obj: str, target: str, result: str) -> Observation:
    seen = scenes()[scene]
    for change in (RESULT[result], TARGET[target], OBJECT[obj]):
        if isinstance(seen.draft.spec, Damage) and change is OBJECT["recommend"]:
            continue
        seen = change(seen)
    return seen


@functools.cache
def decided(scene: str, obj: str, target: str, result: str) -> tuple[Observation, Plan]:
    """Other tests ask for these plans too."""
    seen = changed(scene, obj, target, result)
    return seen, decide(seen)


@pytest.mark.parametrize("scene", SCENES)
def test_every_state_has_a_decision_that_keeps_the_rules(scene: str) -> None:
    # Not a case for each of some thousand states: pytest's own work for a case is more than that for a decision.
    wrong = {}
    for state in states():
        if state.values[0] == scene:
            try:
                check_state(*state.values)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other states are looked at too, and this one is named
                wrong[str(state.id)] = f"{type(error).__name__}: {error}"
    assert wrong == {}


def check_state(scene: str, obj: str, target: str, result: str) -> None:
    seen, plan = decided(scene, obj, target, result)
    assert plan.requeue_seconds > 0
    check_actions(seen, plan)
    check_marks(seen, plan)
    if plan.status is not None:
        check_status(plan)
    if obj == "no finalizer":
        assert (plan.actions, plan.status) == ((), None)
    check_again(seen, plan)


def check_actions(seen: Observation, plan: Plan) -> None:
    kinds = [type(action) for action in plan.actions]
    ours = seen.workload is not None and seen.workload.owner == seen.draft.ref.name
    if not isinstance(seen.draft.spec, Damage) and seen.draft.spec.state == "Suspended":
        assert not {EnsureJob, BorrowReplica, ApplyRollout} & set(kinds)
    if ApplyRollout in kinds:
        assert seen.job is None, "the Job's GPU must be free before new replicas need one"
        assert not seen.rivals or ours, "a target belongs to one DraftTable"
        assert not seen.draft.deleting
        assert seen.workload is not None and (seen.workload.foreign is None or seen.workload.put_back)
        assert seen.workload.managed_by is None
        assert seen.around.scaling is None and seen.around.room != 0 and seen.rollouts.running is None
        spec = seen.draft.spec
        assert isinstance(spec, Damage) or spec.rollout.approval == "Auto"
        assert isinstance(seen.files, Damage) or seen.files is None or seen.files.kind is not VerdictKind.PRESENT
    if RestoreTarget in kinds:
        assert ours, "only what we rolled out is given back by us"
        assert ApplyRollout not in kinds
    writers = [kind for kind in kinds if kind in {RestoreTarget, BorrowReplica, ReturnReplica}]
    assert len(writers) <= 1, "each names the version of the target that was seen"
    if BorrowReplica in kinds:
        assert seen.workload is not None and seen.workload.loan is None and seen.job is not None
    if ApplyRollout in kinds:
        assert seen.workload is not None and seen.workload.loan is None, "the replica comes back first"
    if EnsureJob in kinds:
        assert EnsureJobDeleted not in kinds
        assert seen.queue.running is None and seen.job is None and not seen.draft.deleting
    if seen.draft.deleting and plan.finished:
        assert seen.workload is None or seen.workload.loan is None
        assert plan.actions == ()
        assert seen.job is None
    for action in plan.actions:
        if isinstance(action, ApplyRollout):
            assert "replicas" not in action.manifest["spec"]
            assert action.manifest["metadata"]["uid"] == "uid-decode"
        if isinstance(action, RestoreTarget | BorrowReplica | ReturnReplica):
            assert action.body["metadata"]["resourceVersion"]


def check_marks(seen: Observation, plan: Plan) -> None:
    for action in plan.actions:
        if isinstance(action, ApplyMark):
            assert action.manifest.get("spec", {}).keys() <= {"template"}
            assert action.manifest["metadata"].keys() == {"name", "namespace", "uid"}
            assert "spec" not in action.manifest or (seen.job is None and not seen.draft.deleting)
            assert not any(isinstance(other, ApplyRollout | RestoreTarget) for other in plan.actions), "one way at a time"


def check_status(plan: Plan) -> None:
    assert plan.status is not None
    conditions = {c["type"]: c for c in plan.status["conditions"]}
    assert list(conditions) == [*STAGES, *SUMMARIES]
    known = {(reason.type, reason.name) for reason in REASONS}
    for kind, condition in conditions.items():
        assert condition["reason"]
        assert condition["observedGeneration"] == 1
        assert 0 < len(condition["message"]) <= LONGEST_MESSAGE
        assert NEXT_STEP.search(condition["message"]), condition["message"]
        if kind in STAGES:
            assert (kind, condition["reason"]) in known
    assert all(plan.status["display"].values())
    good = {name: c["status"] for name, c in conditions.items()}
    assert (good["Ready"], good["Reconciling"]) != ("True", "True")
    assert (good["Ready"], good["Stalled"]) != ("True", "True")
    assert (good["Reconciling"], good["Stalled"]) != ("True", "True")
    assert "True" in {good["Ready"], good["Reconciling"], good["Stalled"]}


def check_again(seen: Observation, plan: Plan) -> None:
    """Seen again with what was written: nothing new to tell, unless the first decision told only a part."""
    if plan.status is None or seen.draft.deleting:
        return
    status, conditions = DraftTableStatus.model_validate(plan.status), parse_conditions(plan.status)
    again = replace(seen, draft=replace(seen.draft, status=status, conditions=conditions))
    second = decide(again)
    returns = any(isinstance(action, ReturnReplica) for action in second.actions)  # its event goes with the act, which is not done here
    if not returns and (second.status is None or reasons(second) == reasons(plan)):
        assert second.events == ()
    assert decide(again) == second, "a decision hangs on nothing but what was observed"


def reasons(plan: Plan) -> dict[str, str]:
    assert plan.status is not None
    return {c["type"]: c["reason"] for c in plan.status["conditions"]}
