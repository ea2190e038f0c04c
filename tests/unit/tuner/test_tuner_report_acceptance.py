"""`report.md`: acceptance with its intervals, and what they take for granted."""

from dataclasses import replace

from tabletune.acceptance import Counts, Part
from tabletune.formats import AcceptanceFile, TableFile
from tabletune.profile import Fingerprint, Measurement, Profile
from tabletune.verdict import Verdict, VerdictKind
from tabletune_tuner.report import to_report

PROFILE = Profile(Fingerprint.of({}), {}, Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"), (), (), (), 0)
ACCEPTANCE = AcceptanceFile(Counts(1000, 1000, (1000,), (680,)), 700, 160, "5f2b1c", "shipped sample", ("The prompts look random.",))
BLOCKED = TableFile(None, Verdict(VerdictKind.BLOCKED, "NotVerified", "Nothing."), (1,), 0, (), {}, (), None)


def said(acceptance: AcceptanceFile) -> str:
    return to_report(PROFILE, acceptance, BLOCKED, {})


def test_shows_each_position_with_its_interval_and_the_warnings() -> None:
    text = said(ACCEPTANCE)
    assert "| position | drafted | kept | a | 95 % interval |" in text
    assert "| 1 | 1000 | 680 | 0.680 | 0.650 to 0.708 |" in text
    assert "take drafts as independent" in text
    assert "- The prompts look random." in text


def test_says_that_the_intervals_follow_the_parts() -> None:
    parts = (Part(Counts(500, 500, (500,), (380,)), 1024), Part(Counts(500, 500, (500,), (300,)), 4096))
    text = said(replace(ACCEPTANCE, parts=parts))
    assert "as wide as the 2 parts of the prompts differ" in text
    assert "0.650 to 0.708" not in text
    assert "a at 1024 tokens of context: 0.760\n" in text
    assert "a at 4096 tokens of context: 0.600\n" in text
