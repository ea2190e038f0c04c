"""Run the controller and its rivals through the scenarios, and write what came out.

usage: python -m benchmarks.controller OUT [--scenario NAME ...] [--seeds N]
       python -m benchmarks.controller OUT --table

The first writes OUT/<scenario>.json for each scenario; the second prints them all as one Markdown table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.controller.engine import STEP_NOISE, Chooser, Truth, simulate
from benchmarks.controller.measure import Marks, judge, judge_static
from benchmarks.controller.ours import TableTune
from benchmarks.controller.rivals import Bandit, LinearModel, Tiers, documented
from benchmarks.controller.scenarios import CELL_ERROR, DIPS, Scenario, scenarios

from tabletune.table import Table

OURS, LAUNCH, FIXED, DOCUMENTED = "TableTune", "launch table, never changed", "best fixed length", "documentation's table"
LINEAR, BANDIT, TIERS = "linear model (TurboSpec)", "bandit (Nightjar)", "tiers (SGLang)"
POLICIES = (OURS, LAUNCH, FIXED, DOCUMENTED, LINEAR, BANDIT, TIERS)


def make_choosers(scenario: Scenario, seed: int) -> dict[str, Callable[[], Chooser]]:
    """What decides as it goes, by name; each knows what a user would have told it."""
    told, lengths = scenario.told, scenario.grid.lengths
    return {
        OURS: lambda: TableTune(told, scenario.prior, scenario.launch),
        LINEAR: lambda: LinearModel(told.times, lengths, scenario.prior.acceptance[0]),
        BANDIT: lambda: Bandit(sorted(scenario.grid.times), lengths, seed),
        TIERS: lambda: Tiers(lengths),
    }


def static_tables(scenario: Scenario) -> dict[str, Table]:
    lengths, largest = scenario.grid.lengths, scenario.grid.largest
    fixed = {f"k={k}": Table.fixed(k, largest) for k in lengths}
    return {LAUNCH: scenario.launch, DOCUMENTED: documented(lengths, largest), **fixed}


def run_seed(scenario: Scenario, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Marks of every policy in every run, with the swaps of tables that TableTune made."""
    found: dict[str, list[dict[str, Any]]] = {}
    truth = Truth(scenario.grid, seed, CELL_ERROR, scenario.scale)
    for number, run in enumerate(scenario.runs):
        for name, make in make_choosers(scenario, seed).items():
            chooser = make()
            log = simulate(truth, chooser, run.seconds, load=run.held(seed), traffic=run.traffic, seed=1000 * seed + number)
            swaps = {"swaps": chooser.policy.swaps, "exploring": chooser.policy.exploring_steps} if isinstance(chooser, TableTune) else {}
            steps = sum(second.steps for second in log)
            found.setdefault(name, []).append(_row(run.name, judge(run, truth, scenario.launch, log)) | swaps | {"steps": steps})
            if name == OURS:
                for static, table in static_tables(scenario).items():
                    marks = judge_static(run, truth, scenario.launch, log, table)
                    found.setdefault(static, []).append(_row(run.name, marks))
    return found


def _row(run: str, marks: Marks) -> dict[str, Any]:
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in asdict(marks).items()}
    return {"run": run, **rounded}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The worst over the runs of one seed."""
    times = [row["recover_seconds"] for row in rows]
    worst = max(rows, key=lambda row: row["worst_load_loss"])
    return {
        "worst_load_loss": worst["worst_load_loss"],
        "worst_load": worst["worst_load"],
        "mean_loss": round(sum(row["mean_loss"] for row in rows) / len(rows), 5),
        "recover_seconds": None if None in times else max(times),
        "worst_minute": min(row["worst_minute"] for row in rows),
    }


def run_scenario(scenario: Scenario, seeds: Sequence[int]) -> dict[str, Any]:
    by_seed = [run_seed(scenario, seed) for seed in seeds]
    policies = {name: [summarise(found[name]) for found in by_seed] for name in by_seed[0]}
    # The fixed length that turned out best: the smallest of the worst losses.
    fixed = min((name for name in policies if name.startswith("k=")), key=lambda n: median(s["worst_load_loss"] for s in policies[n]))
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "conditions": {
            "grid": scenario.grid.source,
            "profile": scenario.told.source,
            "lengths": scenario.grid.lengths,
            "launchTable": scenario.launch.to_vllm(),
            "prior": scenario.prior.acceptance,
            "cellError": CELL_ERROR,
            "stepNoise": STEP_NOISE,
            "dips": DIPS,
            "seeds": list(seeds),
            "runs": [{"name": r.name, "seconds": r.seconds, "events": r.events, "settle": r.settle} for r in scenario.runs],
        },
        "bestFixed": fixed,
        "policies": {FIXED: policies[fixed], **{name: found for name, found in policies.items() if not name.startswith("k=")}},
        "runsOfOurs": [found[OURS] for found in by_seed],
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """One Markdown table: a scenario a row, a policy a column; each number is the median of the seeds, the worst one in brackets."""
    lines = [f"| scenario | {' | '.join(POLICIES)} |", "|---" * (len(POLICIES) + 1) + "|"]
    for result in results:
        cells = [_cell(result["policies"][name]) for name in POLICIES]
        cells[POLICIES.index(FIXED)] += f" {result['bestFixed']}"
        lines.append(f"| {result['title']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(seeds: Sequence[dict[str, Any]]) -> str:
    losses = [100 * s["worst_load_loss"] for s in seeds]
    minutes = [100 * s["worst_minute"] for s in seeds]
    times = [inf if s["recover_seconds"] is None else s["recover_seconds"] for s in seeds]
    recovered = f"{_time(median(times))} ({_time(max(times))})"
    return f"{median(losses):.1f} ({max(losses):.1f}) · {recovered} · {median(minutes):+.1f} ({min(minutes):+.1f})"


def _time(seconds: float) -> str:
    return "never" if seconds == inf else f"{seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="The controller and its rivals in simulated scenarios on measured step times.")
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--scenario", nargs="*", help="names; all without it")
    parser.add_argument("--seeds", type=int, default=3, help="how many (%(default)s)")
    parser.add_argument("--table", action="store_true", help="print the stored results")
    args = parser.parse_args()
    known = {scenario.name: scenario for scenario in scenarios()}
    names = args.scenario or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    if args.table:
        paths = [args.out / f"{name}.json" for name in names]
        print(table([json.loads(path.read_text()) for path in paths if path.exists()]))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        result = run_scenario(known[name], range(1, args.seeds + 1))
        (args.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(table([result]), flush=True)


if __name__ == "__main__":
    main()
