"""What a run found, in words that `report.md`, the HTML report and `explain` share. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tabletune.graphs import GraphCells, capture_sizes
from tabletune.nodes import PPM
from tabletune.prediction import PredictionError, goodput_error, step_time_error
from tabletune.profile import Profile, largest_graph
from tabletune.table import MIN_SWITCH_GAIN
from tabletune.table_file import Capacity, TableFile
from tabletune.verdict import Load, worst_loss
from tabletune.words import noise_floor, percent

GRAPH_STRIDE = 16  # tokens between large graphs that vLLM captures by itself
CAPTURE_SIZES = "cudagraph_capture_sizes"
NO_HIGHER_CEILING = "No length loses more than the noise floor at its ceiling: raising it would win nothing there."


@dataclass(frozen=True, slots=True)
class EngineFlag:
    """A flag of `vllm serve`, and the rest of the sentence about it."""

    flag: str
    effect: str


def find_higher_ceiling(profile: Profile) -> EngineFlag | None:
    """What lifts the graph ceiling above every batch size measured; None: no length loses more than the noise there (NO_HIGHER_CEILING).

    Raises:
        ValueError: the profile has no ceilings.
    """
    worst = max(profile.ceilings, key=lambda c: c.above_micros / c.below_micros)
    win = 1 - worst.below_micros / worst.above_micros
    if win * PPM <= profile.noise_ppm or win <= MIN_SWITCH_GAIN:
        return None
    needed = max(c.batch_size for c in profile.cells) * (worst.draft_length + 1)
    return EngineFlag(
        f"--max-cudagraph-capture-size {-(-needed // GRAPH_STRIDE) * GRAPH_STRIDE}",
        f"would raise the ceiling above every batch size measured and win up to {percent(win)} of the step time just above "
        f"B={worst.batch_size} at k={worst.draft_length}. It costs start-up time and memory for more graphs, and vLLM then captures "
        "multiples of 8 and 16 tokens only, so measure again with it.",
    )


def find_matching_sizes(profile: Profile, lengths: Sequence[int]) -> EngineFlag | None:
    """What gives each batch of these launch lengths a graph of its own; None: each has one, or the engine cannot be asked."""
    engine = profile.engine
    cells = [(B, k) for B, k in GraphCells.of(engine).mismatched or () if k in lengths]
    largest, most = largest_graph(engine), engine.get("maxNumSeqs")
    if not cells or largest is None or most is None:
        return None
    sizes, present = capture_sizes(lengths, most, largest), len(engine["captureSizes"])
    return EngineFlag(
        f"--compilation-config {json.dumps({CAPTURE_SIZES: sizes}, separators=(',', ':'))!r}",
        f"would give every batch of the draft lengths {', '.join(map(str, lengths))} up to {max(sizes)} tokens a graph of its own. "
        f"At least {len(cells)} cell{'s have' if len(cells) > 1 else ' has'} none now, and a step there took two to four times as long "
        f"on an H200. It is computed, not measured: vLLM would capture {len(sizes)} sizes instead of {present}, "
        "which costs start-up time and memory. Give it to the target in place of its other capture flags, and TableTune measures again.",
    )


def say_ceiling(largest_graph: int) -> str:
    """`largest_graph`: tokens of the largest captured graph."""
    return f"The largest captured CUDA graph has {largest_graph} tokens; B (k + 1) tokens above it run without a graph."


def say_prefills(profile: Profile) -> str:
    """What requests the predicted tokens a second are for."""
    prefills = profile.prefills()
    if prefills is None:
        return "None was measured: predicted tokens a second are those of decode-only steps, which live traffic does not reach."
    return (
        f"Predicted tokens a second are for requests of {prefills.requests.prompt_tokens} prompt and {prefills.requests.output_tokens} "
        "output tokens (those of the live comparison): their share of steps with a prefill takes these times."
    )


def say_capacity(capacity: Capacity) -> str:
    """A phrase: what the KV cache holds, and what speculation takes of it."""
    change = capacity.speculation_tokens / capacity.off_tokens - 1
    return f"{capacity.speculation_tokens:,} tokens with speculation, {capacity.off_tokens:,} without: {percent(change, sign=True)}"


def say_prediction(loads: Sequence[Load]) -> str | None:
    """A phrase: how far the prediction was off; None when nothing was predicted, or no step was timed."""
    times, goodput = step_time_error(loads), goodput_error(loads)
    return None if times is None or goodput is None else f"step time off by {_error(times)}; tokens/s by {_error(goodput)}"


def say_worst_load(table: TableFile) -> str | None:
    """A phrase: where the table stands worst against the best fixed length; None without loads."""
    worst = worst_loss(table.loads)
    if worst is None:
        return None
    gain = percent(0 - worst.loss, sign=True)
    return f"B={worst.batch_size}: {gain} against the best fixed length there ({worst.setting}); noise {say_noise(table)}"


def say_noise(table: TableFile) -> str:
    """The noise floor of the live comparison; "assumed" where it was not measured (fewer than three repeats)."""
    return noise_floor(table.noise_ppm / PPM, assumed=table.noise_assumed)


def _error(error: PredictionError) -> str:
    return f"{percent(error.median)} at the median, {percent(error.worst)} at the worst (B={error.batch_size}, {error.setting})"
