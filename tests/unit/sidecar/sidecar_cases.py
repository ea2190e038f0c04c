"""Given things for the sidecar's tests: files of a ConfigMap made from the recorded H200 step times, and an engine that takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tabletune import formats
from tabletune.acceptance import Counts, Estimate
from tabletune.formats import AcceptanceFile, FleetFile, TableFile
from tabletune.graphs import UNKNOWN
from tabletune.profile import Cell, Fingerprint, Measurement, Profile
from tabletune.table import Table
from tabletune.verdict import Verdict, VerdictKind
from tabletune_sidecar.controller import EngineFacts
from tabletune_sidecar.counters import Counters
from tabletune_sidecar.files import Files, parse_files
from tabletune_sidecar.options import Mode, PriorDecay, Settings

RECORDING = Path(__file__).resolve().parents[3] / "dev/replay/site/replay/h200.json"
CODE = (0.78, 0.58, 0.43)
PROSE = (0.36, 0.13, 0.05)
CODE_TABLE = Table.parse([[1, 127, 3], [128, 128, 1]])
ENGINE = EngineFacts(
    "boot-1",
    active=True,
    inactive_reason=None,
    vllm="0.32.0",
    launch_lengths=(1, 3),
    max_num_seqs=128,
    graphs=UNKNOWN,
)


def profile() -> Profile:
    """Lengths 1 and 3 of the recording."""
    times = json.loads(RECORDING.read_text())["stepTimeMicros"]
    cells = [Cell(int(B), k, micros, 0, 64) for k in (1, 3) for B, micros in times[str(k)].items()]
    return Profile(
        fingerprint=Fingerprint.of({"gpu": "H200"}),
        engine={"vllm": "0.33.0"},
        measurement=Measurement(32, 64, 3, "engine", "2026-11-30T14:00:00Z", 960, "0.1.0"),
        cells=tuple(cells),
        baseline=tuple(Cell(int(B), 0, micros, 0, 64) for B, micros in times["off"].items()),
        skipped=(),
        noise_ppm=8000,
    )


def counted(steps: int, rates: Sequence[float], batch_size: int = 8, draft_length: int = 3) -> Counters:
    """Counters after so many steps of one kind of traffic."""
    requests = steps * batch_size
    drafted = tuple(requests if i < draft_length else 0 for i in range(len(rates)))
    return Counters(
        steps=steps,
        tokens=requests * 2,
        request_steps=requests,
        drafted_steps=requests,
        drafted=drafted,
        kept=tuple(round(d * a) for d, a in zip(drafted, rates, strict=True)),
        chosen={(batch_size, draft_length): steps},
    )


def texts(rates: Sequence[float] = CODE, table: Table | None = CODE_TABLE, lengths: Sequence[int] = (1, 3)) -> dict[str, str]:
    """The three files that the sidecar reads."""
    drafted = 10_000
    counts = Counts(drafted, drafted, (drafted,) * len(rates), tuple(round(a * drafted) for a in rates))
    kind = VerdictKind.TABLE if table else VerdictKind.OFF
    return {
        formats.PROFILE: formats.to_profile(profile()),
        formats.ACCEPTANCE: formats.to_acceptance(AcceptanceFile(counts, 700, 160, "d1", "sample", ())),
        formats.TABLE: formats.to_table(
            TableFile(table, Verdict(kind, "TablePays", "Table gives more."), tuple(lengths), 8000, (), {}, (), None)
        ),
    }


def files(rates: Sequence[float] = CODE, table: Table | None = CODE_TABLE, lengths: Sequence[int] = (1, 3)) -> Files:
    return parse_files(texts(rates, table, lengths))


def fleet_file(rates: Sequence[float] = PROSE, table: Table | None = None, digest: str | None = None) -> FleetFile:
    """What the operator writes beside them; without a digest for just these files."""
    drafted = (5000,) * len(rates)
    return FleetFile(digest or formats.digest_of(texts()), Estimate(tuple(rates), 1.0), drafted, 2, table, "2026-11-30T14:36:00Z")


def write(folder: Path, contents: dict[str, str]) -> None:
    """Replace each file as a whole, as a mounted ConfigMap does."""
    for name, text in contents.items():
        fresh = folder / f".{name}.new"
        fresh.write_text(text)
        fresh.replace(folder / name)


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {
        "mode": Mode.TRACK,
        "prior_weight": 2000.0,
        "rebuild_every_steps": 100,
        "explore_every_steps": 50,
        "prior_decay": PriorDecay.HALVE,
        "hysteresis": 0,
        "max_swaps_per_minute": 4,
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]
