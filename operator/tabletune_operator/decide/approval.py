"""Whether a roll-out has its user's leave (spec.rollout.approval), and what to say to who is to give it.

What is approved is a table, by its digest, so that a leave that was given for one is never used for the next.
"""

from __future__ import annotations

from tabletune.verdict import VerdictKind
from tabletune_operator.conditions import LONGEST_MESSAGE, RolledOut, clipped, short
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.decide.stage import Stage, percent
from tabletune_operator.display import gain_over_present
from tabletune_operator.observation import Files, Observation, Workload
from tabletune_operator.rollout import APPROVE_ANNOTATION


def approval_of(seen: Observation, files: Files) -> str | None:
    """The annotation's value, if it approves this table; it is also how one more try is asked for."""
    return files.digest if seen.draft.approve == files.digest else None


def judge_approval(seen: Observation, spec: DraftTableSpec, workload: Workload, files: Files, why: str = "") -> Stage | None:
    """None: approved, or no approval is asked for. `why`: what needs the restart, as a clause."""
    if spec.rollout.approval == "Auto" or approval_of(seen, files) is not None:
        return None
    ref, digest = seen.draft.ref, files.digest
    step = f"To approve: kubectl annotate --overwrite dt {ref.name} -n {ref.namespace} {APPROVE_ANNOTATION}={digest}"
    given = seen.draft.approve
    other = f" (the annotation approves {short(given, 24)}, another one)" if given else ""
    count = workload.desired
    restarts = "1 restart of 1 replica" if count == 1 else f"1 restart for each of {count} replicas"
    what = f"{_what(files)} waits for approval{other}: {_gain(files)}{restarts}{f' ({why})' if why else ''}. Nothing is changed."
    return Stage(RolledOut.AWAITING_APPROVAL, f"{clipped(what, max(40, LONGEST_MESSAGE - 1 - len(step)))} {step}")


def _what(files: Files) -> str:
    match files.kind:
        case VerdictKind.OFF:
            return f"Speculation off ({files.digest})"
        case VerdictKind.PRESENT:
            return f"The setting before us ({files.digest})"
        case _:
            return f"Table {files.digest}"


def _gain(files: Files) -> str:
    gain = gain_over_present(files)
    return f"{percent(gain, sign=True)} tokens/s (noise {percent(files.table.noise_ppm / 1_000_000)}), " if gain is not None else ""
