"""Objects in every state come from the small world of the operator's own tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "operator_decide"))
