"""`tabletune report`: both regimes, what the engine's graphs and KV cache cost, and how far the prediction was off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from report_page import Page
from stored_example import build_files

from tabletune.formats import ACCEPTANCE, PROFILE, TABLE, TableFile, parse_acceptance, parse_profile, parse_table
from tabletune.profile import Ceiling, Profile, Transition
from tabletune.regimes import PrefillCell, Requests
from tabletune.verdict import Load
from tabletune_cli.explanation import Explanation, explain_table
from tabletune_cli.markup import Html
from tabletune_cli.report_engine import build_capacity, build_ceilings, build_graph_cells, build_transitions
from tabletune_cli.report_live import build_live, build_prediction
from tabletune_cli.report_sections import build_conditions, build_goodput, build_left_out, build_verdict
from tabletune_cli.report_steps import build_prefills
from tabletune_cli.stored import Stored

FILES = build_files()
PROFILE_READ, TABLE_READ = parse_profile(FILES[PROFILE]), parse_table(FILES[TABLE])
PREFILLS = replace(
    PROFILE_READ,
    prefill=(
        PrefillCell(8, 1, 60, 12_360, 100, 16),
        PrefillCell(8, 3, 200, 14_460, 100, 16),
        PrefillCell(128, 1, 20_000, 65_000, 100, 16),
    ),
    baseline_prefill=(PrefillCell(8, 0, 64, 7_340, 100, 16),),
    requests=Requests(180, 256),
)


def explained(profile: Profile = PROFILE_READ, table: TableFile = TABLE_READ) -> Explanation:
    return explain_table(Stored(profile, parse_acceptance(FILES[ACCEPTANCE]), table))


def said(content: Html | None) -> str:
    """The text of a section, cells and paragraphs apart by ` | `."""
    assert content is not None
    page = Page(content)
    assert page.open == []
    return page.sections[""]


def with_facts(**facts: Any) -> Profile:
    return replace(PROFILE_READ, engine={**PROFILE_READ.engine, **facts})


def test_shows_steps_with_a_prefill_by_prompt_tokens_beside_the_decode_only_step() -> None:
    text = said(build_prefills(explained(PREFILLS)))
    assert "B | prompt tokens in the step | off | k=1 | k=3 | " in text
    assert "8 | 1 to 64 | 7.34 (2.00×) | 12.36 (3.00×) | n/m | " in text  # decode only: 3.67 and 4.12 ms
    assert "8 | 65 to 256 | n/m | n/m | ▶ 14.46 (3.00×) | " in text
    assert "128 | 4,097 and more | n/m | ▶ 65.00 (10.00×) | n/m | " in text
    assert "requests of 180 prompt and 256 output tokens" in text


def test_the_warmest_colour_is_the_largest_multiple() -> None:
    page = Page(build_prefills(explained(PREFILLS)))
    shades = [value for tag, name, value in page.attributes if (tag, name) == ("td", "style")]
    assert shades[-1] == "background:#f2a05f"
    assert shades.count("background:#f2a05f") == 1


def test_says_in_one_sentence_that_no_prefill_was_measured() -> None:
    page = Page(build_prefills(explained()))
    assert page.tags == ["p"]
    assert page.sections[""].startswith("None was measured: predicted tokens a second are those of decode-only steps")


def test_goodput_says_what_it_is_made_of() -> None:
    assert "B · τ(k) / T(B,k), in tokens a second" in said(build_goodput(explained()))
    assert "B · τ(k) / T(B,k), steps with a prefill included, in tokens a second" in said(build_goodput(explained(PREFILLS)))


def test_names_the_flag_that_raises_a_ceiling_and_what_it_wins() -> None:
    page = Page(build_ceilings(explained(replace(with_facts(captureSizes=[1, 384]), ceilings=(Ceiling(3, 96, 8_000, 10_000),)))))
    text = page.sections[""]
    assert "The largest captured CUDA graph has 384 tokens" in text
    assert "k=3 | 96 | 8.00 | 10.00 | +25.0 % | " in text
    assert "--max-cudagraph-capture-size 512 would raise the ceiling" in text  # 128 * 4
    assert "win up to 20.0 % of the step time just above B=96 at k=3" in text
    assert "code" in page.tags


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        pytest.param(PROFILE_READ, "captured no CUDA graph, or does not say which", id="sizes not known"),
        pytest.param(with_facts(captureSizes=[1, 1024]), "No draft length was measured on both sides of it", id="out of reach"),
        pytest.param(
            replace(with_facts(captureSizes=[1, 384]), ceilings=(Ceiling(3, 96, 8_000, 8_010),)),
            "raising it would win nothing there",
            id="within the noise",
        ),
    ],
)
def test_names_no_flag_where_none_wins(profile: Profile, text: str) -> None:
    page = said(build_ceilings(explained(profile)))
    assert text in page
    assert "--max-cudagraph-capture-size" not in page


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        pytest.param(None, "The engine cannot be asked", id="unknown"),
        pytest.param({"mismatched": [], "cured": False}, "None: at every batch size", id="none"),
        pytest.param(
            {"mismatched": [[6, 1], [10, 0], [12, 0], [11, 0], [9, 1]], "cured": True},
            "In 5 cells the drafter would replay a CUDA graph that the target's step did not prepare. The plugin cures them: ",
            id="cured",
        ),
        pytest.param({"mismatched": [[6, 1]], "cured": False}, "In 1 cell the drafter would", id="one, not cured"),
    ],
)
def test_says_which_graph_cells_are_mismatched_and_whether_they_are_cured(cells: dict[str, Any] | None, text: str) -> None:
    page = said(build_graph_cells(explained(with_facts(graphCells=cells))))
    assert text in page
    assert ("k=0 at B=10-12 | k=1 at B=6, 9 | " in page) is (cells is not None and len(cells["mismatched"]) == 5)
    assert ("They are not cured" in page) is (cells == {"mismatched": [[6, 1]], "cured": False})


def test_names_the_graph_sizes_that_leave_no_cell_mismatched() -> None:
    cells = {"mismatched": [[5, 1]], "cured": True}
    page = Page(build_graph_cells(explained(with_facts(graphCells=cells, maxNumSeqs=128, captureSizes=[1, 2, 4, 8]))))
    assert "code" in page.tags
    assert '--compilation-config \'{"cudagraph_capture_sizes":[2,4,6,8' in page.sections[""]
    assert "1 cell has none now" in page.sections[""]
    assert "--compilation-config" not in said(build_graph_cells(explained(with_facts(graphCells=cells))))  # sizes not known


def test_shows_the_changes_of_length_that_were_tried() -> None:
    tried = (Transition(3, 1, 64, 5, 12_300, 0), Transition(1, 3, 64, 5, 9_000_000, 0), Transition(1, 3, 65, 5, 8_000, 1))
    text = said(build_transitions(explained(replace(PROFILE_READ, transitions=tried))))
    assert "k=3 to 1 | 64 | 5 | 12 | 500 | 0 | good | " in text
    assert "k=1 to 3 | 64 | 5 | 9000 | 500 | 0 | bad: not in the table | " in text
    assert "k=1 to 3 | 65 | 5 | 8 | 500 | 1 | bad: not in the table | " in text
    assert "one length" in said(build_transitions(explained(replace(PROFILE_READ, transitions=()))))


def test_says_what_speculation_takes_of_the_kv_cache() -> None:
    assert "518,288 tokens with speculation, 561,920 without: -7.8 %" in said(build_capacity(explained()))
    assert "does not say" in said(build_capacity(explained(table=replace(TABLE_READ, capacity=None))))


def test_shows_the_prediction_beside_the_measurement_with_median_and_worst_error() -> None:
    text = said(build_prediction(explained()))
    # Step times: 3580 for 3600 and 6500 for 6630; the table and k=1 share their windows at B=128.
    assert "Step time off by 1.3 % at the median, 2.0 % at the worst (B=128, k=1); tokens/s by 1.2 % at the median, 2.0 %" in text
    assert text.count("128 | k=1 | 6.50 | 6.63 | -2.0 % | 33,745 | 33,083 | +2.0 % | ") == 1
    assert "decode-only steps" in text
    assert "steps with a prefill included" in said(build_prediction(explained(PREFILLS)))


def test_says_that_nothing_was_predicted() -> None:
    def forget(load: Load) -> Load:
        arms = {name: replace(load.arm(name), predicted=None) for name in ("table", "present", "fixed", "off")}
        return replace(load, **arms, fixed_here=None)

    unpredicted = replace(TABLE_READ, loads=tuple(forget(x) for x in TABLE_READ.loads))
    assert "No arm was both predicted and measured" in said(build_prediction(explained(table=unpredicted)))


def test_compares_the_table_with_the_best_fixed_length_of_each_load() -> None:
    text = said(build_live(explained()))
    assert "64 | k=3 | 22,039 | 22,010 | -0.1 % (noise 0.8 %): no gain | " in text
    assert "128 | k=1 | 33,083 | 33,083 | +0.0 % (noise 0.8 %): no gain | " in text  # not k=3, the best one for all loads
    assert "Worst load of the table, B=64: -0.1 % against the best fixed length there (k=3); noise 0.8 %." in text


@pytest.mark.parametrize(
    ("build", "words"), [(build_live, "assumed, as fewer than three"), (build_conditions, "0.8 % (assumed) of the live")]
)
def test_says_that_the_noise_is_assumed(build: Callable[[Explanation], Html], words: str) -> None:
    assert words in said(build(explained(table=replace(TABLE_READ, noise_assumed=True))))
    assert "assumed" not in said(build(explained()))


def test_names_the_loads_that_the_verdict_holds_for() -> None:
    text = said(build_verdict(explained()))
    assert "Best at | B=128 | Level with the best at | B=1, 64 | " in text
    assert "Behind the best" not in text


def test_warnings_of_the_run_stand_before_what_was_left_out() -> None:
    assert said(build_left_out(explained())).startswith("maxDraftLength 3 is above the 2 tokens that the drafter was trained for. | k=2 at")
