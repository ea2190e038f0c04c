"""The parts of this tier: an engine environment, the tiny pair, an installed plugin, a supervisor."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_engine import Launcher, eventually, made_by

from tabletune.channel import Channel
from tabletune_engine.install import install


@pytest.fixture(scope="session")
def engine_venv() -> Path:
    """A virtual environment with vLLM for CPUs."""
    return made_by("engine", "TABLETUNE_ENGINE_VENV")


@pytest.fixture(scope="session")
def tiny_pair() -> Path:
    """A folder with a tiny `target` and a `draft` that agrees with it part of the time."""
    return made_by("tiny", "TABLETUNE_TINY")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin as the init container copies it."""
    destination = tmp_path_factory.mktemp("plugin") / "engine"
    install(destination)
    return destination


@pytest.fixture(scope="session")
def launcher(packages: Path, engine_venv: Path, tiny_pair: Path) -> Iterator[Launcher]:
    """The supervisor, run by path in a Python that does not know our packages."""
    run_dir = Path(tempfile.mkdtemp(prefix="tt-"))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = packages / "tabletune_engine" / "supervise.py"
    process = subprocess.Popen([engine_venv / "bin/python", script, "--run-dir", run_dir], env=clean, stdout=sys.stdout.fileno())
    eventually((run_dir / "supervisor.sock").exists, 60, "the supervisor listens")
    yield Launcher(Channel(str(run_dir / "supervisor.sock"), timeout=60), run_dir, engine_venv, tiny_pair)
    process.terminate()
    process.wait(60)
    shutil.rmtree(run_dir, ignore_errors=True)
