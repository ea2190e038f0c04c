"""The short strings that `kubectl get dt` shows (`status.display`). Pure; every column has a value from the first second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tabletune.table import Table
from tabletune.verdict import ArmName, VerdictKind, mean_gain
from tabletune_operator.conditions import Reason, clipped
from tabletune_operator.kinds import KINDS
from tabletune_operator.observation import Damage, Files, Observation
from tabletune_operator.status import Display, ProfileStatus
from tabletune_operator.times import spoken

NOTHING = "-"
UNCHANGED = "unchanged"
"""In place of a table, where the present setting stays."""
LONGEST_MESSAGE = 120
MOST_RANGES = 5
RANGES_SHOWN = 2

_ARMS: dict[VerdictKind, ArmName] = {
    VerdictKind.TABLE: "table",
    VerdictKind.FIXED: "fixed",
    VerdictKind.PRESENT: "present",
    VerdictKind.OFF: "off",
    VerdictKind.BLOCKED: "table",
}
"""What was measured of the decision; of a table without one, what it would give."""

_VENDORS = ("NVIDIA-", "AMD-", "Tesla-")


def build_display(
    seen: Observation, deciding: Reason, message: str, *, files: Files | None, profile: ProfileStatus, live: Sequence[Table], honoured: int
) -> Display:
    """`deciding` is the reason that the object is in its state for; `live` are the tables in force, one for each replica heard."""
    return Display(
        target=_target(seen),
        state=_state(deciding, profile),
        verdict=_verdict(files),
        table=_table(files, live),
        gain=_gain(files),
        gpu=", ".join(short_product(p.name) for p in seen.products) or NOTHING,
        replicas=_replicas(seen, honoured),
        noise=f"{files.table.noise_ppm / 10_000:.1f}%" if files is not None else NOTHING,
        loads=_loads(files),
        profile=_profile(files, profile),
        reason=deciding.name,
        message=clipped(message, LONGEST_MESSAGE),
    )


def short_product(product: str) -> str:
    """`NVIDIA-H200` is H200 in a column: the vendor tells nothing that the name does not."""
    for vendor in _VENDORS:
        product = product.removeprefix(vendor)
    return product or NOTHING


def ranges_text(table: Table) -> str:
    """`1-95:3 96-128:1`; long tables show their first ranges and how many follow."""
    ranges = str(table).split(" ")
    if len(ranges) <= MOST_RANGES:
        return " ".join(ranges)
    return f"{' '.join(ranges[:RANGES_SHOWN])} +{len(ranges) - RANGES_SHOWN}"


def percent_text(share: float, *, sign: bool = True) -> str:
    return f"{share * 100:{'+' if sign else ''}.1f}%"


def gain_over_present(files: Files) -> float | None:
    """Mean over the loads of what was decided against the setting that ran before; None when no load was measured."""
    if not files.table.loads:
        return None
    return mean_gain(files.table.loads, _ARMS[files.kind], "present")


def _state(deciding: Reason, profile: ProfileStatus) -> str:
    if deciding.name == "Profiling" and profile.percent is not None:
        return f"{deciding.state} {profile.percent}%"
    return deciding.state


def _target(seen: Observation) -> str:
    if isinstance(seen.draft.spec, Damage):
        return NOTHING
    ref = seen.draft.spec.target_ref
    return clipped(f"{KINDS[ref.kind].short_name if ref.kind in KINDS else ref.kind.lower()}/{ref.name}", 253)


def _verdict(files: Files | None) -> str:
    if files is None:
        return NOTHING
    if files.kind is VerdictKind.FIXED and files.table.table is not None and len(files.table.table.lengths) == 1:
        return f"Fixed {files.table.table.lengths[0]}"
    return files.kind.value


def _table(files: Files | None, live: Sequence[Table]) -> str:
    if files is not None and files.kind is VerdictKind.OFF:
        return "off"
    if files is not None and files.kind is VerdictKind.PRESENT:
        return UNCHANGED
    if not live:
        decided = files.table.table if files is not None and files.kind is not VerdictKind.BLOCKED else None
        return ranges_text(decided) if decided is not None else NOTHING
    ((most, _), *others) = Counter(live).most_common()
    return f"{ranges_text(most)} and {len(others)} more" if others else ranges_text(most)


def _gain(files: Files | None) -> str:
    gain = gain_over_present(files) if files is not None else None
    return percent_text(gain) if gain is not None else NOTHING


def _replicas(seen: Observation, honoured: int) -> str:
    if seen.workload is None:
        return NOTHING
    return f"{honoured}/{seen.workload.desired}"


def _loads(files: Files | None) -> str:
    sizes = [load.batch_size for load in files.table.loads] if files is not None else []
    return (f"{min(sizes)}..{max(sizes)}" if len(sizes) > 1 else str(sizes[0])) if sizes else NOTHING


def _profile(files: Files | None, profile: ProfileStatus) -> str:
    if files is not None:
        if files.reused_from is not None:
            return "reused"
        gpu_seconds = files.profile.measurement.gpu_seconds
        return f"new, {spoken(gpu_seconds)}" if gpu_seconds else "new, no GPU"
    if profile.cells_total:
        return f"{profile.cells_done or 0}/{profile.cells_total} cells"
    return NOTHING
