"""The report says what the prediction rests on, what a ceiling costs, and which changes of length were tried."""

from dataclasses import replace

from tabletune.acceptance import Counts
from tabletune.formats import AcceptanceFile, TableFile
from tabletune.profile import Ceiling, Cell, Fingerprint, Measurement, Profile, Transition
from tabletune.regimes import PrefillCell, Requests
from tabletune.table import build_choices, table_of
from tabletune.verdict import Verdict, VerdictKind
from tabletune_tuner.report import to_report

PROFILE = Profile(
    fingerprint=Fingerprint.of({}),
    engine={"vllm": "0.33.0", "captureSizes": [1, 2, 512]},
    measurement=Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"),
    cells=(Cell(128, 3, 10_000, 0, 64), Cell(129, 3, 12_500, 0, 64)),
    baseline=(),
    skipped=(),
    noise_ppm=8000,
    prefill=(PrefillCell(128, 3, 70, 25_000, 400, 16),),
    requests=Requests(40, 256),
    ceilings=(Ceiling(3, 128, 10_000, 12_500),),
)
CHOICES = build_choices({128: {3: 32_000.0}, 129: {3: 26_000.0}})
TABLE = TableFile(table_of(CHOICES), Verdict(VerdictKind.TABLE, "TablePays", "It pays."), (3,), 8000, CHOICES, {}, (), None)
ACCEPTANCE = AcceptanceFile(Counts(10, 10, (10, 10, 10), (7, 5, 3)), 700, 160, "5f2b1c", "shipped sample", ())


def report(profile: Profile) -> str:
    return to_report(profile, ACCEPTANCE, TABLE, {})


def test_names_the_flag_that_raises_a_ceiling_and_what_it_wins() -> None:
    text = report(PROFILE)
    assert "| 3 | 128 | 10.00 | 12.50 | +25.0% |" in text
    assert "`--max-cudagraph-capture-size 528` would" in text  # 129 * 4 = 516
    assert "win up to 20.0 % of the step time just above B=128 at k=3" in text


def test_a_ceiling_within_the_noise_names_no_flag() -> None:
    text = report(replace(PROFILE, ceilings=(Ceiling(3, 128, 10_000, 10_050),)))
    assert "--max-cudagraph-capture-size" not in text
    assert "raising it would win nothing" in text
    assert "## Graph ceilings" not in report(replace(PROFILE, ceilings=()))


def test_names_the_sizes_that_give_every_batch_a_graph_where_some_have_none() -> None:
    assert "## Graph sizes" not in report(PROFILE)
    engine = {**PROFILE.engine, "maxNumSeqs": 256, "graphCells": {"mismatched": [[5, 1], [7, 3], [9, 2]], "cured": True}}
    text = report(replace(PROFILE, engine=engine))
    assert '`--compilation-config \'{"cudagraph_capture_sizes":[4,8,12,' in text  # of the launch set, which is {3} here
    assert "1 cell has none now" in text
    assert "instead of 3" in text
    assert "not measured" in text


def test_says_what_requests_the_prediction_is_for_or_that_it_is_decode_only() -> None:
    assert "requests of 40 prompt and 256 output tokens" in report(PROFILE)
    assert "| 128 | 3 | 70 | 25.00 | 10.00 |" in report(PROFILE)
    assert "predicted tokens a second are those of decode-only steps" in report(replace(PROFILE, prefill=()))


def test_says_which_changes_of_length_were_tried() -> None:
    tried = (Transition(3, 1, 128, 6, 14_000, 0), Transition(1, 3, 128, 5, 900_000, 0), Transition(3, 1, 129, 2, 14_000, 0))
    text = report(replace(PROFILE, transitions=(*tried, Transition(1, 3, 129, 0, 0, 2))))
    assert "| 3 | 1 | 128 | 6 | 14 | 500 | 0 |  |" in text
    assert "| 1 | 3 | 128 | 5 | 900 | 500 | 0 | bad: left out |" in text
    assert "| 3 | 1 | 129 | 2 | 14 | 500 | 0 | tried too seldom |" in text
    assert "| 1 | 3 | 129 | 0 | 0 | 500 | 2 | bad: left out |" in text
    on_cpu = report(replace(PROFILE, transitions=tried, engine={**PROFILE.engine, "device": "cpu"}))
    assert "| 1 | 3 | 128 | 5 | 900 | 2000 | 0 |  |" in on_cpu
    assert "## Changes of length" not in report(PROFILE)
