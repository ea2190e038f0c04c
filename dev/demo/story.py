"""The story of the demonstration: what happens, in order, with what was measured on the way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table as Grid
from traffic import CODE, PROSE, Traffic
from workshop import NAMESPACE, Workshop

from tabletune import formats
from tabletune.profile import Profile
from tabletune.table import Table

NAME = "demo"
DRAFTTABLE = "drafttables.tabletune.io"
SIDECAR_PORT = 9478
PHASE_SECONDS = {"vllm": 60, "replay": 20}  # of code, and of prose: a stand-in as quick as a GPU shows a change within seconds
STALLED_SECONDS = 30


class StoryError(Exception):
    """The job did not come to its good end; the message says at which point."""


@dataclass(slots=True)
class Ledger:
    """What the last screen tells."""

    profiling_seconds: float = 0.0
    rollout_seconds: float = 0.0
    answered: int = 0
    failed: int = 0
    before_switch: str = "-"
    after_switch: str = "-"
    tables: list[str] = field(default_factory=list)
    swap_seconds: float | None = None


class Story:
    def __init__(self, workshop: Workshop, console: Console, ledger: Ledger) -> None:
        self.workshop = workshop
        self.console = console
        self.ledger = ledger

    async def tell(self) -> int:
        shop = self.workshop
        shop.build()
        shop.install()
        shop.deploy()
        self._chapter("kubectl apply -f drafttable.yaml")
        path = shop.apply_drafttable()
        self.console.print(path.read_text(), highlight=False, style="dim")
        await self._watch()
        self._show_result()
        table = self._files()[1]
        if table.table is not None:
            await self._show_tracking()
        else:
            self.console.print(f"  The verdict of this run is {table.verdict.kind}, so there is no table to follow traffic with.")
        self._end()
        return 1 if self.ledger.failed else 0

    def _chapter(self, title: str) -> None:
        self.console.print()
        self.console.print(Rule(f"[bold]{title}", align="left"))

    # -- watching ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """`kubectl get dt -w`, a line for each change, until the DraftTable is ready or needs a human."""
        began = time.monotonic()
        rolled_since: float | None = None
        stalled_since: float | None = None  # an earlier run's verdict may stand until the operator has looked again
        last = ""
        while True:
            status = self.workshop.get(DRAFTTABLE, NAME, "-n", NAMESPACE).get("status", {})
            display = status.get("display", {})
            fact = _condition(status, "Ready").get("message", "").split(". ")[0]  # what follows is consequence and next step
            line = f"{display.get('state', '-'):<15} {display.get('table', '-'):<18} {fact}"
            if line != last and display:
                self.console.print(f"[dim]{datetime.now(UTC):%H:%M:%SZ}[/] {line}", highlight=False)
                last = line
            if display.get("state") == "RollingOut" and rolled_since is None:
                rolled_since = time.monotonic()
                self.ledger.profiling_seconds = rolled_since - began
            if _condition(status, "Ready").get("status") == "True":
                self.ledger.rollout_seconds = time.monotonic() - (rolled_since or time.monotonic())
                return
            is_stalled = _condition(status, "Stalled").get("status") == "True"
            stalled_since = (stalled_since or time.monotonic()) if is_stalled else None
            if stalled_since is not None and time.monotonic() - stalled_since > STALLED_SECONDS:
                raise StoryError(f"{display.get('state')}: {_condition(status, 'Ready').get('message')}")
            if time.monotonic() - began > 1500:
                raise StoryError(f"not ready after 25 minutes; last: {last}")
            await asyncio.sleep(2)

    # -- what came out ----------------------------------------------------------------------------------------------

    def _show_result(self) -> None:
        shop = self.workshop
        self._chapter("kubectl get dt -o wide")
        self.console.print(shop.kubectl("get", "dt", "-n", NAMESPACE, "-o", "wide"), highlight=False, soft_wrap=True)
        self._chapter("Conditions")
        conditions = Grid(box=box.SIMPLE, pad_edge=False)
        for column in ("condition", "status", "reason", "message"):
            conditions.add_column(column, overflow="fold")
        for condition in shop.get(DRAFTTABLE, NAME, "-n", NAMESPACE)["status"]["conditions"]:
            conditions.add_row(condition["type"], condition["status"], condition["reason"], condition["message"])
        self.console.print(conditions)
        self._chapter(f"tabletune explain -n {NAMESPACE} {NAME}")
        self.console.print("\n".join(shop.tabletune("explain", "-n", NAMESPACE, NAME)), highlight=False, markup=False)
        self._chapter("The rolled pods")
        self.console.print(shop.kubectl("get", "pods", "-n", NAMESPACE), highlight=False)
        out = shop.root / "out"
        shop.tabletune("plot", "-n", NAMESPACE, NAME, "--out", str(out))

    def _files(self) -> tuple[Profile, formats.TableFile, formats.AcceptanceFile]:
        """The ConfigMap's files."""
        files = self.workshop.get("configmap", f"{NAME}-tabletune", "-n", NAMESPACE)["data"]
        return (
            formats.parse_profile(files[formats.PROFILE]),
            formats.parse_table(files[formats.TABLE]),
            formats.parse_acceptance(files[formats.ACCEPTANCE]),
        )

    # -- tracking ---------------------------------------------------------------------------------------------------

    async def _show_tracking(self) -> None:
        """Prompts, code first and then prose; the sidecars follow without a restart."""
        seconds = PHASE_SECONDS[self.workshop.engine]
        self._chapter(f"{2 * seconds} seconds of real prompts: code, then prose")
        service = self.workshop.get("service", "gemma", "-n", NAMESPACE)["spec"]
        traffic = Traffic(f"http://{service['clusterIP']}:8000", "gemma-3-270m", in_flight=6)
        task = asyncio.create_task(traffic.run())
        try:
            traffic.talk = CODE
            await self._report("code", traffic, seconds)
            self.ledger.before_switch = await self._acceptance()
            traffic.talk = PROSE
            await self._report("prose", traffic, seconds)
            self.ledger.after_switch = await self._acceptance()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.ledger.answered, self.ledger.failed = traffic.tally.answered, len(traffic.tally.failures)
        for failure in traffic.tally.failures[:3]:
            self.console.print(f"[red]✖ failed request: {failure}[/]")

    async def _report(self, phase: str, traffic: Traffic, seconds: float) -> None:
        began, last_line = time.monotonic(), 0.0
        while time.monotonic() - began < seconds:
            states = await self._states()
            # What the sidecars want: a length that is tried for its step time is in force too, and is no answer to the traffic.
            spoken = " | ".join(sorted({str(Table.parse(s["table"]["wanted"])) for s in states if s["table"]["wanted"]}))
            changed = bool(spoken) and (not self.ledger.tables or self.ledger.tables[-1] != spoken)
            if changed:
                self.ledger.tables.append(spoken)
                if phase == "prose" and self.ledger.swap_seconds is None and len(self.ledger.tables) > 1:
                    self.ledger.swap_seconds = time.monotonic() - began
            if changed or time.monotonic() - last_line > 10:
                last_line = time.monotonic()
                rates = "  ".join(_rates(s) for s in states)
                tried = sorted({_trial(s) for s in states if s["stepTimes"]["trying"]})
                mark = " [bold green]← table changed, no restart[/]" if changed and len(self.ledger.tables) > 1 else ""
                self.console.print(
                    f"[dim]{datetime.now(UTC):%H:%M:%SZ}[/] {phase:<5} {traffic.tally.answered:>4} answered, "
                    f"{len(traffic.tally.failures)} failed   kept {rates}   table {spoken}{mark}{' '.join(tried)}",
                    highlight=False,
                )
            await asyncio.sleep(1)

    async def _states(self) -> list[dict[str, Any]]:
        pods = self.workshop.get("pods", "-n", NAMESPACE, "-l", "llm-d.ai/guide=demo")["items"]
        addresses = sorted(p["status"]["podIP"] for p in pods if p["status"].get("podIP") and not p["metadata"].get("deletionTimestamp"))
        async with httpx.AsyncClient(timeout=5) as client:
            answers = await asyncio.gather(*(client.get(f"http://{a}:{SIDECAR_PORT}/state") for a in addresses))
        return [a.json() for a in answers]

    async def _acceptance(self) -> str:
        return "  ".join(_rates(s) for s in await self._states())

    # -- the end ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        ledger = self.ledger
        profile, table, acceptance = self._files()
        self.console.print()
        self.console.print(Rule("[bold]What just happened", align="left"))
        facts = Grid(box=None, show_header=False, pad_edge=False)
        facts.add_row(
            "  measured",
            f"{len(profile.cells) + len(profile.baseline)} cells of T(B,k), acceptance on {acceptance.prompt_count} prompts",
            f"{ledger.profiling_seconds / 60:.1f} min",
        )
        facts.add_row(
            "  decided",
            f"{table.verdict.kind}" + (f": {table.table}" if table.table else ""),
            f"noise floor {table.noise_ppm / 10_000:.1f} %",
        )
        if table.table is not None:
            replicas = self.workshop.get(DRAFTTABLE, NAME, "-n", NAMESPACE)["status"]["display"]["replicas"]
            facts.add_row("  rolled out", f"{replicas} replicas proved that they run the table", f"{ledger.rollout_seconds / 60:.1f} min")
            swap = (
                f"table changed {ledger.swap_seconds:.0f} s after the switch, no restart"
                if ledger.swap_seconds is not None
                else "the table did not change"
            )
            facts.add_row("  adapted", f"code → prose: kept {ledger.before_switch} → {ledger.after_switch}", swap)
        facts.add_row("  served", f"{ledger.answered} requests answered, {ledger.failed} failed", "")
        self.console.print(facts)
        self.console.print()
        self.console.print(_loads(table))
        if self.workshop.engine == "vllm":
            self.console.print("  This run used a small model on CPU: it shows the mechanism, not the speed of your GPU.")
        else:
            self.console.print("  This run used the stand-in engine (dev/replay): it shows the mechanism; no model ran.")
        self.console.print('  Try next  eval "$(dev/cluster/cluster env)"', highlight=False)
        self.console.print(f"            kubectl get dt -n {NAMESPACE}; kubectl describe dt {NAME} -n {NAMESPACE}", highlight=False)
        self.console.print(f"            kubectl delete dt {NAME} -n {NAMESPACE}      gives the workload back as it was", highlight=False)
        self.console.print("  Plots     out/step-time.png  out/goodput.png        Clean up  make demo-down", highlight=False)


def _loads(file: formats.TableFile) -> Grid:
    """Before and after at each load; only a difference beyond the noise is called one."""
    noise = max(0.005, file.noise_ppm / formats.PPM)
    setting = file.loads[0].present.setting if file.loads else "-"
    shown = Grid(
        box=box.SIMPLE,
        pad_edge=False,
        title="tokens/s, median ± spread of the repeats, measured live before the roll-out",
        title_justify="left",
    )
    for column in ("load", f"before ({setting})", "table", "gain", "verdict", "no speculation"):
        shown.add_column(column, justify="left" if column in ("load", "verdict") else "right")
    for load in file.loads:
        gain = load.table.tokens_per_second / load.present.tokens_per_second - 1
        word = "same" if abs(gain) <= noise else ("[green]faster[/]" if gain > 0 else "[red]slower[/]")
        shown.add_row(f"B={load.batch_size}", _arm(load.present), _arm(load.table), f"{gain * 100:+.1f} %", word, _arm(load.off))
    return shown


def _arm(arm: Any) -> str:
    return f"{arm.tokens_per_second:,.0f} ± {arm.tokens_per_second * arm.spread:,.0f}"


def _rates(state: dict[str, Any]) -> str:
    """What the sidecar uses: a_1/a_2/..., and in which share of the steps there was a draft at all."""
    coverage = state["acceptance"]["coverage"]
    return "/".join(f"{a:.2f}" for a in state["acceptance"]["used"]) + (f" x {coverage:.0%}" if coverage < 1 else "")


def _trial(state: dict[str, Any]) -> str:
    """A length that is in force for some steps, so that its live step time gets known."""
    first, last, length = state["stepTimes"]["trying"]
    return f" [dim](tries {length} at {first}-{last})[/]"


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
