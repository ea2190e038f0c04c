"""`report.md`: what was measured and decided, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tabletune.acceptance import by_context
from tabletune.findings import (
    NO_HIGHER_CEILING,
    find_higher_ceiling,
    find_matching_sizes,
    say_capacity,
    say_ceiling,
    say_prediction,
    say_prefills,
    say_worst_load,
)
from tabletune.formats import AcceptanceFile, TableFile
from tabletune.goodput import tau
from tabletune.intervals import CONFIDENCE
from tabletune.prediction import arms_of, relative_error
from tabletune.profile import Profile, largest_graph
from tabletune.transitions import LEAST_TRIES, is_bad, longest_pause_micros
from tabletune.verdict import Arm, Load

MICROS = 1000


def to_report(profile: Profile, acceptance: AcceptanceFile, table: TableFile, stages: Mapping[str, float]) -> str:
    """Markdown. `stages`: seconds of each."""
    return "\n".join(
        [
            *_head(profile, table),
            *_warnings((*profile.warnings, *acceptance.warnings)),
            *_live(table),
            *_prediction(profile, table.loads),
            *_capacity(table),
            *_acceptance(acceptance, profile),
            *_step_times(profile, table),
            *_prefills(profile),
            *_ceilings(profile),
            *_graph_cells(profile, table),
            *_transitions(profile),
            *_skipped(profile),
            *_stages(stages),
        ]
    )


def _head(profile: Profile, table: TableFile) -> Iterator[str]:
    facts, m = profile.engine, profile.measurement
    # Drafters that look text up name the served model as theirs.
    drafter = facts.get("method") if facts.get("drafter") in (None, facts.get("model")) else facts["drafter"]
    yield "# TableTune report"
    yield ""
    yield f"**{table.verdict.kind.value}** ({table.verdict.reason}). {table.verdict.message}"
    yield ""
    if table.table is not None:
        yield f"Table: `{table.table}` (batch sizes: draft length)"
        yield ""
    yield f"- Model {facts.get('model')}, drafter {drafter}, vLLM {facts.get('vllm')}, runner {facts.get('runner')}, {facts.get('device')}"
    yield f"- Measured {m.measured_at}, {m.gpu_seconds} GPU seconds, fingerprint {profile.fingerprint.digest}"
    yield f"- Median of {m.repeats} repeats, {m.output_tokens} steps each at most after {m.prompt_tokens} prompt tokens"
    yield f"- Guesses rejected by the {m.reject_by} while timing"
    yield f"- Noise floor: sweep {profile.noise_ppm / 10_000:.1f} %, live {_live_noise(table)}"
    yield ""


def _warnings(warnings: tuple[str, ...]) -> Iterator[str]:
    if warnings:
        yield "## Know this"
        yield from ("", *(f"- {w}" for w in warnings), "")


def _live(table: TableFile) -> Iterator[str]:
    if not table.loads:
        return
    yield "## Live comparison"
    yield ""
    yield (
        "Output tokens a second on real prompts: median of the repeats ± their median absolute deviation. "
        "Fixed here: the length that is predicted best at this load, where it is another than the one for all loads. "
        f"A gain up to the noise of {_live_noise(table)} is none."
    )
    yield ""
    yield "| B | table | present | fixed | fixed here | off |"
    yield "|---|---|---|---|---|---|"
    for x in table.loads:
        here = _arm(x.fixed_here) if x.fixed_here else "the same"
        yield f"| {x.batch_size} | {_arm(x.table)} | {_arm(x.present)} | {_arm(x.fixed)} | {here} | {_arm(x.off)} |"
    yield ""
    if table.gains is not None:
        g = table.gains
        yield f"Mean gain of the table: {g.present:+.1%} on the present, {g.fixed:+.1%} on the best fixed length, {g.off:+.1%} on off."
        yield ""
    if (worst := say_worst_load(table)) is not None:
        yield from (f"Worst load of the table, {worst}.", "")


def _live_noise(table: TableFile) -> str:
    return f"{table.noise_ppm / 10_000:.1f} %" + (" (assumed: fewer than 3 repeats)" if table.noise_assumed else "")


def _prediction(profile: Profile, loads: Sequence[Load]) -> Iterator[str]:
    errors = say_prediction(loads)
    if errors is None:
        return
    yield "## Prediction against live"
    yield ""
    steps = "steps with a prefill included" if profile.prefills() else "for decode-only steps"
    yield f"From step times and acceptance, {steps}; measured: the mean step of the live windows, prefills included."
    yield ""
    yield "| B | setting | ms a step, predicted | measured | error | tokens/s, predicted | measured | error |"
    yield "|---" * 8 + "|"
    for x in loads:
        yield from (_predicted(x.batch_size, arm) for arm in arms_of(x) if arm.predicted is not None)
    yield ""
    yield f"Errors: {errors}."
    yield ""


def _predicted(B: int, arm: Arm) -> str:
    assert arm.predicted is not None
    micros, rate = arm.predicted.step_time_micros, arm.predicted.tokens_per_second
    off = f"{relative_error(micros, arm.step_time_micros):+.1%}" if arm.step_time_micros else "n/m"
    return (
        f"| {B} | {arm.setting} | {_ms(micros)} | {_ms(arm.step_time_micros)} | {off} "
        f"| {rate:,.1f} | {arm.tokens_per_second:,.1f} | {relative_error(rate, arm.tokens_per_second):+.1%} |"
    )


def _capacity(table: TableFile) -> Iterator[str]:
    if table.capacity is not None:
        yield "## KV cache"
        yield from ("", f"The KV cache holds {say_capacity(table.capacity)}.", "")


def _arm(arm: Arm) -> str:
    return f"{arm.tokens_per_second:,.1f} ± {arm.tokens_per_second * arm.spread:,.1f} ({arm.setting})"


def _acceptance(file: AcceptanceFile, profile: Profile) -> Iterator[str]:
    estimate = file.estimate
    yield "## Acceptance"
    yield ""
    temperature = file.temperature_milli / 1000
    yield f"{file.prompt_count} prompts ({file.prompts_source}) at temperature {temperature:g}; coverage {estimate.coverage:.2f}"
    yield ""
    yield f"| position | drafted | kept | a | {CONFIDENCE * 100:.0f} % interval |"
    yield "|---|---|---|---|---|"
    rows = zip(file.counts.drafted, file.counts.kept, estimate.acceptance, file.intervals, strict=True)
    yield from (f"| {i} | {d} | {k} | {a:.3f} | {x.low:.3f} to {x.high:.3f} |" for i, (d, k, a, x) in enumerate(rows, start=1))
    yield ""
    if len(file.parts) > 1:
        yield f"Intervals (Wilson) are as wide as the {len(file.parts)} parts of the prompts differ, for drafts of one answer are alike."
    else:
        yield "Intervals (Wilson) take drafts as independent; drafts of one answer are alike, so the true ones are wider."
    yield ""
    for tokens, counts in by_context(file.parts).items():
        yield f"a at {tokens} tokens of context: {' / '.join(f'{a:.3f}' for a in counts.rates)}"
        yield ""
    lengths = sorted({c.draft_length for c in profile.cells})
    yield "Tokens a step: " + ", ".join(f"k={k}: {tau(estimate.acceptance, k, estimate.coverage):.2f}" for k in lengths)
    yield ""


def _step_times(profile: Profile, table: TableFile) -> Iterator[str]:
    times = profile.step_times()
    off = {c.batch_size: c.step_time_micros for c in profile.baseline}
    lengths = sorted({c.draft_length for c in profile.cells})
    chosen = {c.batch_size: c for c in table.choices}
    yield "## Step times"
    yield ""
    yield "Milliseconds a step, every guess rejected; off: the engine without speculation."
    yield ""
    yield "| B | off | " + " | ".join(f"k={k}" for k in lengths) + " | chosen | why |"
    yield "|---" * (len(lengths) + 4) + "|"
    for B in sorted(times):
        row = " | ".join(_ms(times[B].get(k)) for k in lengths)
        choice = f"{chosen[B].draft_length} | {chosen[B].why}" if B in chosen else "none | no length can be used here"
        yield f"| {B} | {_ms(off.get(B))} | {row} | {choice} |"
    yield ""


def _prefills(profile: Profile) -> Iterator[str]:
    yield "## Steps with a prefill"
    yield from ("", say_prefills(profile), "")
    if profile.prefills() is None:
        return
    yield "| B | k | prompt tokens in the step | ms | decode only |"
    yield "|---|---|---|---|---|"
    times = profile.step_times()
    for c in profile.prefill:
        decode = _ms(times.get(c.batch_size, {}).get(c.draft_length))
        yield f"| {c.batch_size} | {c.draft_length} | {c.prompt_tokens} | {_ms(c.step_time_micros)} | {decode} |"
    yield ""


def _ceilings(profile: Profile) -> Iterator[str]:
    largest = largest_graph(profile.engine)
    if not profile.ceilings or largest is None:
        return
    yield "## Graph ceilings"
    yield ""
    yield say_ceiling(largest)
    yield ""
    yield "| k | last B inside | ms there | ms at the next B | jump |"
    yield "|---|---|---|---|---|"
    for c in profile.ceilings:
        jump = c.above_micros / c.below_micros - 1
        yield f"| {c.draft_length} | {c.batch_size} | {_ms(c.below_micros)} | {_ms(c.above_micros)} | {jump:+.1%} |"
    yield ""
    higher = find_higher_ceiling(profile)
    yield f"`{higher.flag}` {higher.effect}" if higher else NO_HIGHER_CEILING
    yield ""


def _graph_cells(profile: Profile, table: TableFile) -> Iterator[str]:
    matching = find_matching_sizes(profile, table.launch_lengths)
    if matching is not None:
        yield "## Graph sizes"
        yield from ("", f"`{matching.flag}` {matching.effect}", "")


def _transitions(profile: Profile) -> Iterator[str]:
    if not profile.transitions:
        return
    times, on_gpu = profile.step_times(), profile.engine.get("device") != "cpu"
    yield "## Changes of length"
    yield ""
    yield "Tried in the running engine before the comparison: forced, and across the table's edge by requests that come and go."
    yield ""
    yield "| from k | to k | B | tries | longest time without a step, ms | may be | failures | |"
    yield "|---" * 8 + "|"
    for t in profile.transitions:
        limit = longest_pause_micros(t, times, on_gpu=on_gpu)
        said = "bad: left out" if is_bad(t, times, on_gpu=on_gpu) else "" if t.tries >= LEAST_TRIES else "tried too seldom"
        numbers = f"{t.worst_pause_micros / MICROS:.0f} | {limit / MICROS:.0f} | {t.failures}"
        yield f"| {t.from_length} | {t.to_length} | {t.batch_size} | {t.tries} | {numbers} | {said} |"
    yield ""


def _ms(micros: float | None) -> str:
    return "n/m" if micros is None else f"{micros / MICROS:.2f}"


def _skipped(profile: Profile) -> Iterator[str]:
    if profile.skipped:
        yield "## Left out"
        yield from ("", *(f"- B={s.batch_size}, k={s.draft_length}: {s.reason}" for s in profile.skipped), "")


def _stages(stages: Mapping[str, float]) -> Iterator[str]:
    yield "## Time"
    yield from ("", *(f"- {name}: {seconds:.0f} s" for name, seconds in stages.items()), "")
