"""What `kubectl get dt` shows along the whole way, as a person sees it; `golden/get.txt` is the screen."""

from __future__ import annotations

from pathlib import Path

from world import World, deployment, draft_table
from world_files import sidecar_state

from tabletune.table import Range, Table
from tabletune.verdict import VerdictKind
from tabletune_operator.display import percent_text, ranges_text, short_product
from tabletune_operator.schema import build_crd

GOLDEN = Path(__file__).parent / "golden" / "get.txt"


def columns() -> list[tuple[str, str]]:
    """Names and paths of all columns but Age, wide ones last, as the CRD has them."""
    (version,) = build_crd()["spec"]["versions"]
    shown = version["additionalPrinterColumns"]
    return [(c["name"], c["jsonPath"]) for c in sorted(shown, key=lambda c: c["priority"]) if c["name"] != "Age"]


def row(made: World, name: str = "chat") -> list[str]:
    status = made.get("DraftTable", name)["status"]
    return [
        name,
        *(
            made.condition("Ready", name)[0] if "conditions" in path else str(status["display"][path.rpartition(".")[2]])
            for _, path in columns()
        ),
    ]


async def screens() -> list[list[str]]:
    made = World(deployment(), draft_table())
    rows = []
    made.roll(ready=False)
    await made.turn()
    rows.append(row(made))
    made.roll()
    await made.turn()
    rows.append(row(made))
    made.progress()
    await made.turn()
    rows.append(row(made))
    made.finish_profile()
    await made.turn()
    rows.append(row(made))
    await made.turns(1)
    rows.append(row(made))
    await made.turns(2)
    rows.append(row(made))
    for address in made.states:
        made.states[address] = sidecar_state(ranges=[[1, 63, 3], [64, 128, 1]])
    await made.turn()
    rows.append(row(made))
    made.states[min(made.states)] = None
    made.now = made.now.replace(hour=16)
    await made.turn()
    rows.append(row(made))
    container = made.get("Deployment", "decode")["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["model"]
    await made.turn()
    rows.append(row(made))
    recommend = {"rollout": {"mode": "Recommend"}}
    for kind, spec in ((VerdictKind.OFF, {}), (VerdictKind.FIXED, {}), (VerdictKind.PRESENT, {}), (VerdictKind.TABLE, recommend)):
        other = World(deployment(), draft_table(**spec))
        other.roll()
        await other.until_rolling_out(kind)
        await other.turns(2)
        rows.append(row(other))
    old = World(deployment(), draft_table())
    old.roll()
    for address in old.versions:
        old.versions[address] = "0.23.0"
    await old.turn()
    rows.append(row(old))
    return rows


def rendered(rows: list[list[str]]) -> str:
    table = [["NAME", *(name.upper() for name, _ in columns())], *rows]
    widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
    return "".join("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in table)


async def test_the_screen_is_the_golden_one() -> None:
    rows = await screens()
    assert all(cell for line in rows for cell in line), "no column is ever blank"
    assert all(len(line[-1]) <= 120 for line in rows)
    assert rendered(rows) == GOLDEN.read_text()


def test_long_tables_show_their_beginning() -> None:
    ranges = tuple(Range(1 + 10 * at, 10 + 10 * at, at % 2) for at in range(6))
    assert ranges_text(Table(ranges[:5])) == "1-10:0 11-20:1 21-30:0 31-40:1 41-50:0"
    assert ranges_text(Table(ranges)) == "1-10:0 11-20:1 +4"


def test_numbers_have_their_unit() -> None:
    assert percent_text(0.0361) == "+3.6%"
    assert percent_text(-0.0004) == "-0.0%"
    assert percent_text(0.008, sign=False) == "0.8%"
    assert short_product("NVIDIA-A100-SXM4-80GB") == "A100-SXM4-80GB"
    assert short_product("") == "-"
