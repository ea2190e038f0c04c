"""Goodput of each draft length over batch size, with the steps of the table, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from textwrap import shorten
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

from tabletune.table import Table
from tabletune.words import percent
from tabletune_cli.explanation import Explanation, present_table
from tabletune_cli.plot_style import FAINT, INK, new_figure, save, say_measured

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442", "#999999")
MARKERS = "osD^vPX*"
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.5), (7, 2, 1, 2), (3, 1), (2, 2), (6, 1, 1, 1), (4, 4))


@dataclass(frozen=True, slots=True)
class _Line:
    """How a length is drawn: always with the same colour, marker and dash."""

    color: str
    marker: str
    dashes: tuple[float, ...]


def draw_goodput(e: Explanation, target: Path | BinaryIO) -> None:
    """Goodput by length over batch size, relative to no speculation, with the table's steps; raw tokens/s in a small panel."""
    figure = new_figure(_goodput_title(e), say_measured(e))
    axes = figure.add_axes((0.1, 0.125, 0.565, 0.65))
    raw = figure.add_axes((0.765, 0.125, 0.215, 0.65))
    relative = all(r.off_goodput for r in e.rows)
    base = {r.batch_size: (r.off_goodput or 1.0) if relative else min(r.choice.goodput.values()) for r in e.rows}
    styles = {k: _Line(OKABE_ITO[i % 8], MARKERS[i % 8], DASHES[i % 8]) for i, k in enumerate(e.lengths)}
    curves = {k: {r.batch_size: r.choice.goodput[k] for r in e.rows if k in r.choice.goodput} for k in e.lengths}
    _draw_noise_band(axes, e, base)
    ends: list[tuple[float, str, str]] = []
    for k, points in curves.items():
        shown = {b: (g / base[b] - 1) * 100 for b, g in points.items()}
        _draw_curve(axes, shown, styles[k], _spreads(e, k))
        _draw_curve(raw, points, styles[k], {})
        last = max(shown)
        ends.append((shown[last], f"k={k}", styles[k].color))
    if off := {r.batch_size: r.off_goodput for r in e.rows if r.off_goodput}:
        raw.plot(list(off), list(off.values()), color=FAINT, linewidth=1.2)
        raw.annotate("off", (max(off), off[max(off)]), xytext=(4, 0), textcoords="offset points", fontsize=7.5, color=FAINT, va="center")
    if relative:
        axes.axhline(0, color=FAINT, linewidth=1)
        ends.append((0.0, "off", FAINT))
    if e.stored.table.table:
        _draw_steps(axes, e, e.stored.table.table, curves, base, is_present=False, label="table")
    if present := present_table(e.stored):
        name, table = present
        _draw_steps(axes, e, table, curves, base, is_present=True, label=f"present: {name}")
    _draw_edges(axes, e)
    _label_ends(axes, ends)
    _finish_goodput_axes(axes, raw, e, relative=relative)
    save(figure, target)


def _spreads(e: Explanation, length: int) -> dict[int, float]:
    return {c.batch_size: c.spread_micros / c.step_time_micros for c in e.stored.profile.cells if c.draft_length == length}


def _draw_curve(axes: Axes, points: Mapping[int, float], style: _Line, spreads: Mapping[int, float]) -> None:
    xs, ys = list(points), list(points.values())
    axes.plot(
        xs,
        ys,
        color=style.color,
        marker=style.marker,
        dashes=style.dashes or (None, None),
        markersize=4.5,
        linewidth=1.6,
        zorder=4,
        markeredgecolor="white",
        markeredgewidth=0.6,
    )
    if spreads:
        low = [y - (100 + y) * spreads.get(x, 0) for x, y in points.items()]
        high = [y + (100 + y) * spreads.get(x, 0) for x, y in points.items()]
        axes.fill_between(xs, low, high, color=style.color, alpha=0.15, linewidth=0)


def _draw_noise_band(axes: Axes, e: Explanation, base: Mapping[int, float]) -> None:
    best = {r.batch_size: max(r.choice.goodput.values()) for r in e.rows}
    low = [(g * (1 - e.noise) / base[b] - 1) * 100 for b, g in best.items()]
    high = [(g * (1 + e.noise) / base[b] - 1) * 100 for b, g in best.items()]
    axes.fill_between(list(best), low, high, color="#bbbbbb", alpha=0.55, linewidth=0, zorder=1, label="noise around the best")


def _draw_steps(
    axes: Axes,
    e: Explanation,
    table: Table,
    curves: Mapping[int, Mapping[int, float]],
    base: Mapping[int, float],
    *,
    is_present: bool,
    label: str,
) -> None:
    """The goodput that a table gets: along the curve of its length, down or up a step where the length changes."""
    xs: list[float] = []
    ys: list[float] = []
    before: int | None = None
    for r in e.rows:
        length = table.length_at(r.batch_size)
        if before is not None and before != length and r.batch_size in curves.get(before, {}):
            xs.append(r.batch_size)
            ys.append((curves[before][r.batch_size] / base[r.batch_size] - 1) * 100)
        if r.batch_size in curves.get(length, {}):
            xs.append(r.batch_size)
            ys.append((curves[length][r.batch_size] / base[r.batch_size] - 1) * 100)
        before = length
    if is_present:
        outlined = [Stroke(linewidth=4.6, foreground=INK), Normal()]
        axes.plot(xs, ys, color="#F0E442", linewidth=3, dashes=(2.2, 1.4), label=label, zorder=3, path_effects=outlined)
    else:
        axes.plot(xs, ys, color="#444444", linewidth=8, solid_joinstyle="miter", label=label, zorder=2)


def _draw_edges(axes: Axes, e: Explanation) -> None:
    """A vertical line at each change of length that the table makes, named above the panel."""
    rows = {r.batch_size: r for r in e.rows}
    made = [edge for edge in e.edges if e.length_at(rows[edge.before]) != e.length_at(rows[edge.after])]
    for at, edge in enumerate(made):
        choice = rows[edge.after].choice
        axes.axvline(edge.after, ymax=1.01 + 0.045 * (at % 2), color=INK, linewidth=0.9, dashes=(2, 2), zorder=1, clip_on=False)
        axes.annotate(
            f"B={edge.after}: k={choice.draft_length} wins by {percent(choice.margin)}",
            (edge.after, 1.015 + 0.045 * (at % 2)),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
            color=INK,
        )


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the lines' ends, pushed apart so that none covers another."""
    low, high = axes.get_ylim()
    least = (high - low) * 0.045
    at = -float("inf")
    for value, text, color in sorted(ends):
        at = max(value, at + least)
        axes.annotate(
            text,
            (1.0, at),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=9,
            color=color,
            fontweight="bold",
            va="center",
        )


def _finish_goodput_axes(axes: Axes, raw: Axes, e: Explanation, *, relative: bool) -> None:
    sizes = [r.batch_size for r in e.rows]
    for panel in (axes, raw):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", color="#e8e8e8", linewidth=0.7)
        panel.set_axisbelow(True)
    shown = _ticks(sizes, 10)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([str(b) for b in shown]))
    few = _ticks(sizes, 4)
    raw.xaxis.set_major_locator(FixedLocator(few))
    raw.xaxis.set_major_formatter(FixedFormatter([str(b) for b in few]))
    wall = sizes[-1] * (sizes[-1] / sizes[0]) ** 0.07 if len(sizes) > 1 else sizes[-1] * 1.2
    axes.set_xlim(sizes[0] / 1.04, wall)
    axes.axvspan(sizes[-1], wall, facecolor="#eeeeee", edgecolor="white", hatch="////", linewidth=0, zorder=0)
    middle = (sizes[-1] * wall) ** 0.5
    axes.text(
        middle,
        0.5,
        "not measured",
        transform=axes.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="center",
        fontsize=7.5,
        color="#555555",
    )
    raw.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.7)
    axes.set_xlabel("batch size B: requests in the step", fontsize=9)
    axes.set_ylabel("goodput against no speculation, %" if relative else "goodput against the slowest length, %", fontsize=9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+.0f} %" if v else "0 %"))
    axes.legend(loc="best", fontsize=8, frameon=True, framealpha=0.9, edgecolor="none", handlelength=2.8)
    raw.set_yscale("log")
    raw.set_title("tokens/s", fontsize=9, loc="left")
    raw.set_xlabel("B", fontsize=9)
    raw.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    raw.yaxis.set_minor_formatter(FuncFormatter(lambda _v, _: ""))


def _ticks(sizes: Sequence[int], most: int) -> list[int]:
    """Measured batch sizes that are far enough apart on the log axis to be read: powers of two first, the largest always."""
    least = (sizes[-1] / sizes[0]) ** (0.8 / most)
    shown = [sizes[-1]]
    for b in sorted(sizes, key=lambda b: (b & (b - 1) != 0, b)):
        if all(max(b, other) / min(b, other) >= max(least, 1.01) for other in shown):
            shown.append(b)
    return sorted(shown)


def _goodput_title(e: Explanation) -> str:
    table = e.stored.table.table
    if table is None:
        verdict = e.stored.table.verdict
        return shorten(f"{verdict.kind.value}: {verdict.message}", 90, placeholder=" …")
    rivals = {x.name: x for x in e.rivals}
    rival = rivals.get("Present") or rivals.get("Best fixed")
    text = f"Table {table}" if len(table.lengths) > 1 else f"k={table.lengths[0]} at every batch size"
    gains = [
        r.choice.goodput[table.length_at(r.batch_size)] / r.choice.goodput[rival.table.length_at(r.batch_size)] - 1
        for r in e.rows
        if rival and {table.length_at(r.batch_size), rival.table.length_at(r.batch_size)} <= r.choice.goodput.keys()
    ]
    if not rival or not gains:
        return text
    if max(gains) <= e.threshold:
        return f"{text}: predicted no better than {rival.setting}"
    return f"{text}: predicted {percent(mean(gains), sign=True)} on average, up to {percent(max(gains), sign=True)}, over {rival.setting}"
