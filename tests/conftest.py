"""What several tiers share lies in tests/support and is imported by its module's name."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
TEST_SECONDS = 900

sys.path.insert(0, str(HERE / "support"))

# Tests say nothing about speed: a slow moment of the machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On real parts the tests are limited, not their set-up: the first one on a fresh machine builds Kubernetes or installs vLLM."""
    for item in items:
        if HERE / "unit" not in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
