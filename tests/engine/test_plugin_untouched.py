"""Without its variable, the plugin leaves vLLM's own classes alone."""

import json
import os
import subprocess
from pathlib import Path

from live_engine import CPU_ENVIRONMENT

LOOK = """
import json
from vllm.v1.core.sched import scheduler
from vllm.v1.worker import worker_base
owned = ((scheduler.Scheduler, "__init__"), (worker_base.WorkerWrapperBase, "init_device"))
before = [getattr(*one) for one in owned]
from vllm.plugins import load_general_plugins
import os, sys
for socket in sys.argv[1:]:  # a process for each, which has loaded vLLM already
    if os.fork() == 0:
        os.environ.update({"TABLETUNE_SOCKET": socket} if socket else {})
        load_general_plugins()
        print(json.dumps({
            "found": "tabletune_engine.plugin" in sys.modules,
            "touched": [getattr(*one) is not was for one, was in zip(owned, before)],
            "hooks": "tabletune_engine.hooks" in sys.modules,
            "triton": any("rejection_sampler" in name for name in sys.modules),
        }), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_touches_vllm_only_when_asked(engine_venv: Path, packages: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TABLETUNE_SOCKET"}
    env |= CPU_ENVIRONMENT | {"PYTHONPATH": str(packages)}
    argv = [engine_venv / "bin/python", "-c", LOOK, "", tmp_path / "engine.sock"]
    shown = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True)
    assert [json.loads(line) for line in shown.stdout.splitlines() if line.startswith("{")] == [
        {"found": True, "touched": [asked, asked], "hooks": asked, "triton": False} for asked in (False, True)
    ]
