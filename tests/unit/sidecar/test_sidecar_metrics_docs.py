"""docs/metrics.md and the collector are one: no metric without a line, no line without a metric, and the same words in both.

`python tests/unit/sidecar/test_sidecar_metrics_docs.py` prints the lines as they should be.
"""

from __future__ import annotations

import re
from pathlib import Path

from sidecar_views import NOTHING, busy, page

DOCS = Path(__file__).resolve().parents[3] / "docs"


def lines() -> list[str]:
    """The table's rows, from a view in which every metric has a sample."""
    return [
        f"| `{next(iter(family.samples)) if family.kind in ('counter', 'info') else family.name}` | {family.kind} "
        f"| {', '.join(f'`{label}`' for label in family.labels) or '-'} | {family.help} |"
        for family in page(busy())
    ]


def test_the_page_in_docs_is_what_the_collector_says() -> None:
    documented = [line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith("| `tabletune_")]
    assert documented == lines()


def test_every_metric_has_a_sample_when_everything_is_known() -> None:
    assert [family.name for family in page(busy()) if not family.samples] == []


def test_names_and_labels_are_the_same_before_anything_is_known() -> None:
    assert [(f.name, f.kind, f.help) for f in page(NOTHING)] == [(f.name, f.kind, f.help) for f in page(busy())]


def test_names_follow_prometheus_conventions() -> None:
    for family in page(busy()):
        assert re.fullmatch(r"tabletune_[a-z][a-z_]*[a-z]", family.name), family.name
        assert family.help.endswith(".")
        assert not re.search(r"micro|milli|percent|permille", family.name), "base units"


if __name__ == "__main__":
    print("\n".join(lines()))
