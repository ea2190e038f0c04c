"""Runs the supervisor by path, in an image that does not know our packages: `python3 .../supervise.py --run-dir DIR`."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # The search path began with this file's own folder, where our module names would hide others.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("tabletune_engine.supervisor", run_name="__main__", alter_sys=True)
