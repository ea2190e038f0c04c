"""Copies the plugin to a folder that an engine's PYTHONPATH can name: `python3 -m tabletune_engine.install DEST`.

The init container of a pod runs it, again and again if it must: DEST is replaced as a whole, never patched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import tabletune
import tabletune_engine

ENTRY_POINTS = "[vllm.general_plugins]\ntabletune = tabletune_engine.plugin:register\n"
FILE_MODE, FOLDER_MODE = 0o644, 0o755  # the engine may run as any user


def install(destination: Path) -> None:
    """Write both packages and the metadata by which `importlib.metadata` finds the plugin. Safe to repeat."""
    destination = destination.resolve()
    fresh, old = (destination.with_name(f"{destination.name}.{word}-{os.getpid()}") for word in ("new", "old"))
    for package in (tabletune, tabletune_engine):
        source = Path(next(iter(package.__path__)))
        shutil.copytree(source, fresh / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    release = version("tabletune")
    info = fresh / f"tabletune-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tabletune\nVersion: {release}\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    _open_to_readers(fresh)
    if destination.exists():
        destination.replace(old)
    fresh.replace(destination)
    shutil.rmtree(old, ignore_errors=True)


def _open_to_readers(folder: Path) -> None:
    folder.chmod(FOLDER_MODE)
    for path in folder.rglob("*"):
        path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tabletune_engine.install", description="Copies TableTune's engine plugin to a folder."
    )
    parser.add_argument("destination", type=Path, help="folder for PYTHONPATH; replaced if it exists")
    install(parser.parse_args().destination)
    return 0


if __name__ == "__main__":
    sys.exit(main())
