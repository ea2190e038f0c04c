"""Step times as heat maps of numbers, a PNG for each regime: decode-only steps, and steps that carry a prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from tabletune.regimes import PROMPT_TOKENS, bucket_of
from tabletune_cli.explanation import Explanation
from tabletune_cli.plot_style import INK, PICK, new_figure, save, say_measured

NOISY_SPREAD = 0.02
CROWDED = 14  # columns from which the numbers are turned
LEAST_SPAN = 0.05  # what the colours span at least, so that noise has none


@dataclass(frozen=True, slots=True)
class _Square:
    """A measured cell: its step time, and as what multiple of another step it is coloured (None: there is none to compare with)."""

    micros: int
    multiple: float | None
    is_noisy: bool = False


@dataclass(frozen=True, slots=True)
class _Map:
    """Squares by column and row; rows without speculation first. `picks`: the row that the table picks in each column."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    squares: Mapping[tuple[int, int], _Square]
    picks: tuple[int | None, ...]
    skipped: frozenset[tuple[int, int]] = frozenset()

    @property
    def is_crowded(self) -> bool:
        return len(self.columns) > CROWDED


def draw_step_times(e: Explanation, path: Path) -> None:
    """T(B,k) of decode-only steps, measured points only; the colour is the multiple of the step without speculation at the same B."""
    off = {c.batch_size: c for c in e.stored.profile.baseline}
    cells = {(c.batch_size, c.draft_length): c for c in e.stored.profile.cells}
    left_out = {(s.batch_size, s.draft_length) for s in e.stored.profile.skipped}
    lengths = sorted({k for _, k in cells} | {k for _, k in left_out})
    squares: dict[tuple[int, int], _Square] = {}
    for column, row in enumerate(e.rows):
        b = row.batch_size
        for at, k in enumerate((None, *lengths)):
            if (cell := off.get(b) if k is None else cells.get((b, k))) is not None:
                multiple = cell.step_time_micros / off[b].step_time_micros if b in off else None
                squares[column, at] = _Square(cell.step_time_micros, multiple, cell.spread_micros > NOISY_SPREAD * cell.step_time_micros)
    shown = _Map(
        columns=tuple(str(row.batch_size) for row in e.rows),
        rows=("off", *(f"k={k}" for k in lengths)),
        squares=squares,
        picks=tuple(lengths.index(k) + 1 if (k := e.length_at(row)) in lengths else None for row in e.rows),
        skipped=frozenset((column, lengths.index(k) + 1) for column, row in enumerate(e.rows) for b, k in left_out if b == row.batch_size),
    )
    figure = new_figure(_step_time_title(e), say_measured(e))
    _draw_map(
        figure,
        shown,
        across="batch size B: requests in the step (measured points only, not to scale)",
        colour="step time, multiple of no speculation",
    )
    if shown.skipped:
        figure.text(0.085, 0.03, f"Left out: {shorten('; '.join(e.left_out), 150, placeholder=' …')}", fontsize=7.5, color="#555555")
    text = "Numbers: milliseconds a step, decode-only, median of repeats.   off: an engine without speculation.   n/m: not measured."
    figure.text(0.085, 0.06, text, fontsize=7.5, color="#555555")
    save(figure, path)


def draw_prefills(e: Explanation, path: Path) -> None:
    """Steps with a prefill by batch size and prompt tokens in the step; the colour is the multiple of the decode-only step of the row.

    The profile has at least one such cell.
    """
    profile = e.stored.profile
    decode: dict[tuple[int, int | None], int] = {(c.batch_size, c.draft_length): c.step_time_micros for c in profile.cells}
    decode |= {(c.batch_size, None): c.step_time_micros for c in profile.baseline}
    measured = {(c.batch_size, bucket_of(c.prompt_tokens), c.draft_length): c.step_time_micros for c in profile.prefill}
    without = {(c.batch_size, bucket_of(c.prompt_tokens), None): c.step_time_micros for c in profile.baseline_prefill}
    columns = sorted({(b, bucket) for b, bucket, _ in (*measured, *without)})
    rows: tuple[int | None, ...] = (None, *sorted({k for _, _, k in measured}))
    squares: dict[tuple[int, int], _Square] = {}
    for (b, bucket, k), micros in (*measured.items(), *without.items()):
        base = decode.get((b, k))
        squares[columns.index((b, bucket)), rows.index(k)] = _Square(micros, micros / base if base else None)
    picks = {row.batch_size: e.length_at(row) for row in e.rows}
    shown = _Map(
        columns=tuple(f"B={b}\n{_say_bucket(bucket)}" for b, bucket in columns),
        rows=tuple("off" if k is None else f"k={k}" for k in rows),
        squares=squares,
        picks=tuple(rows.index(k) if (k := picks.get(b)) is not None and k in rows else None for b, _ in columns),
    )
    figure = new_figure(_prefill_title(shown), say_measured(e))
    across, colour = "batch size B, and prompt tokens in the step", "step time, multiple of the decode-only step"
    _draw_map(figure, shown, across=across, colour=colour)
    text = "Numbers: milliseconds a step with a prefill, median.   off: an engine without speculation.   n/m: not measured, or too seldom."
    figure.text(0.085, 0.03, text, fontsize=7.5, color="#555555")
    save(figure, path)


def _draw_map(figure: Figure, shown: _Map, *, across: str, colour: str) -> None:
    axes = figure.add_axes((0.085, 0.235, 0.80, 0.535))
    multiples = [s.multiple for s in shown.squares.values() if s.multiple is not None]
    scale = Normalize(min([1.0, *multiples]), max([1 + LEAST_SPAN, *multiples]))
    for column in range(len(shown.columns)):
        for row in range(len(shown.rows)):
            square = shown.squares.get((column, row))
            if square is None:
                _draw_gap(axes, column, row, is_skipped=(column, row) in shown.skipped, crowded=shown.is_crowded)
            else:
                _draw_square(axes, (column, row), square, scale, crowded=shown.is_crowded)
    _draw_picks(axes, shown.picks)
    axes.set_xlim(0, len(shown.columns))
    axes.set_ylim(0, len(shown.rows))
    turned = 90 if len(shown.columns) > 2 * CROWDED else 0
    axes.set_xticks([c + 0.5 for c in range(len(shown.columns))], shown.columns, fontsize=7.5, rotation=turned)
    axes.set_yticks([r + 0.5 for r in range(len(shown.rows))], shown.rows)
    axes.set_xlabel(across)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    bar_axes = figure.add_axes((0.905, 0.235, 0.018, 0.535))
    bar = figure.colorbar(mpl.cm.ScalarMappable(scale, mpl.colormaps["cividis"]), cax=bar_axes)
    bar.set_label(colour, fontsize=8)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.1f}×"))
    bar.ax.tick_params(labelsize=8)
    figure.legend(
        handles=_legend(shown), loc="upper left", bbox_to_anchor=(0.075, 0.135), ncols=3, fontsize=7.5, frameon=False, columnspacing=1.4
    )


def _legend(shown: _Map) -> list[Artist]:
    handles: list[Artist] = [Patch(facecolor="white", edgecolor=PICK, linewidth=2.2, label="length that the table picks")]
    if any(s.is_noisy for s in shown.squares.values()):
        handles.append(Line2D([], [], color=INK, marker="o", markersize=3.5, linestyle="", label="spread of repeats above 2 %"))
    if shown.skipped:
        handles.append(Patch(facecolor="#e6e6e6", edgecolor="white", hatch="////", label="left out"))
    return handles


def _draw_square(axes: Axes, at: tuple[int, int], square: _Square, scale: Normalize, *, crowded: bool) -> None:
    column, row = at
    red, green, blue, _ = (1.0, 1.0, 1.0, 1.0) if square.multiple is None else mpl.colormaps["cividis"](scale(square.multiple))
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor=(red, green, blue), edgecolor="white", linewidth=0.8))
    size, turned = (6.5, 90) if crowded else (9, 0)
    axes.text(column + 0.5, row + 0.5, _milliseconds(square.micros), ha="center", va="center", fontsize=size, rotation=turned, color=ink)
    if square.is_noisy:
        axes.plot(column + 0.8, row + 0.86, marker="o", markersize=3, color=ink, zorder=6)


def _draw_picks(axes: Axes, picks: Sequence[int | None]) -> None:
    """One frame around each run of columns with the same row picked."""
    first = 0
    for column, row in enumerate(picks):
        if column + 1 < len(picks) and picks[column + 1] == row:
            continue
        if row is not None:
            corner = (first + 0.04, row + 0.03)
            frame = Rectangle(corner, column + 0.92 - first, 0.94, fill=False, edgecolor=PICK, linewidth=2.6, zorder=5)
            axes.add_patch(frame)
        first = column + 1


def _draw_gap(axes: Axes, column: int, row: int, *, is_skipped: bool, crowded: bool) -> None:
    """A cell without a measurement: hatched if it was left out on purpose."""
    hatch = "////" if is_skipped else None
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor="#e6e6e6", edgecolor="white", hatch=hatch, linewidth=0.8))
    if not is_skipped:
        axes.text(column + 0.5, row + 0.5, "n/m", ha="center", va="center", fontsize=5 if crowded else 7, color="#666666")


def _milliseconds(micros: int) -> str:
    ms = micros / 1000
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"


def _say_bucket(bucket: int) -> str:
    least = PROMPT_TOKENS[bucket - 1] + 1 if bucket else 1
    return f"{least:,}+" if bucket == len(PROMPT_TOKENS) - 1 else f"{least:,}-{PROMPT_TOKENS[bucket]:,}"


def _step_time_title(e: Explanation) -> str:
    longest = e.lengths[-1]
    rows = [r for r in e.rows if r.off_step_time and longest in r.step_times]
    if not rows:
        return "Step time T by batch size and draft length"
    first, last = (f"{_longer(r.step_times[longest] / (r.off_step_time or 1.0) - 1)} at B={r.batch_size}" for r in (rows[0], rows[-1]))
    return f"k={longest} makes a step {first}" if len(rows) == 1 else f"k={longest} makes a step {first}, {last}"


def _prefill_title(shown: _Map) -> str:
    multiples = [s.multiple for s in shown.squares.values() if s.multiple is not None]
    if not multiples:
        return "Step time of steps that carry a prefill"
    return f"A prefill makes a step {min(multiples):.1f} to {max(multiples):.1f} times as long as a decode-only step"


def _longer(share: float) -> str:
    return f"{abs(share) * 100:.0f} % {'longer' if share >= 0 else 'shorter'}"
