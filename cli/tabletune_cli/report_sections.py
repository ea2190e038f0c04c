"""The sections of `tabletune report`, one small function each, in the order in which they are read (SECTIONS).

A section takes the explanation and gives its content, or None when there is nothing to say.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tabletune.acceptance import by_context
from tabletune.findings import say_noise
from tabletune.intervals import CONFIDENCE
from tabletune.verdict import VerdictKind
from tabletune.words import percent
from tabletune_cli.explanation import Explanation, say_assumption, say_formula, say_robustness, say_verdict
from tabletune_cli.losses import LiveLoss, OptionLoss, candidate_table, find_losses
from tabletune_cli.markup import Html, bullets, definitions, element, join, table
from tabletune_cli.report_engine import build_capacity, build_ceilings, build_graph_cells, build_transitions
from tabletune_cli.report_figures import NOTHING, rate
from tabletune_cli.report_live import build_live, build_prediction
from tabletune_cli.report_steps import build_prefills, build_step_times


@dataclass(frozen=True, slots=True)
class Section:
    """`anchor` is its id in the page, stable for links."""

    anchor: str
    title: str
    build: Callable[[Explanation], Html | None]


def build_verdict(e: Explanation) -> Html:
    """What to run, in one sentence, its parameters, and the loads where it is ahead of the best other setting, level with it, or behind."""
    file = e.stored.table
    settings = []
    if file.table:
        settings.append(("Table", f"{file.table} (batch sizes: draft length)"))
        settings.append(("For vLLM", element("code", str(file.table.to_vllm()))))
    elif file.verdict.kind is VerdictKind.PRESENT and file.loads:
        settings.append(("Keeps running", file.loads[0].present.setting))
    elif file.verdict.kind is VerdictKind.OFF:
        settings.append(("Runs", "no speculation"))
    settings.append(("Reason", file.verdict.reason))
    standing = file.verdict.loads
    for name, sizes in (("Best", standing.ahead), ("Level with the best", standing.level), ("Behind the best", standing.behind)):
        if sizes:
            settings.append((f"{name} at", f"B={', '.join(map(str, sizes))}"))
    return join((element("p", element("strong", say_verdict(file.verdict)), class_="verdict"), definitions(settings)))


def build_goodput(e: Explanation) -> Html | None:
    """Goodput by k over B with the table's steps: a picture, and its numbers."""
    if not e.rows:
        return None
    from tabletune_cli.plot_goodput import draw_goodput  # noqa: PLC0415 - loads matplotlib, which other calls do without

    picture = io.BytesIO()
    draw_goodput(e, picture)
    image = element(
        "img",
        src=f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}",
        alt="Goodput of each draft length by batch size, with the steps of the table; the numbers are in the table below.",
    )
    rows = [
        (
            str(r.batch_size),
            rate(r.off_goodput),
            *(rate(r.choice.goodput.get(k)) for k in e.lengths),
            f"k={r.choice.draft_length}",
            percent(r.choice.margin, sign=True),
            r.reason,
        )
        for r in e.rows
    ]
    head = ("B", "off", *(f"k={k}" for k in e.lengths), "choice", "margin", "why")
    return join(
        (
            element(
                "p",
                f"Goodput is {say_formula(e)}, in tokens a second (not llm-d's SLO goodput), predicted from step times and acceptance.",
            ),
            element("div", image, class_="scroll picture"),
            table("Predicted goodput in tokens a second", head, rows, ends_in_words=True),
            element("p", f"A change of length must win more than {percent(e.threshold)}; noise of the step times: {percent(e.noise)}."),
            *([element("p", overruled)] if (overruled := say_overruled(e)) else []),
        )
    )


def build_losses(e: Explanation) -> Html:
    """Every option at its worst load."""
    rows = [
        (f"{x.name}: {x.setting}" if x.name != "fixed" else f"fixed {x.setting}", _predicted(x), x.best or "-", _live_loss(x.live))
        for x in find_losses(e)
    ]
    unknown = [f"{x.setting} at B={', '.join(map(str, x.unknown))}" for x in find_losses(e) if x.unknown]
    return join(
        (
            table("Loss at the worst load", ("option", "predicted loss", "best there", "measured live"), rows),
            element(
                "p",
                "Loss: how much goodput an option gives away against the best option of the same batch size, no speculation included. "
                f"Live losses within the noise of {percent(e.live_noise)} are none.",
            ),
            *([element("p", f"Not measured, so not counted: {'; '.join(unknown)}.")] if unknown else []),
        )
    )


def build_acceptance(e: Explanation) -> Html:
    """Counts, rate and interval of each position, and how far they may move."""
    file = e.stored.acceptance
    rows = [
        (str(i), f"{drafted:,}", f"{kept:,}", f"{rate:.3f}", f"{x.low:.3f} to {x.high:.3f}")
        for i, (drafted, kept, rate, x) in enumerate(
            zip(file.counts.drafted, file.counts.kept, file.counts.rates, file.intervals, strict=True), start=1
        )
    ]
    at_contexts = [(f"{tokens:,}", *(f"{a:.3f}" for a in counts.rates)) for tokens, counts in by_context(file.parts).items()]
    positions = [f"a at i={i}" for i in range(1, len(file.counts.drafted) + 1)]
    percents = f"{CONFIDENCE * 100:.0f} %"
    robustness = say_robustness(e)
    return join(
        (
            table("Acceptance by position", ("position i", "drafted", "kept", "a", f"{percents} interval"), rows),
            element(
                "p",
                "a is the share of drafts whose first i guesses were all kept. "
                f"Where it lies with {percents} confidence (Wilson): {say_assumption(e)}.",
            ),
            *([table("Acceptance by context", ("context, tokens", *positions), at_contexts)] if at_contexts else []),
            element("p", "Tokens a step τ: off 1.00, " + ", ".join(f"k={k} {tau:.2f}" for k, tau in e.taus.items()) + "."),
            *([element("p", f"How far acceptance may move: {robustness}.")] if robustness else []),
        )
    )


def build_conditions(e: Explanation) -> Html:
    """All that somebody needs to know to judge or repeat the measurement."""
    return join(
        (
            definitions(_conditions(e)),
            table(
                f"Fingerprint {e.stored.profile.fingerprint.digest}: the profile is valid while all of this is so",
                ("field", "value"),
                e.stored.profile.fingerprint.fields,
                ends_in_words=True,
            ),
        )
    )


def build_left_out(e: Explanation) -> Html | None:
    """What to know about what was measured, and what was not and why."""
    said = [*e.stored.profile.warnings, *e.stored.acceptance.warnings, *e.left_out]
    return bullets(said) if said else element("p", "Nothing.")


SECTIONS = (
    Section("verdict", "Verdict", build_verdict),
    Section("left-out", "Warnings, and what was left out", build_left_out),
    Section("live", "Live comparison", build_live),
    Section("losses", "What each option loses at its worst load", build_losses),
    Section("capacity", "KV cache", build_capacity),
    Section("step-times", "Step times", build_step_times),
    Section("prefills", "Steps with a prefill", build_prefills),
    Section("goodput", "Goodput", build_goodput),
    Section("prediction", "Prediction against live", build_prediction),
    Section("ceilings", "Graph ceilings", build_ceilings),
    Section("graph-cells", "Mismatched graph cells", build_graph_cells),
    Section("transitions", "Changes of draft length", build_transitions),
    Section("acceptance", "Acceptance", build_acceptance),
    Section("conditions", "Conditions of measurement", build_conditions),
)


def say_overruled(e: Explanation) -> str | None:
    """That the live comparison decided for something else than the choices; None when it did not."""
    chosen = candidate_table(e)
    if chosen is None or chosen == e.stored.table.table or not e.stored.table.loads:
        return None
    return f"Among the draft lengths, step times favour {chosen}; the live comparison decided otherwise (verdict above)."


def _conditions(e: Explanation) -> Iterator[tuple[str, str]]:
    p, a = e.stored.profile, e.stored.acceptance
    facts, m = p.engine, p.measurement
    fields = dict(p.fingerprint.fields)
    yield "GPU", str(fields.get("gpuProduct") or facts.get("device") or "not told")
    yield "Engine", f"vLLM {facts.get('vllm')}, runner {facts.get('runner')}"
    for name, fact in (
        ("Model", "model"),
        ("Model's revision", "revision"),
        ("Data type", "dtype"),
        ("Quantization", "quantization"),
        ("Method", "method"),
        ("Drafter", "drafter"),
        ("Drafter's revision", "drafterRevision"),
        ("max_num_seqs", "maxNumSeqs"),
        ("CUDA graphs", "cudagraphMode"),
    ):
        if facts.get(fact) is not None:
            yield name, str(facts[fact])
    yield "Draft lengths", f"{', '.join(f'k={k}' for k in e.lengths)}; longest K = {len(a.counts.drafted)}"
    yield "Repeats", f"{m.repeats} of each cell, {m.output_tokens} steps each, after {m.prompt_tokens} prompt tokens; medians"
    yield "Guesses rejected by", f"the {m.reject_by}, while step times were measured"
    yield "Noise floor", f"{percent(e.noise)} of step times, {say_noise(e.stored.table)} of the live comparison"
    yield "Prompts", f"{a.prompt_count} from {a.prompts_source} (digest {a.prompts_digest})"
    yield "Temperature", f"{a.temperature_milli / 1000:g}"
    yield "Drafts", f"in {percent(a.counts.coverage)} of {a.counts.request_steps:,} steps of a request"
    yield "GPU time", f"{m.gpu_seconds / 60:.1f} GPU minutes ({m.gpu_seconds} GPU seconds)"
    yield "Measured", f"{m.measured_at} by TableTune {m.tuner_version}"


def _predicted(x: OptionLoss) -> str:
    return NOTHING if x.predicted is None else f"{percent(x.predicted.loss)} at B={x.predicted.batch_size}"


def _live_loss(x: LiveLoss | None) -> str:
    return NOTHING if x is None else f"{percent(x.loss)} at B={x.batch_size}"
