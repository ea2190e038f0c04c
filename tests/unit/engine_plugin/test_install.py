"""The copy that a pod's init container makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tabletune_engine.install import install

FIND = """
import json
from importlib.metadata import entry_points, version
found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "tabletune"]
register = found[0].load()
register()
import sys
print(json.dumps([len(found), register.__module__, sys.modules["tabletune_engine"].__path__[0], version("tabletune")]))
"""


def found_by_python(packages: Path, **env: str) -> list[object]:
    """What a Python without our development environment finds; -S: without its own site-packages either."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "TABLETUNE_SOCKET"}}
    shown = subprocess.run(
        [sys.executable, "-S", "-c", FIND],
        env=clean | {"PYTHONPATH": str(packages)} | env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in shown.stderr or env
    result = json.loads(shown.stdout)
    assert isinstance(result, list)
    return result


def test_importlib_finds_the_plugin_and_without_the_variable_it_does_nothing(tmp_path: Path) -> None:
    install(tmp_path / "engine")
    count, module, folder, version = found_by_python(tmp_path / "engine")
    assert (count, module) == (1, "tabletune_engine.plugin")
    assert folder == str(tmp_path / "engine" / "tabletune_engine")
    assert isinstance(version, str)


def test_without_vllm_the_plugin_complains_and_goes_on(tmp_path: Path) -> None:
    install(tmp_path / "engine")
    assert found_by_python(tmp_path / "engine", TABLETUNE_SOCKET=str(tmp_path / "engine.sock"))[0] == 1


def test_can_be_repeated_and_leaves_nothing_else(tmp_path: Path) -> None:
    install(tmp_path / "engine")
    (tmp_path / "engine" / "tabletune_engine" / "left_over.py").touch()
    before = (tmp_path / "engine" / "tabletune_engine" / "plugin.py").read_bytes()
    install(tmp_path / "engine")
    assert not (tmp_path / "engine" / "tabletune_engine" / "left_over.py").exists()
    assert (tmp_path / "engine" / "tabletune_engine" / "plugin.py").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_any_user_may_read_it(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        install(tmp_path / "engine")
    finally:
        os.umask(old)
    for path in [tmp_path / "engine", *(tmp_path / "engine").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
