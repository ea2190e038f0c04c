"""Why a table is as it is: everything that `explain` and `plot` show, computed once from the stored files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tabletune.acceptance import by_context
from tabletune.formats import PPM
from tabletune.goodput import tau
from tabletune.prediction import PredictionError, goodput_error, step_time_error
from tabletune.regret import Loss, regret
from tabletune.table import MIN_SWITCH_GAIN, Choice, Table
from tabletune.verdict import Arm, Load, Verdict, VerdictKind, worst_loss
from tabletune_cli.prediction import Robustness, find_robustness, find_unsafe, predict_profile, without
from tabletune_cli.stored import Stored, parse_setting
from tabletune_tuner.build import best_fixed


@dataclass(frozen=True, slots=True)
class Row:
    """One measured batch size. Times in microseconds, goodput in tokens a second; None: without speculation was not measured here."""

    batch_size: int
    off_step_time: float | None
    step_times: Mapping[int, float]
    off_goodput: float | None
    choice: Choice
    reason: str


@dataclass(frozen=True, slots=True)
class Edge:
    """The length changes between two measured batch sizes; the table changes it at `after`."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Rival:
    """Another setting on the same goodput, and where it loses most."""

    name: str
    setting: str
    table: Table
    worst: Loss


@dataclass(frozen=True, slots=True)
class Explanation:
    """Rows ascending by batch size; `taus` by draft length."""

    stored: Stored
    lengths: tuple[int, ...]
    taus: Mapping[int, float]
    rows: tuple[Row, ...]
    edges: tuple[Edge, ...]
    rivals: tuple[Rival, ...]
    own_loss: Loss | None
    robustness: Robustness | None
    left_out: tuple[str, ...]

    def length_at(self, row: Row) -> int:
        """What the table runs there; without a table, the choice by step times."""
        table = self.stored.table.table
        return table.length_at(row.batch_size) if table else row.choice.draft_length

    @property
    def is_overruled(self) -> bool:
        """The verdict runs something else than the choices by step times."""
        kept = self.stored.table.verdict.kind is VerdictKind.PRESENT
        return kept or any(self.length_at(row) != row.choice.draft_length for row in self.rows)

    @property
    def noise(self) -> float:
        """Of the step times: choices rest on it."""
        return self.stored.profile.noise_ppm / PPM

    @property
    def live_noise(self) -> float:
        """Of the live comparison: the verdict rests on it."""
        return self.stored.table.noise_ppm / PPM

    @property
    def live_threshold(self) -> float:
        """A live gain up to this is none."""
        return max(MIN_SWITCH_GAIN, self.live_noise)

    @property
    def threshold(self) -> float:
        """A change of length must win more than this."""
        return max(MIN_SWITCH_GAIN, self.noise)


def explain_table(stored: Stored) -> Explanation:
    """Put together what the files say."""
    estimate = stored.acceptance.estimate
    goodput = predict_profile(stored.profile, estimate)
    lengths = tuple(sorted({c.draft_length for c in stored.profile.cells}))
    times = stored.profile.step_times()
    off_times = {c.batch_size: float(c.step_time_micros) for c in stored.profile.baseline}
    threshold = stored.profile.switch_gain
    choices = stored.table.choices
    rows = tuple(
        Row(
            batch_size=c.batch_size,
            off_step_time=off_times.get(c.batch_size),
            step_times=times.get(c.batch_size, {}),
            off_goodput=stored.table.off_goodput.get(c.batch_size),
            choice=c,
            reason=_reason(c, choices[at - 1] if at else None, threshold),
        )
        for at, c in enumerate(choices)
    )
    edges = tuple(Edge(a.batch_size, b.batch_size) for a, b in pairwise(choices) if a.draft_length != b.draft_length)
    unsafe = find_unsafe(stored.profile, goodput)
    own = regret(stored.table.table, goodput).worst if stored.table.table else None
    return Explanation(
        stored=stored,
        lengths=lengths,
        taus={k: tau(estimate.acceptance, k, estimate.coverage) for k in lengths},
        rows=rows,
        edges=edges,
        rivals=_find_rivals(stored, goodput),
        own_loss=own,
        robustness=find_robustness(estimate, lambda e: without(predict_profile(stored.profile, e), unsafe), stored.profile.noise_ppm / PPM),
        left_out=_left_out(stored),
    )


def present_table(stored: Stored) -> tuple[str, Table] | None:
    """The setting that served before, as text and as a table; None when it was none, or was not measured."""
    for load in stored.table.loads:
        table = parse_setting(load.present.setting)
        return (load.present.setting, table) if table else None
    return None


def say_verdict(verdict: Verdict) -> str:
    """The verdict as a sentence that begins with its kind."""
    return verdict.message if verdict.message.startswith(verdict.kind.value) else f"{verdict.kind.value}. {verdict.message}"


def say_formula(e: Explanation) -> str:
    """What goodput is made of."""
    return "B · τ(k) / T(B,k)" + (", steps with a prefill included" if e.stored.profile.prefills() else "")


def say_assumption(e: Explanation) -> str:
    """What the intervals of acceptance take for granted."""
    parts = len(e.stored.acceptance.parts)
    if parts > 1:
        return f"as wide as {parts} parts of the prompts differ"
    return "as if drafts were independent; those of one answer are not, so it is wider"


def say_robustness(e: Explanation) -> str | None:
    """How far acceptance may move before the table changes; None when nothing was kept."""
    r = e.robustness
    if r is None:
        return None
    a1 = e.stored.acceptance.counts.rates[0]
    parts = [f"the table stays the same for a1 from {r.low:.2f} to {r.high:.2f} (measured {a1:.2f}; other positions in proportion)"]
    if r.below:
        parts.append(f"below: {r.below}")
    if r.above:
        parts.append(f"above: {r.above}")
    return "; ".join(parts)


def _reason(choice: Choice, before: Choice | None, threshold: float) -> str:
    limit = f"{threshold * 100:.1f} %"
    if len(choice.goodput) == 1:
        said = "only length measured here"
    elif choice.margin < 0:
        said = f"stays: not worse by {limit}"
    elif before is not None and before.draft_length != choice.draft_length:
        said = f"switch: above {limit}" if before.draft_length in choice.goodput else f"switch: no k={before.draft_length} here"
    elif choice.margin > threshold:
        said = f"best, above {limit}"
    else:
        said = f"best, within {limit}"
    return said


def _find_rivals(stored: Stored, goodput: Mapping[int, Mapping[int, float]]) -> tuple[Rival, ...]:
    fixed = best_fixed(goodput)
    settings = [("Best fixed", f"k={fixed}", Table.fixed(fixed, max(goodput)))]
    if present := present_table(stored):
        settings.insert(0, ("Present", *present))
    seen = [(name, text, table, regret(table, goodput).worst) for name, text, table in settings]
    return tuple(Rival(name, text, table, worst) for name, text, table, worst in seen if worst)


def _left_out(stored: Stored) -> tuple[str, ...]:
    """Skipped cells by reason: `k=2 at B=1..128: reason`."""
    by_reason: dict[tuple[int, str], list[int]] = {}
    for s in stored.profile.skipped:
        by_reason.setdefault((s.draft_length, s.reason), []).append(s.batch_size)
    return tuple(
        f"k={length} at B={min(sizes)}{f'..{max(sizes)}' if len(sizes) > 1 else ''}: {reason}"
        for (length, reason), sizes in sorted(by_reason.items())
    )


def to_json(e: Explanation) -> dict[str, Any]:
    """The same fields as on the screen."""
    a, t, r = e.stored.acceptance, e.stored.table, e.robustness
    worst = worst_loss(t.loads)
    return {
        "verdict": {
            "kind": t.verdict.kind.value,
            "reason": t.verdict.reason,
            "message": t.verdict.message,
            "loads": asdict(t.verdict.loads),
        },
        "ranges": t.table.to_vllm() if t.table else [],
        "noise": e.noise,
        "liveNoise": e.live_noise,
        "noiseAssumed": t.noise_assumed,
        "warnings": list(e.stored.profile.warnings),
        "acceptance": list(a.counts.rates),
        "acceptanceIntervals": [{"low": x.low, "high": x.high} for x in a.intervals],
        "acceptanceByContext": {str(tokens): list(counts.rates) for tokens, counts in by_context(a.parts).items()},
        "coverage": a.counts.coverage,
        "prompts": a.prompt_count,
        "temperature": a.temperature_milli / 1000,
        "tau": {str(k): v for k, v in e.taus.items()},
        "rows": [
            {
                "batchSize": row.batch_size,
                "stepTimeMicros": {**_off(row.off_step_time), **{str(k): v for k, v in row.step_times.items()}},
                "tokensPerSecond": {**_off(row.off_goodput), **{str(k): v for k, v in row.choice.goodput.items()}},
                "draftLength": row.choice.draft_length,
                "margin": row.choice.margin,
                "why": row.choice.why,
            }
            for row in e.rows
        ],
        "edges": [{"before": x.before, "after": x.after} for x in e.edges],
        "leftOut": list(e.left_out),
        "robustness": (
            {
                "firstAcceptanceLow": r.low,
                "firstAcceptanceHigh": r.high,
                "rangesBelow": r.below.to_vllm() if r.below else None,
                "rangesAbove": r.above.to_vllm() if r.above else None,
            }
            if r
            else None
        ),
        "rivals": [{"name": x.name, "setting": x.setting, "worst": _loss(x.worst)} for x in e.rivals],
        "worst": _loss(e.own_loss) if e.own_loss else None,
        "loads": [
            {
                "batchSize": x.batch_size,
                **{
                    name: {"tokensPerSecond": arm.tokens_per_second, "spread": arm.spread, "setting": arm.setting}
                    for name, arm in _arms(x).items()
                },
            }
            for x in t.loads
        ],
        "worstLoss": {"batchSize": worst.batch_size, "bestFixed": worst.setting, "loss": worst.loss} if worst else None,
        "predictionError": {"stepTime": _error(step_time_error(t.loads)), "goodput": _error(goodput_error(t.loads))},
        "capacity": {"speculationTokens": t.capacity.speculation_tokens, "offTokens": t.capacity.off_tokens} if t.capacity else None,
    }


def _off(value: float | None) -> dict[str, float]:
    return {} if value is None else {"off": value}


def _loss(loss: Loss) -> dict[str, Any]:
    return {"batchSize": loss.batch_size, "draftLength": loss.draft_length, "bestLength": loss.best_length, "loss": loss.loss}


def _arms(load: Load) -> dict[str, Arm]:
    arms = {"table": load.table, "present": load.present, "fixed": load.fixed, "off": load.off}
    return arms | ({"fixedHere": load.fixed_here} if load.fixed_here else {})


def _error(error: PredictionError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"median": error.median, "worst": error.worst, "worstAt": {"batchSize": error.batch_size, "setting": error.setting}}
