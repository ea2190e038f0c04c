"""What several tiers share lies in tests/support and is imported by its module's name."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# Tests say nothing about speed: a slow moment of the machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
