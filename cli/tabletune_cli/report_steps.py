"""Sections of `tabletune report` on step times: heat maps that are tables, one for each regime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tabletune.findings import say_prefills
from tabletune.regimes import PROMPT_TOKENS, PrefillCell, bucket_of
from tabletune_cli.explanation import Explanation, Row
from tabletune_cli.markup import Html, element, join, table
from tabletune_cli.report_figures import NOTHING, milliseconds

COLD, WARM = (255, 255, 255), (242, 160, 95)
"""Ends of the heat maps' one hue, light enough for dark ink: black on the darker end has a contrast of 9 to 1."""
LEAST_SPAN = 0.05  # what a heat map's colours span at least, so that noise has no colour


def build_step_times(e: Explanation) -> Html:
    """T(B,k) of decode-only steps: numbers, a colour for the multiple of off, and a mark for what the verdict runs."""
    cells = {(c.batch_size, c.draft_length): c.step_time_micros for c in e.stored.profile.cells}
    skipped = {(s.batch_size, s.draft_length) for s in e.stored.profile.skipped}
    lengths = sorted({k for _, k in cells} | {k for _, k in skipped})
    base = {r.batch_size: r.off_step_time or min(r.step_times.values(), default=1.0) for r in e.rows}
    heat = _Heat.of([micros / base[b] for (b, _), micros in cells.items() if b in base])
    picks = _picks(e)

    def cell(row: Row, k: int) -> str:
        micros = row.step_times.get(k)
        if micros is None:
            return "left out" if (row.batch_size, k) in skipped else NOTHING
        return heat.cell(micros, base[row.batch_size], is_picked=picks.get(row.batch_size) == k)

    rows = [(str(r.batch_size), milliseconds(r.off_step_time), *(cell(r, k) for k in lengths)) for r in e.rows]
    against = "the step without speculation" if all(r.off_step_time for r in e.rows) else "the fastest step at the same batch size"
    return join(
        (
            table("Step time T(B,k) in milliseconds, decode-only steps", ("B", "off", *(f"k={k}" for k in lengths)), rows),
            element(
                "p",
                f"In brackets, and as colour: the multiple of {against}. {_say_mark(picks)}"
                f"{NOTHING}: not measured. B is the number of requests in a step, k the draft length. "
                f"Nothing was measured above B={e.rows[-1].batch_size if e.rows else 0}, and nothing is said about it.",
            ),
        )
    )


def build_prefills(e: Explanation) -> Html:
    """Steps with a prefill by batch size and prompt tokens in the step; the colour is the multiple of the decode-only step."""
    profile = e.stored.profile
    said = element("p", say_prefills(profile))
    if not profile.prefill:
        return said
    decode: dict[tuple[int, int | None], int] = {(c.batch_size, c.draft_length): c.step_time_micros for c in profile.cells}
    decode |= {(c.batch_size, None): c.step_time_micros for c in profile.baseline}
    found: dict[tuple[int, int], dict[int | None, PrefillCell]] = {}
    for c in profile.prefill:
        found.setdefault((c.batch_size, bucket_of(c.prompt_tokens)), {})[c.draft_length] = c
    for c in profile.baseline_prefill:
        found.setdefault((c.batch_size, bucket_of(c.prompt_tokens)), {})[None] = c
    columns = (None, *e.lengths)
    compared = [(c.step_time_micros, decode.get((b, k))) for (b, _), row in found.items() for k, c in row.items()]
    heat = _Heat.of([micros / base for micros, base in compared if base])
    picks = _picks(e)

    def cell(batch_size: int, k: int | None, measured: PrefillCell | None) -> str:
        base = decode.get((batch_size, k))
        if measured is None or base is None:
            return milliseconds(measured.step_time_micros if measured else None)
        return heat.cell(measured.step_time_micros, base, is_picked=k is not None and picks.get(batch_size) == k)

    rows = [(str(b), _say_bucket(bucket), *(cell(b, k, row.get(k)) for k in columns)) for (b, bucket), row in sorted(found.items())]
    return join(
        (
            table(
                "Step time in milliseconds, steps that carry a prefill",
                ("B", "prompt tokens in the step", "off", *(f"k={k}" for k in e.lengths)),
                rows,
            ),
            element(
                "p",
                "In brackets, and as colour: the multiple of the decode-only step of the same column at the same batch size (table above). "
                f"{_say_mark(picks)}{NOTHING}: not measured, or too seldom to count.",
            ),
            said,
        )
    )


@dataclass(frozen=True, slots=True)
class _Heat:
    """Colours from a multiple of 1 up to `most`."""

    most: float

    @classmethod
    def of(cls, multiples: list[float]) -> _Heat:
        return cls(max([1 + LEAST_SPAN, *multiples]))

    def cell(self, micros: float, base: float, *, is_picked: bool) -> Html:
        multiple = micros / base
        share = min(max((multiple - 1) / (self.most - 1), 0.0), 1.0)
        shade = "#" + "".join(f"{round(cold + (warm - cold) * share):02x}" for cold, warm in zip(COLD, WARM, strict=True))
        text = f"{'▶ ' if is_picked else ''}{milliseconds(micros)} ({multiple:.2f}×)"
        return element("td", text, style=f"background:{shade}", **({"class_": "picked"} if is_picked else {}))


def _picks(e: Explanation) -> Mapping[int, int]:
    """The length that the verdict runs by batch size; empty when it runs none of ours."""
    return {r.batch_size: e.length_at(r) for r in e.rows} if e.stored.table.table else {}


def _say_mark(picks: Mapping[int, int]) -> str:
    return "▶ is the length that the verdict runs. " if picks else ""


def _say_bucket(bucket: int) -> str:
    least = PROMPT_TOKENS[bucket - 1] + 1 if bucket else 1
    return f"{least:,} and more" if bucket == len(PROMPT_TOKENS) - 1 else f"{least:,} to {PROMPT_TOKENS[bucket]:,}"
