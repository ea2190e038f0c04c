"""`table.json` (docs/formats.md): the decision, and what it rests on. Read and written here only; formats.py gives it to everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.nodes import FORMAT_VERSION, PPM, Node, dump, read_root
from tabletune.prediction import PredictionError, goodput_error, step_time_error
from tabletune.table import Choice, Table
from tabletune.verdict import Arm, ArmName, Gains, Load, Predicted, Standing, Verdict, VerdictKind, WorstLoss, worst_loss

TABLE = "table.json"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Tokens that fit into the KV cache, with speculation and without: drafter and look-ahead take room."""

    speculation_tokens: int
    off_tokens: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """The decision: table, verdict, and what both rest on. `table` is None when the verdict is Off or Blocked."""

    table: Table | None
    verdict: Verdict
    launch_lengths: tuple[int, ...]
    noise_ppm: int
    choices: tuple[Choice, ...]
    off_goodput: Mapping[int, float]  # tokens a second without speculation by batch size, predicted from the baseline
    loads: tuple[Load, ...]
    gains: Gains | None
    noise_assumed: bool = False  # fewer than three repeats: `noise_ppm` was not measured
    capacity: Capacity | None = None  # None: one of the engines does not say


def to_table(file: TableFile) -> str:
    return dump(
        {
            "formatVersion": FORMAT_VERSION,
            "ranges": file.table.to_vllm() if file.table else [],
            "verdict": {
                "kind": file.verdict.kind.value,
                "reason": file.verdict.reason,
                "message": file.verdict.message,
                "loads": {name: list(getattr(file.verdict.loads, name)) for name in _STANDINGS},
            },
            "launchLengths": list(file.launch_lengths),
            "noisePpm": file.noise_ppm,
            "noiseAssumed": file.noise_assumed,
            "choices": [
                {
                    "batchSize": c.batch_size,
                    "draftLength": c.draft_length,
                    "why": c.why,
                    "goodput": {
                        **({"off": _milli(file.off_goodput[c.batch_size])} if c.batch_size in file.off_goodput else {}),
                        **{str(k): _milli(g) for k, g in sorted(c.goodput.items())},
                    },
                }
                for c in file.choices
            ],
            "loads": [_load(x) for x in file.loads],
            "gainPpm": (
                {name: round(getattr(file.gains, name) * PPM) for name in ("present", "fixed", "off")} if file.gains is not None else None
            ),
            # What follows from `loads`, for those who read the file itself.
            "worstLoss": _worst(worst_loss(file.loads)),
            "predictionError": {"stepTime": _error(step_time_error(file.loads)), "goodput": _error(goodput_error(file.loads))},
            "capacity": (
                {"speculationTokens": file.capacity.speculation_tokens, "offTokens": file.capacity.off_tokens} if file.capacity else None
            ),
        }
    )


def parse_table(text: str) -> TableFile:
    """Raises FormatError."""
    root = read_root(TABLE, text)
    verdict = root.child("verdict")
    kind = verdict.text("kind")
    if kind not in VerdictKind.__members__.values():
        verdict.refuse("kind", f"is {kind!r}; it can be {', '.join(k.value for k in VerdictKind)}")
    ranges = root.value.get("ranges")
    table: Table | None = None
    if ranges or kind in (VerdictKind.TABLE, VerdictKind.FIXED):
        try:
            table = Table.parse(ranges)
        except ValueError as error:
            root.refuse("ranges", f"cannot be used: {error}")
        if table.to_vllm() != ranges:  # vLLM would carry a length over; this file was never written with a gap
            root.refuse("ranges", f"has a hole: {ranges}")
    choices, off = _parse_choices(root)
    gain = root.child("gainPpm") if root.has("gainPpm") else None
    standing = verdict.child("loads")
    capacity = root.child("capacity") if root.has("capacity") else None
    return TableFile(
        table=table,
        verdict=Verdict(
            VerdictKind(kind),
            verdict.text("reason"),
            verdict.text("message"),
            Standing(*(standing.integers(name, 1) for name in _STANDINGS)),
        ),
        launch_lengths=root.integers("launchLengths", 0),
        noise_ppm=root.integer("noisePpm", 0),
        choices=choices,
        off_goodput=off,
        loads=tuple(_parse_load(x) for x in root.children("loads")),
        gains=Gains(*(gain.integer(n, -PPM) / PPM for n in ("present", "fixed", "off"))) if gain else None,
        noise_assumed=root.boolean("noiseAssumed"),
        capacity=Capacity(capacity.integer("speculationTokens", 1), capacity.integer("offTokens", 1)) if capacity else None,
    )


_ARMS: tuple[ArmName, ...] = ("table", "present", "fixed", "off")
_STANDINGS = ("ahead", "level", "behind")


def _parse_choices(root: Node) -> tuple[tuple[Choice, ...], dict[int, float]]:
    choices: list[Choice] = []
    off: dict[int, float] = {}
    for node in root.children("choices"):
        batch_size, length = node.integer("batchSize", 1), node.integer("draftLength", 0)
        by_length: dict[int, float] = {}
        goodput = node.child("goodput")
        for name in goodput.value:
            value = goodput.integer(name, 1) / 1000
            if name == "off":
                off[batch_size] = value
            elif name.isdigit():
                by_length[int(name)] = value
            else:
                goodput.refuse(name, "is neither a draft length nor off")
        if length not in by_length:
            node.refuse("goodput", f"lacks the chosen draft length {length}")
        others = [g for k, g in by_length.items() if k != length]
        margin = by_length[length] / max(others) - 1 if others else 0.0
        choices.append(Choice(batch_size, length, by_length, margin, node.text("why")))
    return tuple(choices), off


def _parse_load(node: Node) -> Load:
    arms = node.child("arms")

    def arm(name: str) -> Arm:
        child = arms.child(name)
        predicted = child.child("predicted") if child.has("predicted") else None
        return Arm(
            child.integer("milliTokensPerSecond", 1) / 1000,
            child.integer("spreadPpm", 0) / PPM,
            child.text("setting"),
            child.integer("stepTimeMicros", 1) if child.has("stepTimeMicros") else None,
            Predicted(predicted.integer("stepTimeMicros", 1), predicted.integer("milliTokensPerSecond", 1) / 1000) if predicted else None,
        )

    here = arm("fixedHere") if arms.has("fixedHere") else None
    return Load(node.integer("batchSize", 1), arm("table"), arm("present"), arm("fixed"), arm("off"), here)


def _load(load: Load) -> dict[str, Any]:
    arms = {name: _arm(load.arm(name)) for name in _ARMS}
    return {"batchSize": load.batch_size, "arms": arms | ({"fixedHere": _arm(load.fixed_here)} if load.fixed_here else {})}


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "milliTokensPerSecond": _milli(arm.tokens_per_second),
        "spreadPpm": round(arm.spread * PPM),
        "setting": arm.setting,
        "stepTimeMicros": arm.step_time_micros,
        "predicted": (
            {"stepTimeMicros": arm.predicted.step_time_micros, "milliTokensPerSecond": _milli(arm.predicted.tokens_per_second)}
            if arm.predicted
            else None
        ),
    }


def _worst(loss: WorstLoss | None) -> dict[str, Any] | None:
    return {"batchSize": loss.batch_size, "bestFixed": loss.setting, "lossPpm": round(loss.loss * PPM)} if loss else None


def _error(error: PredictionError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "medianPpm": round(error.median * PPM),
        "worstPpm": round(error.worst * PPM),
        "worstAt": {"batchSize": error.batch_size, "setting": error.setting},
    }


def _milli(tokens_per_second: float) -> int:
    return round(tokens_per_second * 1000)
