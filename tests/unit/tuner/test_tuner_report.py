"""The report's words about the live comparison."""

from dataclasses import replace

import pytest

from tabletune.acceptance import Counts
from tabletune.formats import AcceptanceFile, Capacity, TableFile
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.table import Choice, Table
from tabletune.verdict import Arm, Load, Predicted, Verdict, VerdictKind, gains
from tabletune_tuner.report import to_report

PROFILE = Profile(
    Fingerprint.of({}), {}, Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"), (Cell(8, 3, 4000, 0, 9),), (), (), 2000
)
ACCEPTANCE = AcceptanceFile(Counts(9, 9, (9, 9, 9), (6, 3, 1)), 700, 16, "", "sample", ())
K3, OFF = Arm(1000.0, 0.01, "k=3", 4000, Predicted(3800, 1050.0)), Arm(800.0, 0.01, "no speculation", 3000, Predicted(3000, 790.0))
LOADS = (Load(1, K3, K3, K3, OFF), Load(8, replace(K3, tokens_per_second=950.0), K3, K3, OFF, replace(K3, setting="k=1")))
CHOICES = (Choice(8, 3, {3: 1000.0}, 0.0, "best length"),)
TABLE = TableFile(Table.fixed(3, 8), Verdict(VerdictKind.TABLE, "TablePays", "It pays."), (3,), 8000, CHOICES, {}, LOADS, gains(LOADS))


def report(table: TableFile) -> str:
    return to_report(PROFILE, ACCEPTANCE, table, {})


def test_the_noise_stands_beside_the_gains_and_the_worst_load_is_told() -> None:
    text = report(TABLE)
    assert "A gain up to the noise of 0.8 % is none." in text
    assert "| 8 | 950.0 ± 9.5 (k=3) | 1,000.0 ± 10.0 (k=3) | 1,000.0 ± 10.0 (k=3) | 1,000.0 ± 10.0 (k=1) |" in text
    assert "Worst load of the table, B=8: -5.0 % against the best fixed length there (k=3); noise 0.8 %." in text
    assert "A gain up to the noise of 3.2 % (assumed: fewer than 3 repeats) is none." in report(
        replace(TABLE, noise_ppm=32_000, noise_assumed=True)
    )


def test_prediction_stands_beside_the_measurement() -> None:
    text = report(TABLE)
    assert "| 1 | no speculation | 3.00 | 3.00 | +0.0% | 790.0 | 800.0 | -1.2% |" in text
    assert text.count("| 1 | k=3 | 3.80 | 4.00 | -5.0% | 1,050.0 | 1,000.0 | +5.0% |") == 1  # three arms, one measurement
    assert "Errors: step time off by 5.0 % at the median, 5.0 % at the worst (B=1, k=3); tokens/s by " in text


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        pytest.param(Capacity(90_000, 100_000), "The KV cache holds 90,000 tokens with speculation, 100,000 without: -10.0 %.", id="known"),
        pytest.param(None, "", id="an engine does not say"),
    ],
)
def test_says_what_speculation_takes_of_the_kv_cache(capacity: Capacity | None, said: str) -> None:
    text = report(replace(TABLE, capacity=capacity))
    assert said in text
    assert ("## KV cache" in text) is bool(said)
