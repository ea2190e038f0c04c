"""Re-apply manifests by every tool beside TableTune in every mode, and count what changed. See README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.on_a_cluster import installed

from gitops_tools import GitOps, Repeating  # isort: skip - on_a_cluster finds the tests' parts
from place import WORK_SECONDS, Place  # isort: skip
from workloads import SPECULATION, draft_table, reading_a_file, stand_in  # isort: skip

ARGS_JQ = '.spec.template.spec.containers[] | select(.name == "modelserver") | .args'
ARGS_POINTER = "/spec/template/spec/containers/0/args"

PLAIN = ("kubectl", "kubectl-server-side", "kubectl-server-side-force", "helm", "flux", "argo", "argo-server-side")
TOOLS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in PLAIN},
    # Told to leave args, as docs/gitops-conflicts.md says.
    "flux-told": ("flux", "--ignore-pointer", ARGS_POINTER),
    "argo-told": ("argo", "--sync", "always", "--ignore-jq", ARGS_JQ, "--respect-ignore-differences"),
}
MODES: Mapping[str, Mapping[str, str]] = {
    "Patch": {"mode": "Patch"},
    "Override": {"mode": "Patch", "ownership": "Override"},
    "ConfigFile": {"mode": "ConfigFile"},
    "Admission": {"mode": "Admission", "replace": "Evict"},
    "Recommend": {"mode": "Recommend"},
}
NAMESPACE = "gitops-benchmark"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one tool beside one mode. Changes are those of the pod template; each restarts every replica, by the Deployment's strategy."""

    tool: str
    mode: str
    rounds: int
    changes_by_tool: int
    changes_by_operator: int
    changes_in_last_half: int
    refused: int
    replicas: int
    pods: int
    container_restarts: int
    conditions: dict[str, str]
    message: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gitops", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--every", type=int, default=10, help="seconds")
    parser.add_argument("--tools", nargs="+", choices=tuple(TOOLS), default=tuple(TOOLS))
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES))
    given = parser.parse_args()
    pairs = [(tool, mode) for mode in given.modes for tool in given.tools]
    with installed(NAMESPACE) as place:
        outcomes = _measure(place, pairs, given.minutes * 60, given.every)
    given.out.mkdir(parents=True, exist_ok=True)
    result = {"everySeconds": given.every, "minutes": given.minutes, "outcomes": [asdict(outcome) for outcome in outcomes]}
    (given.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(_table(outcomes))


def _measure(place: Place, pairs: Sequence[tuple[str, str]], seconds: float, every: int) -> list[Outcome]:
    gitops = GitOps(place.cluster.environment)
    names = {pair: f"{pair[0]}-{pair[1]}".lower() for pair in pairs}
    with contextlib.ExitStack() as stack:
        tools: dict[tuple[str, str], Repeating] = {}
        for tool, mode in pairs:
            folder, name = Path(stack.enter_context(tempfile.TemporaryDirectory())), names[tool, mode]
            program, *options = *TOOLS[tool], "--name", name
            # The last ready replica is never evicted.
            target = reading_a_file(name, name) if mode == "ConfigFile" else stand_in(name, replicas=2 if mode == "Admission" else 1)
            tools[tool, mode] = stack.enter_context(
                gitops.repeating(program, NAMESPACE, folder, target, every=f"{every}s", options=options)
            )
        for (_, mode), name in names.items():
            place.until(lambda name=name: place.list("Deployment", f"llm-d.ai/guide={name}"), f"Deployment {name} is there", WORK_SECONDS)
            if mode == "ConfigFile":  # its pods wait for the file
                place.create(draft_table(name, name, rollout=MODES[mode], speculation=SPECULATION))
            place.wait_ready(name)
            if mode != "ConfigFile":
                place.create(draft_table(name, name, rollout=MODES[mode]))
        # The first is measured, all others use its profile again, and roll out one after the other; then the clock starts.
        for name in names.values():
            place.until(lambda name=name: _has_had_its_turn(place, name), f"DraftTable {name} has had its turn", 4 * WORK_SECONDS)
        time.sleep(seconds)
        return [_outcome(place, tool, mode, names[tool, mode], tools[tool, mode]) for tool, mode in pairs]


def _has_had_its_turn(place: Place, name: str) -> bool:
    return place.conditions(name).get("RolledOut", {}).get("reason") not in {None, "NotVerified", "WaitingForJobPod", "RolloutQueued"}


def _outcome(place: Place, tool: str, mode: str, name: str, repeating: Repeating) -> Outcome:
    rounds = repeating.rounds()
    conditions = place.conditions(name)
    pods = place.list("Pod", f"llm-d.ai/guide={name}")
    statuses = [c for pod in pods for c in pod.get("status", {}).get("containerStatuses", ())]
    changed = [done.changed for done in rounds if done.before]  # the first round makes the Deployment
    deployment = place.get("Deployment", name)
    created = [e for e in place.list("Event") if e["reason"] == "SuccessfulCreate" and e["involvedObject"]["name"].startswith(f"{name}-")]
    return Outcome(
        tool=tool,
        mode=mode,
        rounds=len(rounds),
        changes_by_tool=sum(changed),
        changes_by_operator=place.revision(name) - 1 - sum(changed),
        changes_in_last_half=sum(changed[len(changed) // 2 :]),
        refused=sum(bool(done.error) for done in rounds),
        replicas=deployment["spec"]["replicas"],
        pods=len([e for e in created if e["involvedObject"]["kind"] == "ReplicaSet"]),
        container_restarts=sum(status["restartCount"] for status in statuses),
        conditions={kind: f"{c['status']} {c['reason']}" for kind, c in conditions.items()},
        message=conditions.get("RolledOut", {}).get("message", ""),
    )


def _table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| mode | tool | rounds | changes by the tool | by the operator | pods made | containers restarted | RolledOut at the end |"]
    lines.append("|" + "---|" * 8)
    for o in outcomes:
        refused = f" ({o.refused} refused)" if o.refused else ""
        lines.append(
            f"| {o.mode} | {o.tool} | {o.rounds}{refused} | {o.changes_by_tool} | {o.changes_by_operator} | {o.pods} | "
            f"{o.container_restarts} | {o.conditions.get('RolledOut', 'none')} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
