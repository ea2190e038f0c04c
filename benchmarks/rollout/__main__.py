"""Count the requests that fail while replicas are replaced, with TableTune and without it. See README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.on_a_cluster import installed

from place import WORK_SECONDS, Place  # isort: skip - on_a_cluster finds the tests' parts
from traffic import Traffic, traffic  # isort: skip
from workloads import draft_table, leaves_late, service, stand_in  # isort: skip

NAMESPACE = "rollout-benchmark"
REPLICAS = 2
AFTER = 40
"""Requests that are answered after the last replica was replaced, so that late failures are counted too."""

LEAVING = {"preStop of 15 s": leaves_late, "at once": lambda deployment: deployment}


@dataclass(frozen=True, slots=True)
class Round:
    """Both replicas, replaced once under traffic."""

    engine_leaves: str
    way: str
    answered: int
    failed: Mapping[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with installed(NAMESPACE) as place:
        rounds = [each for leaves in LEAVING for each in _measure(place, leaves, given.rounds)]
    given.out.mkdir(parents=True, exist_ok=True)
    result = {"replicas": REPLICAS, "rounds": [asdict(each) for each in rounds]}
    (given.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(_table(rounds))


def _measure(place: Place, leaves: str, count: int) -> Iterator[Round]:
    place.create(service())
    place.create(LEAVING[leaves](stand_in(replicas=REPLICAS)))
    place.wait_ready()
    # Measured beforehand: what is counted is the roll-out alone.
    place.create(draft_table(rollout={"mode": "Recommend"}))
    place.wait("RolledOut", "Recommended", seconds=2 * WORK_SECONDS)
    ways: Mapping[str, Callable[[], None]] = {
        "kubectl rollout restart": lambda: _restart(place),
        "TableTune's roll-out": lambda: _switch(place, "Patch", "Proved"),
        "its way back": lambda: _switch(place, "Recommend", "Recommended"),
    }
    with traffic(place) as asked:
        for _ in range(count):
            for way, replace in ways.items():
                yield _round(leaves, way, asked, replace, place)
    place.delete_and_wait()
    place.clear()
    place.delete("Service", "decode")
    place.until(lambda: not place.list("Pod"), "all pods are gone")


def _round(leaves: str, way: str, asked: Traffic, replace: Callable[[], None], place: Place) -> Round:
    before, revision = asked.tally(), place.revision()
    replace()
    place.wait_ready()
    place.until(lambda: len(place.list("Pod", "llm-d.ai/guide=decode")) == REPLICAS, "the old pods are gone")
    asked.wait_answered(AFTER)
    assert place.revision() == revision + 1, f"{way} changed the pod template {place.revision() - revision} times"
    seen = asked.tally().since(before)
    print(f"engine leaves {leaves}, {way}: {seen.answered} answered, failed {seen.failed or 'none'}", flush=True)
    return Round(leaves, way, seen.answered, seen.failed)


def _restart(place: Place) -> None:
    place.cluster.kubectl("rollout", "restart", "deployment/decode", "-n", place.namespace)


def _switch(place: Place, mode: str, reason: str) -> None:
    place.edit("DraftTable", "tuned", {"spec": {"rollout": {"mode": mode}}})
    place.wait("RolledOut", reason, seconds=WORK_SECONDS)


def _table(rounds: Sequence[Round]) -> str:
    lines = ["| engine leaves | way | rounds | requests answered | failed in each round | as |", "|---|---|---|---|---|---|"]
    for leaves, way in dict.fromkeys((each.engine_leaves, each.way) for each in rounds):
        of = [each for each in rounds if (each.engine_leaves, each.way) == (leaves, way)]
        failed = ", ".join(str(sum(each.failed.values())) for each in of)
        kinds = ", ".join(sorted({kind for each in of for kind in each.failed})) or "-"
        lines.append(f"| {leaves} | {way} | {len(of)} | {sum(each.answered for each in of)} | {failed} | {kinds} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
