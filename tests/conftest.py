"""What several tiers share lies in tests/support and is imported by its module's name."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
TEST_SECONDS = 900

sys.path.insert(0, str(HERE / "support"))

# A red run means the change, neither the dice nor a slow moment of the machine: examples are the same in every run, and nothing is timed.
settings.register_profile("alike", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, derandomize=False)
settings.load_profile("fuzz" if os.environ.get("TABLETUNE_FUZZ") else "alike")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On real parts the tests are limited, not their set-up: the first one on a fresh machine builds Kubernetes or installs vLLM."""
    for item in items:
        if HERE / "unit" not in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
