"""The table that new replicas start from: the rolled-out one, or a better one that a replica runs already, if it does no worse there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from tabletune.acceptance import Estimate
from tabletune.formats import PPM
from tabletune.goodput import predict_goodput
from tabletune.prediction import goodput_error
from tabletune.table import Table
from tabletune_operator.decide.stage import percent
from tabletune_operator.display import ranges_text
from tabletune_operator.observation import Files, SidecarState

LEAST_STEPS = 1000
"""Of a replica with its table in force, before its goodput counts: some seconds of a busy engine."""


@dataclass(frozen=True, slots=True)
class StartTable:
    """`table` None: the rolled-out one. `trial`: what was seen of the table in question, in words."""

    table: Table | None
    trial: str | None = None


@dataclass(frozen=True, slots=True)
class _Trial:
    """How replicas with a table do against those without; `gain` None: not enough steps yet."""

    gain: float | None
    replicas: int
    others: int


def judge_start_table(replicas: Sequence[SidecarState], files: Files, traffic: Estimate, present: Table | None) -> StartTable:
    """Choose anew from what is seen; nothing of an earlier look is needed but the table that was chosen then.

    Args:
        replicas: of like traffic.
        files: whose table was rolled out and verified live; there is one.
        traffic: the fleet's.
        present: the table that new replicas start from now; None: the rolled-out one.
    """
    rolled_out = files.table.table
    if rolled_out is None:
        return StartTable(None)
    goodput = predict_goodput(files.profile.step_times(), traffic, files.profile.prefills())
    noise = files.profile.switch_gain
    error = measuring_error(files)
    told: str | None = None
    worth = 0.0  # of the present table over the rolled-out one
    if present is not None:
        trial, gain = _try(present, replicas), _gain(present, rolled_out, goodput)
        if trial.gain is not None and trial.gain < -error:
            told = _say(present, trial, error, "New replicas do not start from it any more.")
            present = None
        elif gain is None or (1 + gain) * (1 + noise) < 1:
            present = None  # the rolled-out table is the better one again
        else:
            worth = gain
    for more, table in _ranked({s.in_force for s in replicas if s.in_force is not None}, rolled_out, files, goodput):
        if 1 + more <= (1 + worth) * (1 + noise):
            break
        trial = _try(table, replicas)
        if trial.gain is not None and trial.gain >= -error:
            return StartTable(table, _say(table, trial, error, "New replicas start from it."))
        told = told or _say(table, trial, error, "Not spread.")
    return StartTable(present, told)


def _ranked(tables: set[Table], rolled_out: Table, files: Files, goodput: Mapping[int, Mapping[int, float]]) -> list[tuple[float, Table]]:
    """Tables that every engine of this roll-out can run, with their predicted gain over the rolled-out one, the best first."""
    allowed = set(files.table.launch_lengths)
    gains = [(_gain(t, rolled_out, goodput), t) for t in tables if t != rolled_out and allowed.issuperset(t.lengths)]
    return sorted(((gain, t) for gain, t in gains if gain is not None), key=lambda item: (-item[0], str(item[1])))


def _gain(table: Table, rolled_out: Table, goodput: Mapping[int, Mapping[int, float]]) -> float | None:
    """Predicted, as geometric mean over the measured batch sizes; None where the table uses what could not be measured."""
    logs: list[float] = []
    for B, row in goodput.items():
        if rolled_out.length_at(B) in row:
            if table.length_at(B) not in row:
                return None
            logs.append(log(row[table.length_at(B)] / row[rolled_out.length_at(B)]))
    return exp(sum(logs) / len(logs)) - 1 if logs else None


def _try(table: Table, replicas: Sequence[SidecarState]) -> _Trial:
    """Against the replicas with another table; if there are none, against what is predicted for the rolled-out one."""
    own = [s for s in replicas if s.in_force == table]
    others = [s for s in replicas if s.in_force not in {None, table}]
    ratio, usual = _ratio(own), _ratio(others) if others else 1.0
    return _Trial(ratio / usual - 1 if ratio is not None and usual else None, len(own), len(others))


def _ratio(replicas: Sequence[SidecarState]) -> float | None:
    """Output tokens of those predicted for the rolled-out table; None while nobody has enough steps."""
    told = [s.goodput for s in replicas if s.goodput is not None and s.goodput.steps >= LEAST_STEPS]
    expected = sum(g.expected_tokens for g in told)
    return sum(g.tokens for g in told) / expected if expected else None


def measuring_error(files: Files) -> float:
    """A difference below it says nothing: the noise of the live comparison, or how far predictions were off in it."""
    missed = goodput_error(files.table.loads)
    return max(files.table.noise_ppm / PPM, missed.median if missed is not None else 0.0)


def _say(table: Table, trial: _Trial, error: float, then: str) -> str:
    replicas = "1 replica" if trial.replicas == 1 else f"{trial.replicas} replicas"
    against = f"{trial.others} with another table" if trial.others else "the rolled-out table's prediction"
    if trial.gain is None:
        return f"{ranges_text(table)} on {replicas}: fewer than {LEAST_STEPS} steps measured yet against {against}."
    return f"{ranges_text(table)} on {replicas}: {percent(trial.gain, sign=True)} against {against}, noise {percent(error)}. {then}"
