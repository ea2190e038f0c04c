"""Objects of older versions are read by the operator's own tests' small world, and state files by the sidecar's."""

import sys
from pathlib import Path

for folder in ("sidecar", "operator_decide"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
