"""The counters: every definition of docs/protocol.md, on steps written out by hand."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from vllm_shapes import Output, add_up, outputs, step

from tabletune.channel import MAX_LINE_BYTES, to_answer
from tabletune_engine.recorder import KEPT_SAMPLES, MAX_CELLS, Recorder, _Samples

MICRO = 1_000  # nanoseconds


def run(recorder: Recorder, out: Output, kept: Mapping[str, int], at_micros: int = 0) -> None:
    """One step from its schedule to its output, as in an engine that waits for it."""
    recorder.scheduled(out, at_micros * MICRO)
    finish(recorder, out, kept)


def finish(recorder: Recorder, out: Output, kept: Mapping[str, int]) -> None:
    for request_id, drafts in out.scheduled_spec_decode_tokens.items():
        if request_id in kept:
            recorder.verified(len(drafts), kept[request_id], request_id)
    recorder.updated(out, outputs({request_id: count + 1 for request_id, count in kept.items()}))


def test_counts_by_position_what_was_drafted_and_kept() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    run(recorder, step(3, new={"a": 20, "b": 20}), kept={"a": 0, "b": 0})
    run(recorder, step(3, {"a": 3, "b": 3}), kept={"a": 2, "b": 0})
    run(recorder, step(1, {"a": 3, "b": 3}), kept={"a": 3, "b": 1})
    run(recorder, step(1, {"a": 1, "b": 1}), kept={"a": 1, "b": 0})
    assert recorder.positions() == (6, [6, 4, 4], [4, 2, 1])
    assert (recorder.steps, recorder.tokens, recorder.request_steps, recorder.violations) == (4, 15, 6, 0)
    assert recorder.chosen() == [[2, 1, 2], [2, 3, 2]]
    assert (recorder.batch_size_last, recorder.draft_length_last) == (2, 1)


def test_a_drafter_that_finds_nothing_lowers_the_coverage() -> None:
    recorder = Recorder(max_batch_size=8, longest=4)
    run(recorder, step(4, new={"a": 20}), kept={"a": 0})
    run(recorder, step(4, {"a": 0}), kept={"a": 0})
    run(recorder, step(4, {"a": 2}), kept={"a": 1})
    assert recorder.request_steps == 2
    assert recorder.positions() == (1, [1, 1, 0, 0], [1, 0, 0, 0])


def test_length_zero_asks_for_no_draft() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    run(recorder, step(0, new={"a": 20}), kept={"a": 0})
    run(recorder, step(3, {"a": 0}), kept={"a": 0})
    assert recorder.request_steps == 0
    run(recorder, step(0, {"a": 3}), kept={"a": 1})
    assert recorder.request_steps == 1


def test_with_two_steps_in_flight_each_output_meets_its_own_step() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    first, second, third = step(3, new={"a": 20}), step(1, {"a": 3}), step(0, {"a": 1})
    recorder.scheduled(first, 0)
    recorder.scheduled(second, 0)
    finish(recorder, first, {"a": 0})
    recorder.scheduled(third, 0)
    finish(recorder, second, {"a": 2})
    finish(recorder, third, {"a": 1})
    assert recorder.positions() == (2, [2, 1, 1], [2, 1, 0])
    assert (recorder.request_steps, recorder.tokens, recorder.violations) == (2, 6, 0)


def test_output_of_a_request_that_ended_meanwhile_is_not_counted() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    run(recorder, step(3, new={"a": 20, "b": 20}), kept={"a": 0, "b": 0})
    run(recorder, step(3, {"a": 3, "b": 3}), kept={"a": 1})
    assert recorder.positions() == (1, [1, 1, 1], [1, 0, 0])
    assert recorder.request_steps == 1


def test_a_request_left_out_for_a_step_keeps_its_older_length() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    run(recorder, step(3, new={"a": 20, "b": 20}), kept={"a": 0, "b": 0})
    run(recorder, step(0, {"a": 3}), kept={"a": 0})
    run(recorder, step(0, {"a": 0, "b": 3}), kept={"a": 0, "b": 3})
    assert (recorder.request_steps, recorder.violations) == (2, 0)
    assert recorder.positions() == (2, [2, 2, 2], [1, 1, 1])


def test_more_drafts_than_chosen_are_violations() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    run(recorder, step(1, new={"a": 20, "b": 20}), kept={"a": 0, "b": 0})
    run(recorder, step(1, {"a": 3, "b": 1}), kept={"a": 0, "b": 0})
    assert recorder.violations == 1
    run(recorder, step(1, {"a": 3, "b": 3}, new={"c": 9}), kept={"a": 0, "b": 0, "c": 0})
    assert recorder.violations == 3


def test_drafts_that_vllm_pads_a_first_step_with_do_not_count() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    padded = step(3, new={"a": 4})
    padded.scheduled_spec_decode_tokens["a"] = [-1, -1, -1]
    run(recorder, padded, kept={"a": 0})
    assert (recorder.positions()[0], recorder.request_steps, recorder.violations, recorder.tokens) == (0, 0, 0, 1)


def cell(B: int, k: int, regime: str, times: tuple[int, int, int, int]) -> dict[str, object]:
    """`times`: count, total, median and spread."""
    names = ("count", "totalMicros", "medianMicros", "spreadMicros")
    return {"batchSize": B, "draftLength": k, "regime": regime} | dict(zip(names, times, strict=True))


def test_step_time_of_decode_is_between_two_steps_of_the_same_cell() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    recorder.record(on=True)
    for at, out in [
        (0, step(3, {"a": 3})),
        (100, step(3, {"a": 3})),
        (220, step(3, {"a": 3})),
        (900, step(1, {"a": 3, "b": 3})),
        (1_000, step(1, {"a": 3, "b": 3})),
        (1_600, step(1, {"a": 1, "b": 1})),
        (1_700, step(1, {"a": 1, "b": 0})),
        (1_800, step(1, {"a": 1, "b": 0})),
    ]:
        recorder.scheduled(out, at * MICRO)
    assert recorder.cells() == [cell(1, 3, "decode", (2, 220, 110, 10)), cell(2, 3, "decode", (1, 100, 100, 0))]


def test_the_time_until_the_next_step_belongs_to_a_step_with_a_prefill_and_those_beside_it() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    recorder.record(on=True)
    for at, out in [
        (0, step(3, {"a": 3})),
        (100, step(3, {"a": 3})),
        (210, step(3, {"a": 3}, new={"b": 60})),  # the step before it took 110, and is beside it
        (1_000, step(3, {"a": 3}, new={"c": 70})),  # 790, at most 64 prompt tokens
        (1_900, step(3, {"a": 3, "b": 3})),  # 900, at most 256
        (1_950, step(3, {"a": 3, "b": 3})),
        (2_020, step(3, {"a": 3, "b": 3})),  # the third one after it
        (2_140, step(3, {"a": 3, "b": 3})),
    ]:
        recorder.scheduled(out, at * MICRO)
    assert recorder.cells() == [
        cell(1, 3, "decode", (1, 100, 100, 0)),
        cell(1, 3, "beside", (1, 110, 110, 0)),
        cell(2, 3, "decode", (1, 120, 120, 0)),
        cell(2, 3, "beside", (2, 120, 60, 10)),
        cell(2, 3, "prefill", (1, 790, 790, 0)) | {"promptTokens": 64, "totalPromptTokens": 60},
        cell(2, 3, "prefill", (1, 900, 900, 0)) | {"promptTokens": 256, "totalPromptTokens": 70},
    ]


def test_steps_of_mixed_lengths_are_in_no_cell_with_a_prefill_or_without() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    for at, out in [
        (0, step(3, {"a": 2, "b": 3})),
        (100, step(3, {"a": 2, "b": 3}, new={"c": 30})),
        (200, step(3, {"a": 2, "b": 3, "c": 3})),
        (300, step(3, {"a": 2, "b": 3, "c": 3})),
    ]:
        recorder.scheduled(out, at * MICRO)
    assert recorder.cells() == []


def test_idle_time_is_no_step_time() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    for at, out in [(0, step(3, {"a": 3})), (100, step(3)), (900_000, step(3, {"a": 3})), (900_100, step(3, {"a": 3}))]:
        recorder.scheduled(out, at * MICRO)
    assert [(cell["count"], cell["totalMicros"]) for cell in recorder.cells()] == [(1, 100)]


def test_a_chunk_of_a_prompt_and_a_resumed_request_make_a_prefill_step() -> None:
    recorder = Recorder(max_batch_size=8, longest=3)
    chunk = step(3, {"a": 3, "b": 0})
    chunk.num_scheduled_tokens["b"], chunk.scheduled_cached_reqs.num_output_tokens = 1, [5, 0]
    for at in (0, 1, 2):
        recorder.scheduled(chunk, at * MICRO)
    for at in (10, 12):
        recorder.scheduled(step(3, {"a": 3}, resumed={"c": 40, "d": 41}), at * MICRO)
    found = [(cell["batchSize"], cell["regime"], cell["count"], cell["totalPromptTokens"]) for cell in recorder.cells()]
    assert found == [(2, "prefill", 3, 3), (3, "prefill", 1, 81)]


def test_samples_are_bounded_cleared_by_record_and_gone_without_it() -> None:
    recorder = Recorder(max_batch_size=1, longest=0)
    recorder.record(on=True)
    for n in range(2 * KEPT_SAMPLES):
        recorder.scheduled(step(0, {"a": 0}), (n * 100 if n < KEPT_SAMPLES else n * 200) * MICRO)
    [cell] = recorder.cells()
    assert (cell["count"], cell["medianMicros"]) == (2 * KEPT_SAMPLES - 1, 200)
    recorder.record(on=True)
    assert recorder.cells()[0] == cell | {"medianMicros": None, "spreadMicros": None}
    recorder.record(on=False)
    assert recorder.cells()[0]["count"] == 2 * KEPT_SAMPLES - 1


def test_an_engine_of_many_years_counts_on_and_each_answer_fits_a_line() -> None:
    recorder = Recorder(max_batch_size=1024, longest=15)
    years = 10**15  # microseconds: 31 of them
    for counters in (recorder._cell_counts, recorder._cell_micros, recorder._cell_prompt_tokens, recorder._chosen):
        counters[:] = [years] * len(counters)
    recorder.steps = recorder.tokens = 2**64
    sample = _Samples()
    sample.add(10**9)
    recorder._samples = dict.fromkeys(range(len(recorder._cell_counts)), sample)
    run(recorder, step(1, {"a": 1}), {"a": 1}, at_micros=years)
    assert (recorder.steps, recorder.tokens) == (2**64 + 1, 2**64 + 2)
    cells, chosen = recorder.cells(), recorder.chosen()
    assert (len(cells), len(chosen)) == (MAX_CELLS, 1025 * 16)
    assert [1, 1, years + 1] in chosen
    assert max(len(to_answer(1, {"cells": cells})), len(to_answer(1, {"chosen": chosen}))) < MAX_LINE_BYTES


@st.composite
def steps(draw: st.DrawFn) -> tuple[Output, dict[str, int]]:
    """A step of some of a few requests, and how many drafts are kept of those that have not ended meanwhile."""
    drafts = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4))
    new = draw(st.dictionaries(st.sampled_from("efg"), st.integers(1, 9), max_size=2, min_size=not drafts))
    made = step(draw(st.integers(0, 3)), drafts, new)
    padded = {request_id: [-1] * 3 for request_id in new if draw(st.booleans())}
    kept = {request_id: draw(st.integers(0, count)) for request_id, count in drafts.items()} | dict.fromkeys(new, 0)
    made.scheduled_spec_decode_tokens |= padded
    return made, {request_id: count for request_id, count in kept.items() if draw(st.booleans())}


@given(st.lists(steps(), max_size=20))
def test_the_engines_own_statistics_count_as_a_look_at_each_request_does(plan: list[tuple[Output, dict[str, int]]]) -> None:
    by_request, by_statistics = Recorder(8, 3), Recorder(8, 3)
    for out, kept in plan:
        run(by_request, out, kept)
        verified = [(len(d), kept[request_id]) for request_id, d in out.scheduled_spec_decode_tokens.items() if request_id in kept]
        by_statistics.scheduled(out, 0)
        by_statistics.updated(out, outputs({request_id: count + 1 for request_id, count in kept.items()}, add_up(verified, longest=3)))
    for recorder in (by_request, by_statistics):
        drafted_steps, drafted, kept_drafts = recorder.positions()
        assert drafted_steps <= sum(len(kept) for _, kept in plan)
        assert all(k <= d for k, d in zip(kept_drafts, drafted, strict=True))
    assert by_request.positions() == by_statistics.positions()
    assert (by_request.request_steps, by_request.tokens) == (by_statistics.request_steps, by_statistics.tokens)


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5), max_size=20))
def test_what_must_not_exceed_never_does(plan: list[list[tuple[int, int]]]) -> None:
    """Each step: for each of its requests the number of drafts, and how many of them at most are kept."""
    recorder = Recorder(max_batch_size=5, longest=3)
    drafted, kept, last = [0] * 3, [0] * 3, 0
    for requests in plan:
        ids = [f"r{i}" for i in range(len(requests))]
        drafts = {request_id: count for request_id, (count, _) in zip(ids, requests, strict=True)}
        keeps = {request_id: min(pair) for request_id, pair in zip(ids, requests, strict=True)}
        run(recorder, step(3, drafts), keeps)
        for request_id in ids:
            for i in range(3):
                drafted[i] += drafts[request_id] > i
                kept[i] += keeps[request_id] > i
        last += len(requests)
    drafted_steps, seen_drafted, seen_kept = recorder.positions()
    assert (seen_drafted, seen_kept) == (drafted, kept)
    assert all(k <= d for k, d in zip(kept, drafted, strict=True))
    assert drafted_steps == drafted[0] <= last
