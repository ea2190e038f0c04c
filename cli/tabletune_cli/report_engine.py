"""Sections of `tabletune report` on the engine: its graph ceilings, mismatched graph cells, changes of length, and KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from tabletune.findings import NO_HIGHER_CEILING, find_higher_ceiling, find_matching_sizes, say_capacity, say_ceiling
from tabletune.graphs import GraphCells
from tabletune.profile import largest_graph
from tabletune.transitions import is_bad, longest_pause_micros
from tabletune.words import percent
from tabletune_cli.explanation import Explanation
from tabletune_cli.markup import Html, bullets, element, join, table
from tabletune_cli.report_figures import milliseconds


def build_ceilings(e: Explanation) -> Html:
    """What a step costs past the largest captured graph, the flag that raises it, and what that would win."""
    profile = e.stored.profile
    largest = largest_graph(profile.engine)
    if largest is None:
        return element("p", "The engine captured no CUDA graph, or does not say which.")
    if not profile.ceilings:
        return element("p", f"{say_ceiling(largest)} No draft length was measured on both sides of it.")
    rows = [
        (
            f"k={c.draft_length}",
            str(c.batch_size),
            milliseconds(c.below_micros),
            milliseconds(c.above_micros),
            percent(c.above_micros / c.below_micros - 1, sign=True),
        )
        for c in profile.ceilings
    ]
    higher = find_higher_ceiling(profile)
    advice = (element("code", higher.flag), f" {higher.effect}") if higher else (NO_HIGHER_CEILING,)
    return join(
        (
            element("p", say_ceiling(largest)),
            table("Steps at the ceiling", ("length", "last B inside", "ms there", "ms at the next B", "jump"), rows),
            element("p", *advice),
        )
    )


def build_graph_cells(e: Explanation) -> Html:
    """Which cells would replay a graph that the target did not prepare, and whether the plugin cures them."""
    graphs = GraphCells.of(e.stored.profile.engine)
    if graphs.mismatched is None:
        return element("p", "The engine cannot be asked which cells (B, k) would replay a graph that its target did not prepare.")
    if not graphs.mismatched:
        return element("p", "None: at every batch size and launched draft length the drafter replays a graph that the target prepared.")
    count = f"{len(graphs.mismatched)} cell{'s' if len(graphs.mismatched) > 1 else ''}"
    fate = (
        "The plugin cures them: none stalls the engine, but such a step runs without its graph and takes longer."
        if graphs.cured
        else "They are not cured, and can stall the engine for seconds or end it: no table is built from them."
    )
    lengths = sorted({k for _, k in graphs.mismatched})
    matching = find_matching_sizes(e.stored.profile, e.stored.table.launch_lengths)
    return join(
        (
            element("p", f"In {count} the drafter would replay a CUDA graph that the target's step did not prepare. {fate}"),
            bullets(f"k={k} at B={_ranges(b for b, length in graphs.mismatched if length == k)}" for k in lengths),
            *([element("p", element("code", matching.flag), f" {matching.effect}")] if matching else []),
        )
    )


def build_transitions(e: Explanation) -> Html:
    """What happened when the table's changes of length were tried in the running engine."""
    profile = e.stored.profile
    if not profile.transitions:
        return element("p", "None was tried: the table has one length.")
    times, on_gpu = profile.step_times(), profile.engine.get("device") != "cpu"
    rows = [
        (
            f"k={t.from_length} to {t.to_length}",
            str(t.batch_size),
            str(t.tries),
            f"{t.worst_pause_micros / 1000:.0f}",
            f"{longest_pause_micros(t, times, on_gpu=on_gpu) / 1000:.0f}",
            str(t.failures),
            "bad: not in the table" if is_bad(t, times, on_gpu=on_gpu) else "good",
        )
        for t in profile.transitions
    ]
    columns = ("change", "B", "tries", "longest ms without a step", "may be", "failures", "judged")
    return table("Forced in the running engine, and by requests that come and go across the table's edge", columns, rows)


def build_capacity(e: Explanation) -> Html:
    """What speculation takes of the KV cache."""
    capacity = e.stored.table.capacity
    if capacity is None:
        return element("p", "Not known: an engine does not say how many tokens its KV cache holds.")
    return element("p", f"It holds {say_capacity(capacity)}.")


def _ranges(sizes: Iterable[int]) -> str:
    """`6, 9, 10-12`."""
    runs = [[b for _, b in run] for _, run in groupby(enumerate(sorted(sizes)), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
