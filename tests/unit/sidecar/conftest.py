"""Makes the helpers that start the stand-in importable here too; they live beside its own tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
