"""`tabletune explain`: the table with the reason for every edge, from the files of a ConfigMap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tabletune.acceptance import by_context
from tabletune.findings import find_matching_sizes, say_capacity, say_noise, say_prediction, say_worst_load
from tabletune.formats import TableFile
from tabletune.intervals import CONFIDENCE
from tabletune.verdict import Arm, Load, VerdictKind
from tabletune.words import percent
from tabletune_cli.explanation import Explanation, Row, explain_table, say_assumption, say_formula, say_robustness, say_verdict, to_json
from tabletune_cli.output import Output, OutputOption, print_json, result_console
from tabletune_cli.stored import load

NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="DraftTable on a cluster (kubeconfig), instead of --dir")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="its namespace (default: the context's)")]
DirectoryOption = Annotated[Path | None, typer.Option("--dir", help="folder with the files of a ConfigMap", metavar="DIR")]

LABEL_WIDTH = 12
VERDICT_STYLE = {
    VerdictKind.TABLE: "bold green",
    VerdictKind.FIXED: "bold green",
    VerdictKind.PRESENT: "bold green",
    VerdictKind.OFF: "bold green",
    VerdictKind.BLOCKED: "bold red",
}


def explain(
    *,
    name: NameArgument = None,
    namespace: NamespaceOption = None,
    directory: DirectoryOption = None,
    every: Annotated[bool, typer.Option("--all", help="every measured batch size, not only edges and powers of two")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show why the table is as it is."""
    explanation = explain_table(load(directory, namespace, name))
    if output is Output.JSON:
        print_json(to_json(explanation))
    else:
        show(explanation, result_console(), every=every)


def show(e: Explanation, console: Console, *, every: bool) -> None:
    """The whole screen; lines that do not fit are wrapped under their label, tables never."""
    file = e.stored.table
    kind = file.verdict.kind
    _print(console, "Verdict", say_verdict(file.verdict), VERDICT_STYLE[kind])
    _print(console, "Table", _table(file), "bold")
    console.print()
    console.print(Text("Why this table?", style="bold"))
    _print(console, "Goodput", f"{say_formula(e)}, in tokens/s (not llm-d's SLO goodput)")
    a = e.stored.acceptance
    console.print(Text("τ: off 1.00   " + "   ".join(f"k={k} {v:.2f}" for k, v in e.taus.items())), soft_wrap=True)
    coverage = f", drafts in {percent(a.counts.coverage)} of steps" if a.counts.coverage < 1 else ""
    rates = " / ".join(f"{x:.2f}" for x in a.counts.rates)
    console.print(Text(f"a = {rates}   {a.prompt_count} prompts, temperature {a.temperature_milli / 1000:.1f}{coverage}"), soft_wrap=True)
    console.print()
    rows = e.rows if every else _telling(e)
    for line in _choice_lines(e, rows, console.width):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    if len(rows) < len(e.rows):
        console.print(Text(f"{len(rows)} of {len(e.rows)} measured batch sizes shown; --all shows every one", style="dim"))
    console.print()
    for label, text in _notes(e):
        _print(console, label, text)
    if file.loads:
        console.print()
        for line in _load_lines(e):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        for label, text in _load_notes(e):
            _print(console, label, text)


def _table(file: TableFile) -> str:
    if file.table is not None:
        return f"{file.table}   (batch sizes:draft length)"
    if file.verdict.kind is VerdictKind.PRESENT:
        setting = f" ({file.loads[0].present.setting})" if file.loads else ""
        return f"none: the present setting stays{setting}"
    return "off"


def _telling(e: Explanation) -> tuple[Row, ...]:
    """Powers of two, both sides of each edge, and the largest batch size."""
    at_edges = {b for edge in e.edges for b in (edge.before, edge.after)}
    last = e.rows[-1].batch_size if e.rows else 0
    return tuple(r for r in e.rows if r.batch_size & (r.batch_size - 1) == 0 or r.batch_size in at_edges or r.batch_size == last)


def _choice_lines(e: Explanation, rows: tuple[Row, ...], width: int) -> Iterator[Text]:
    names = ["off", *(f"k{k}" for k in e.lengths)]
    times = {r.batch_size: " / ".join(_time(t) for t in (r.off_step_time, *(r.step_times.get(k) for k in e.lengths))) for r in rows}
    head = "T ms " + "/".join(names)
    time_width = max(len(head), *(len(t) for t in times.values())) if times else len(head)
    goodput_width = 9 * (1 + len(e.lengths))
    # Step times share the line with goodput where there is room, and get lines of their own elsewhere.
    beside = 5 + 2 + time_width + goodput_width + 7 + 10 + 26 <= width
    heads = "".join(f"{n:>9}" for n in ("off", *(f"k={k}" for k in e.lengths)))
    left = f"{'B':>5}  {head:<{time_width}}" if beside else f"{'B':>5}"
    yield Text(f"{left}{heads}{'choice':>8}{'margin':>10}  why", style="bold")
    edges = {edge.after: edge for edge in e.edges}
    for r in rows:
        if edge := edges.get(r.batch_size):
            yield Text(_edge_line(edge.before, edge.after), style="cyan")
        left = f"{r.batch_size:>5}  {times[r.batch_size]:<{time_width}}" if beside else f"{r.batch_size:>5}"
        line = Text(left)
        line.append(_rate(r.off_goodput))
        for k in e.lengths:
            line.append(_rate(r.choice.goodput.get(k)), style="bold" if k == r.choice.draft_length else "")
        line.append(f"{r.choice.draft_length:>8}{percent(r.choice.margin, sign=True):>10}  {r.reason}")
        yield line
    if rows:
        yield Text(f"   ── nothing was measured above {e.rows[-1].batch_size}: the table ends here ──", style="cyan")
    if not beside:
        yield Text()
        yield Text(f"{'B':>5}  {head}", style="bold")
        yield from (Text(f"{r.batch_size:>5}  {times[r.batch_size]}") for r in rows)


def _edge_line(before: int, after: int) -> str:
    if after == before + 1:
        return f"   ── edge between {before} and {after} ──"
    between = f"{before + 1}..{after - 1} were not measured" if after > before + 2 else f"{before + 1} was not measured"
    return f"   ── edge at {after}: {between}, so the earlier length stays ──"


def _notes(e: Explanation) -> Iterator[tuple[str, str]]:
    for text in e.stored.profile.warnings:
        yield "Warning", text
    m = e.stored.profile.measurement
    steps = "steps with and without a prefill" if e.stored.profile.prefill else "decode-only steps"
    yield "Measured", f"{m.measured_at}, {steps}, {m.repeats} repeats, guesses rejected by the {m.reject_by}; noise {percent(e.noise)}"
    decided = "the present setting" if e.stored.table.verdict.kind is VerdictKind.PRESENT else e.stored.table.table
    if e.is_overruled:
        yield "Choices", f"are what step times favour; the live comparison decided for {decided} (verdict above)"
    bounds = " / ".join(f"{x.low:.3f}..{x.high:.3f}" for x in e.stored.acceptance.intervals)
    yield "a lies in", f"{bounds} ({CONFIDENCE * 100:.0f} %, {say_assumption(e)})"
    for tokens, counts in by_context(e.stored.acceptance.parts).items():
        yield "a, context", f"{tokens} tokens: {' / '.join(f'{a:.3f}' for a in counts.rates)}"
    for text in e.left_out:
        yield "Left out", text
    for text in e.stored.acceptance.warnings:
        yield "Acceptance", text
    if matching := find_matching_sizes(e.stored.profile, e.stored.table.launch_lengths):
        yield "Graphs", f"{matching.flag} {matching.effect}"
    if fragile := say_robustness(e):
        yield "Fragile?", fragile
    for rival in e.rivals:
        loses = f"loses up to {percent(rival.worst.loss)}, at B={rival.worst.batch_size}" if rival.worst.loss > 0 else "loses nothing"
        yield rival.name, f"{rival.setting} {loses} (predicted)"
    if e.own_loss:
        own = f"up to {percent(e.own_loss.loss)}, at B={e.own_loss.batch_size}" if e.own_loss.loss > 0 else "nothing"
        yield "This table", f"loses {own} (predicted)"


def _load_lines(e: Explanation) -> Iterator[Text]:
    loads = e.stored.table.loads
    yield Text("Measured live, tokens/s ± spread, all through the same client", style="bold")
    arms = ("table", "present", "fixed", "off")
    rows = [[str(x.batch_size), *(_arm(getattr(x, name)) for name in arms)] for x in loads]
    widths = [max(len(cell) for cell in column) for column in zip(("    B", *arms), *rows, strict=True)]
    yield Text("  ".join(f"{head:>{w}}" for head, w in zip(("B", *arms), widths, strict=True)) + "   against present", style="bold")
    for x, row in zip(loads, rows, strict=True):
        word, gain = _judge(x, e.live_threshold)
        line = Text("  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)))
        style = {"faster": "green", "slower": "yellow"}.get(word, "")
        yield line.append(f"   {percent(gain, sign=True):>8} {word}", style=style)


def _load_notes(e: Explanation) -> Iterator[tuple[str, str]]:
    first = e.stored.table.loads[0]
    yield "Settings", f"present {first.present.setting}; best fixed {first.fixed.setting}; off = an engine without speculation"
    if gains := e.stored.table.gains:
        spoken = ((gains.present, "present"), (gains.fixed, "the best fixed"), (gains.off, "off"))
        text = ", ".join(f"{percent(gain, sign=True)} over {rival}" for gain, rival in spoken)
        yield "Mean gain", f"{text}; noise {say_noise(e.stored.table)}"
    if worst := say_worst_load(e.stored.table):
        yield "Worst load", worst
    if errors := say_prediction(e.stored.table.loads):
        yield "Prediction", errors
    if e.stored.table.capacity:
        yield "KV cache", say_capacity(e.stored.table.capacity)


def _judge(x: Load, threshold: float) -> tuple[str, float]:
    gain = x.table.tokens_per_second / x.present.tokens_per_second - 1
    return ("faster" if gain > threshold else "slower" if gain < -threshold else "same"), gain


def _arm(arm: Arm) -> str:
    return f"{arm.tokens_per_second:,.0f} ± {arm.tokens_per_second * arm.spread:,.0f}"


def _time(micros: float | None) -> str:
    """Three digits of milliseconds."""
    if micros is None:
        return "-"
    ms = micros / 1000
    return f"{ms:.2f}" if ms < 100 else f"{ms:.0f}"


def _rate(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:,.0f}' if value >= 100 else f'{value:.1f}':>9}"


def _print(console: Console, label: str, text: str, style: str = "") -> None:
    """A label and text wrapped beside it."""
    lines = Text(text, style=style).wrap(console, max(console.width - LABEL_WIDTH, 20))
    for at, line in enumerate(lines):
        console.print(Text(f"{label if at == 0 else '':<{LABEL_WIDTH}}").append(line), no_wrap=True, crop=True)
