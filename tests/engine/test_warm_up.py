"""The launched lengths run in a real engine before it is ready, and leave nothing behind."""

import json
from pathlib import Path

from live_engine import DRAFT_MODEL, WORKER_PROCESS, Account, Launcher, prompts

SHOW = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"out": SHOW},
    "loggers": {name: {"handlers": ["out"], "level": "INFO", "propagate": False} for name in ("vllm", "tabletune_engine")},
}


def test_every_length_runs_before_the_engine_is_ready_and_is_no_traffic(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "logging.json").write_text(json.dumps(LOGGING))
    logging = {"VLLM_LOGGING_CONFIG_PATH": str(tmp_path / "logging.json")}
    engine = launcher.use(DRAFT_MODEL, WORKER_PROCESS, TABLETUNE_WARM_UP_SECONDS="60", **logging)
    lines = engine.supervisor.ask("log", lines=400)["lines"]
    [ran] = [i for i, line in enumerate(lines) if "TableTune ran this engine's draft lengths before its first request" in line]
    [ready] = [i for i, line in enumerate(lines) if "Starting vLLM server" in line]
    assert ran < ready
    assert [f"B={B} k={k}" for B in (1, 2, 4, 8, 16) for k in (0, 1, 3) if f"B={B} k={k}" not in lines[ran]] == []

    counts = engine.plugin.ask("counts")
    assert (counts["steps"], counts["tokens"], counts["draftedSteps"], counts["chosen"]) == (0, 0, 0, [])

    change, replies = engine.counted(lambda: engine.complete_together(prompts(4, seed=11)))
    account = Account.of(replies)
    assert {name: change[name] for name in vars(account)} == vars(account)
    assert {k for _, k in change["chosen"]} == {3}  # the table is in force again
