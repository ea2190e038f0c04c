"""docs/conditions.md and the list in code are one: no reason without a page, no page without a reason."""

from __future__ import annotations

import re
from pathlib import Path

from tabletune_operator.conditions import DELETING, NOT_STALLED, REASONS, SETTLED

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "conditions.md").read_text()


def rows() -> list[tuple[str, str, str, str, str]]:
    """Section, reason, status, meaning, what to do."""
    found = []
    section = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        match = re.fullmatch(r"\| `(\w+)` \| (\w+) \| (.+) \| (.+) \|", line)
        if match:
            found.append((section, *match.groups()))
    return found


def test_every_reason_has_an_entry_with_its_status_and_no_entry_lacks_a_reason() -> None:
    documented = [(section, reason, status) for section, reason, status, *_ in rows()]
    shipped = [(reason.type, reason.name, reason.status) for reason in REASONS if reason.name != DELETING]
    assert sorted(documented) == sorted(shipped)
    assert all(word in PAGE for word in (DELETING, SETTLED, NOT_STALLED))


def test_every_entry_says_what_to_do() -> None:
    assert all(len(meaning) > 10 and cure.endswith(".") for *_, meaning, cure in rows())


def test_reasons_are_stable_words_that_kubernetes_takes() -> None:
    names = [(reason.type, reason.name) for reason in REASONS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]{2,63}", name) for _, name in names)
