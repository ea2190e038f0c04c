"""docs/metrics.md and the collectors are one: no metric without a line, no line without a metric, and the same words in both.

`python tests/unit/metrics/test_metrics_docs.py` prints the lines as they should be.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(tests / folder) for folder in ("support", "unit/sidecar", "unit/operator_decide")]

import operator_page
import sidecar_views
from prometheus_page import Family

from tabletune_operator.telemetry import OperatorView

DOCS = Path(__file__).resolve().parents[3] / "docs"


def shown() -> tuple[Family, ...]:
    """Pages in which every metric has a sample, the sidecar's first."""
    return (*sidecar_views.page(sidecar_views.busy()), *operator_page.page(operator_page.busy()))


def test_the_page_in_docs_is_what_the_collectors_say() -> None:
    documented = [line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith("| `tabletune_")]
    assert documented == [family.documented for family in shown()]


def test_every_metric_has_a_sample_when_everything_is_known() -> None:
    assert [family.name for family in shown() if not family.samples] == []


def test_names_and_help_are_the_same_before_anything_is_known() -> None:
    nothing = (*sidecar_views.page(sidecar_views.NOTHING), *operator_page.page(OperatorView()))
    assert [(f.name, f.kind, f.help) for f in nothing] == [(f.name, f.kind, f.help) for f in shown()]


def test_names_follow_prometheus_conventions() -> None:
    for family in shown():
        assert re.fullmatch(r"tabletune_[a-z][a-z_]*[a-z]", family.name), family.name
        assert family.help.endswith(".")
        assert not re.search(r"micro|milli|percent|permille", family.name), "base units"


def test_no_two_parts_have_a_metric_of_one_name() -> None:
    names = [family.name for family in shown()]
    assert len(set(names)) == len(names)


if __name__ == "__main__":
    print("\n".join(family.documented for family in shown()))
