"""The engine's monotone counters (docs/protocol.md, `counts` and `steps`), and their sums over engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tabletune.acceptance import Counts

Plain = TypeVar("Plain", bool, int, str)
Chosen = Mapping[tuple[int, int], int]  # steps by (batch size, draft length chosen)

DECODE, PREFILL = "decode", "prefill"
"""Regimes of a step; the third one, beside a prefill, is of no use here."""


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters at one moment; every field only grows while one engine runs. Index 0 of `drafted` and `kept` is position 1."""

    steps: int = 0
    tokens: int = 0
    request_steps: int = 0
    drafted_steps: int = 0
    drafted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    chosen: Chosen = field(default_factory=dict)
    violations: int = 0
    exploring_steps: int = 0
    swaps: int = 0
    graph_cures: int = 0

    def plus(self, other: Counters) -> Counters:
        return _combine(self, other, 1)

    def since(self, earlier: Counters) -> Counters:
        """What was counted after `earlier` by the same engine."""
        return _combine(self, earlier, -1)

    def acceptance(self, positions: int) -> Counts:
        """The part that acceptance is estimated from, for so many positions.

        An answer is read while the engine counts, so one number may be a step ahead of another: what cannot be is cut down.
        """
        drafted = _fit(self.drafted, positions)
        kept = tuple(min(k, d) for k, d in zip(_fit(self.kept, positions), drafted, strict=True))
        return Counts(self.request_steps, min(self.drafted_steps, self.request_steps), drafted, kept)


def steps_at(chosen: Chosen) -> dict[int, int]:
    """Steps by batch size, whatever length was chosen."""
    steps: dict[int, int] = {}
    for (batch_size, _), count in chosen.items():
        steps[batch_size] = steps.get(batch_size, 0) + count
    return steps


@dataclass(frozen=True, slots=True)
class StepCell:
    """Steps of one batch size, draft length and regime. `prompt_tokens`: all that its steps with a prefill carried."""

    batch_size: int
    draft_length: int
    regime: str
    count: int
    total_micros: int
    prompt_tokens: int = 0


def parse_counters(fields: Mapping[str, Any]) -> Counters:
    """Counters in the socket's and the state file's form. Raises KeyError, TypeError or ValueError for anything else."""
    return Counters(
        steps=expect(int, fields["steps"]),
        tokens=expect(int, fields["tokens"]),
        request_steps=expect(int, fields["requestSteps"]),
        drafted_steps=expect(int, fields["draftedSteps"]),
        drafted=tuple(expect(int, n) for n in fields["drafted"]),
        kept=tuple(expect(int, n) for n in fields["kept"]),
        chosen={(expect(int, B), expect(int, k)): expect(int, steps) for B, k, steps in fields["chosen"]},
        violations=expect(int, fields["violations"]),
        exploring_steps=expect(int, fields["exploringSteps"]),
        swaps=expect(int, fields["swaps"]),
        graph_cures=expect(int, fields["graphCures"]),
    )


def to_counters(counters: Counters) -> dict[str, Any]:
    """The inverse of `parse_counters`."""
    return {
        "steps": counters.steps,
        "tokens": counters.tokens,
        "requestSteps": counters.request_steps,
        "draftedSteps": counters.drafted_steps,
        "drafted": list(counters.drafted),
        "kept": list(counters.kept),
        "chosen": [[B, k, steps] for (B, k), steps in sorted(counters.chosen.items())],
        "violations": counters.violations,
        "exploringSteps": counters.exploring_steps,
        "swaps": counters.swaps,
        "graphCures": counters.graph_cures,
    }


def expect(kind: type[Plain], value: Any) -> Plain:
    """The value, if it is of exactly this JSON type. Raises TypeError."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r:.60}")
    return value


def expect_number(value: Any) -> float:
    """The value, if it is a whole or broken JSON number. Raises TypeError."""
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, found {value!r:.60}")
    return float(value)


def _combine(a: Counters, b: Counters, sign: int) -> Counters:
    def numbers(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
        width = max(len(x), len(y))
        return tuple(max(0, p + sign * q) for p, q in zip(_fit(x, width), _fit(y, width), strict=True))

    def number(x: int, y: int) -> int:
        return max(0, x + sign * y)

    chosen = {cell: number(a.chosen.get(cell, 0), b.chosen.get(cell, 0)) for cell in sorted(a.chosen.keys() | b.chosen.keys())}
    return Counters(
        steps=number(a.steps, b.steps),
        tokens=number(a.tokens, b.tokens),
        request_steps=number(a.request_steps, b.request_steps),
        drafted_steps=number(a.drafted_steps, b.drafted_steps),
        drafted=numbers(a.drafted, b.drafted),
        kept=numbers(a.kept, b.kept),
        chosen={cell: steps for cell, steps in chosen.items() if steps},
        violations=number(a.violations, b.violations),
        exploring_steps=number(a.exploring_steps, b.exploring_steps),
        swaps=number(a.swaps, b.swaps),
        graph_cures=number(a.graph_cures, b.graph_cures),
    )


def _fit(values: tuple[int, ...], width: int) -> tuple[int, ...]:
    return (*values[:width], *(0,) * (width - len(values)))
