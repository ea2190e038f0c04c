"""The pages are those of real collectors: of the sidecar from its given views, of the operator from the small world at work."""

import sys
from pathlib import Path

for folder in ("sidecar", "operator_decide"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
