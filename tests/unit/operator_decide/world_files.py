"""What the tuner writes and what a sidecar answers, for the small world. Numbers are made up; they only have to agree."""

from __future__ import annotations

import json
from typing import Any

from tabletune import formats
from tabletune.acceptance import Counts
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.table import Choice, Range, Table
from tabletune.verdict import Arm, Load, Verdict, VerdictKind, gains

Body = dict[str, Any]


def files(fingerprint: Fingerprint, kind: VerdictKind = VerdictKind.TABLE) -> dict[str, str]:
    """The ConfigMap's data, as the tuner writes it. Numbers are made up; they only have to agree with each other."""
    table = Table((Range(1, 95, 3), Range(96, 128, 1))) if kind is not VerdictKind.FIXED else Table((Range(1, 128, 3),))
    present = 107.0 if kind is VerdictKind.PRESENT else 100.0
    arm = {"table": 105.0, "present": present, "fixed": 101.0, "off": 110.0 if kind is VerdictKind.OFF else 60.0}
    loads = tuple(Load(b, *(Arm(arm[name] * b, 0.004, name) for name in ("table", "present", "fixed", "off"))) for b in (1, 64, 128))
    reasons = {
        VerdictKind.TABLE: ("TablePays", "Table gives +5.0 % tokens/s against the present setting (k=3) over 3 loads; noise 0.8 %."),
        VerdictKind.FIXED: ("FixedLengthPays", "One length (k=3) is as good as a table over 3 loads; noise 0.8 %."),
        VerdictKind.PRESENT: (
            "PresentPays",
            "The present setting (k=3) gives +1.9 % tokens/s over the table and +5.9 % over the best fixed length (k=3) over 3 loads.",
        ),
        VerdictKind.OFF: (
            "SpeculationLoses",
            "Serving without speculation gives +4.8 % tokens/s over the table over 3 loads; noise 0.8 %.",
        ),
        VerdictKind.BLOCKED: ("NotVerified", "No load could be measured live, so nothing is known to pay."),
    }
    shown = table if kind in {VerdictKind.TABLE, VerdictKind.FIXED} else None
    cells = tuple(Cell(b, k, 4000 + 10 * b * k, 20, 30) for b in (1, 64, 128) for k in (1, 3))
    profile = Profile(
        fingerprint, {"vllm": "0.33.0"}, Measurement(32, 64, 3, "engine", "2026-11-30T14:00:00Z", 960, "0.1.0"), cells, (), (), 8000
    )
    acceptance = formats.AcceptanceFile(Counts(100, 100, (100, 100, 100), (68, 39, 22)), 700, 160, "abc", "sample", ())
    choices = tuple(Choice(b, 3 if b < 96 else 1, {1: 90.0 * b, 3: 100.0 * b}, 0.1, "best length") for b in (1, 64, 128))
    decision = formats.TableFile(
        shown, Verdict(kind, *reasons[kind]), (1, 3), 8000, choices, {b: 60.0 * b for b in (1, 64, 128)}, loads, gains(loads)
    )
    present_config: Body = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}
    config = present_config if kind is VerdictKind.PRESENT else {**present_config, "num_speculative_tokens_per_batch_size": table.to_vllm()}
    return {
        formats.PROFILE: formats.to_profile(profile),
        formats.ACCEPTANCE: formats.to_acceptance(acceptance),
        formats.TABLE: formats.to_table(decision),
        formats.SPECULATIVE_CONFIG: json.dumps({} if kind in {VerdictKind.OFF, VerdictKind.BLOCKED} else config),
    }


def sidecar_state(honoured: str = "Proved", ranges: list[list[int]] | None = None, **engine: Any) -> Body:
    return {
        "formatVersion": 1,
        "engine": {"reachable": True, "bootId": "b", "active": True, "inactiveReason": None, "vllm": "0.33.0", **engine},
        "table": {"inForce": ranges or [[1, 95, 3], [96, 128, 1]], "generation": 1, "wanted": None, "changes": 0, "rebuilds": 0},
        "honoured": honoured,
        "honouredSteps": 2000,
        "violations": 1204 if honoured == "NotHonoured" else 0,
        "acceptance": {"prior": [0.68, 0.39, 0.22], "live": None, "used": [0.68, 0.39, 0.22], "coverage": 1.0},
        "counts": {"drafted": [100, 100, 100], "kept": [69, 40, 22], "draftLengthLast": 3},
        "batchSizeLast": 31,
        "tracks": True,
        "problems": [],
    }
