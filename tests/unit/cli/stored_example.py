"""One set of stored files, as a profiling run leaves them.

Step times: TableTune's own measurement of one H200 (vLLM 0.33.0, shape of Qwen3-4B with an EAGLE-3 drafter of dummy weights, K = 3).
Acceptance, live loads and names are made up for layout; they are not results.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tabletune.acceptance import Counts
from tabletune.formats import ACCEPTANCE, PROFILE, TABLE, AcceptanceFile, Capacity, TableFile, to_acceptance, to_profile, to_table
from tabletune.goodput import goodput
from tabletune.profile import Cell, Fingerprint, Measurement, Profile, SkippedCell
from tabletune.table import build_choices, table_of
from tabletune.verdict import Arm, Load, Predicted, decide_verdict, gains

# B: off, k=1, k=3, milliseconds a step
STEP_TIMES = {
    1: (3.58, 3.99, 4.68),
    8: (3.67, 4.12, 4.82),
    32: (4.01, 4.44, 5.33),
    64: (4.33, 5.22, 6.65),
    96: (5.14, 5.99, 8.53),
    128: (5.58, 6.50, 10.39),
}
NOISE_PPM = 8000
COUNTS = Counts(10_000, 10_000, (10_000, 10_000, 10_000), (6_800, 3_900, 2_200))
# B: table, present, best fixed, off, tokens a second
LIVE = {1: (490, 489, 489, 279), 64: (22_010, 22_039, 22_039, 14_781), 128: (33_083, 28_212, 28_212, 22_939)}


def build_profile() -> Profile:
    return Profile(
        fingerprint=Fingerprint.of({"gpuProduct": "NVIDIA-H200", "model": "Qwen/Qwen3-4B", "method": "eagle3", "maxDraftLength": 3}),
        engine={
            "vllm": "0.33.0",
            "runner": "v2",
            "device": "cuda",
            "model": "Qwen/Qwen3-4B",
            "method": "eagle3",
            "drafter": "qwen3-4b-eagle3",
        },
        measurement=Measurement(32, 64, 3, "engine", "2026-11-30T14:32:00Z", 960, "0.1.0"),
        cells=tuple(
            Cell(b, k, round(ms * 1000), 310 if (b, k) == (64, 3) else 20, 64)
            for b, t in STEP_TIMES.items()
            for k, ms in ((1, t[1]), (3, t[2]))
        ),
        baseline=tuple(Cell(b, 0, round(t[0] * 1000), 20, 64) for b, t in STEP_TIMES.items()),
        skipped=tuple(SkippedCell(b, 2, "with 1 in the same launch set it can stall this engine") for b in STEP_TIMES),
        noise_ppm=NOISE_PPM,
        warnings=("maxDraftLength 3 is above the 2 tokens that the drafter was trained for.",),
    )


def build_loads(table: str) -> tuple[Load, ...]:
    """What runs at k=1 from B = 96 is the table; the prediction of it is 2 % too high there."""
    k1 = Arm(33_083, 0.006, "k=1", 6630, Predicted(6500, 33_745))
    return tuple(
        Load(
            b,
            replace(k1, setting=table) if b == 128 else Arm(t, 0.006, table),
            Arm(p, 0.006, "k=3"),
            Arm(f, 0.006, "k=3"),
            Arm(o, 0.005, "off", 3600, Predicted(3580, 280)) if b == 1 else Arm(o, 0.005, "off"),
            k1 if b == 128 else None,
        )
        for b, (t, p, f, o) in LIVE.items()
    )


def build_files() -> dict[str, str]:
    profile = build_profile()
    acceptance = AcceptanceFile(COUNTS, 700, 160, "5f2b1c", "shipped sample", ())
    values = {b: {k: goodput(b, k, t, COUNTS.rates) for k, t in times.items()} for b, times in profile.step_times().items()}
    choices = build_choices(values, NOISE_PPM / 1e6)
    table = table_of(choices)
    loads = build_loads(str(table))
    stored = TableFile(
        table=table,
        verdict=decide_verdict(loads, NOISE_PPM / 1e6, table=table, fixed_length=3, present_speculates=True),
        launch_lengths=(1, 3),
        noise_ppm=NOISE_PPM,
        choices=choices,
        off_goodput={c.batch_size: goodput(c.batch_size, 0, c.step_time_micros, ()) for c in profile.baseline},
        loads=loads,
        gains=gains(loads),
        capacity=Capacity(518_288, 561_920),
    )
    return {PROFILE: to_profile(profile), ACCEPTANCE: to_acceptance(acceptance), TABLE: to_table(stored)}


def write_files(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in build_files().items():
        (folder / name).write_text(text)
    return folder
