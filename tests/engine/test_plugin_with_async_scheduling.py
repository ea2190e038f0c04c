"""The plugin in vLLM's asynchronous scheduler, the one that GPUs use by default: see `async_scheduler_run.py`."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from live_engine import CPU_ENVIRONMENT, REPOSITORY


def test_counts_are_exact_with_two_steps_in_flight(engine_venv: Path, packages: Path, tiny_pair: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        env = {**os.environ, **CPU_ENVIRONMENT}
        paths = (packages, REPOSITORY / "benchmarks" / "plugin_cost")
        env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "TABLETUNE_SOCKET": f"{folder}/engine.sock"}
        script = Path(__file__).with_name("async_scheduler_run.py")
        shown = subprocess.run([engine_venv / "bin/python", script, tiny_pair], env=env, stdout=subprocess.PIPE, text=True, check=True)
    seen = json.loads(shown.stdout.splitlines()[-1])
    facts, counts, rolled = seen["hello"]["engine"], seen["counts"], seen["rolled"]
    assert (facts["runner"], facts["asyncScheduling"], seen["hello"]["active"]) == ("v2", True, True)
    assert facts["launchLengths"] == [0, 1, 3]  # runner V2 has graphs for these only
    assert {name: counts[name] for name in rolled} == rolled
    assert counts["requestSteps"] == counts["draftedSteps"]
    assert counts["violations"] == 0
    assert counts["swaps"] >= 3
    assert counts["exploringSteps"] > 0
    # The run was worth it: some outputs came for requests that had ended.
    assert seen["discarded"] > 10
