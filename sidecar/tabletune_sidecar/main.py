"""The sidecar's loop: read files and engine, decide, push, prove, show. It outlives whatever it talks to."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import FrameType

import httpx

from tabletune.channel import ChannelClosedError, ChannelError
from tabletune_sidecar import goodput, honour
from tabletune_sidecar.controller import EngineFacts, Push, State, decide, took
from tabletune_sidecar.counters import StepCell
from tabletune_sidecar.engine import AnswerError, Engine, Reading, request_proof
from tabletune_sidecar.files import Files, FilesReader
from tabletune_sidecar.fleet import FleetReader
from tabletune_sidecar.gain import BatchSizes
from tabletune_sidecar.honour import Honour, Verdict
from tabletune_sidecar.options import Options, parse_options
from tabletune_sidecar.problem import Problem
from tabletune_sidecar.server import Board, StatusServer
from tabletune_sidecar.state import StateFileError, load_state, save_state
from tabletune_sidecar.step_times import drift
from tabletune_sidecar.view import View

logger = logging.getLogger("tabletune-sidecar")

TURN_SECONDS = 1.0
SAVE_SECONDS = 5.0
PROOF_AFTER_SECONDS = 10.0
"""Traffic gets so long to show that the table is honoured before a request of ours does; also the pause between two tries."""


class Sidecar:
    """State and effects of the loop; the decisions are `decide` and `judge`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._engine = Engine(options.socket)
        self._files = FilesReader(options.files)
        self._fleet = FleetReader(options.files)
        self._good: Files | None = None  # with the fleet's
        self._window: goodput.Window | None = None
        self._facts: EngineFacts | None = None
        self._in_force: tuple[list[list[int]], int] | None = None
        self._batch_sizes = BatchSizes()
        self._refused: Push | None = None  # do not ask the same engine start for the same table again
        self._problems: dict[str, Problem] = {}  # of this moment, by what found them
        self._next_proof_at = 0.0
        self._saved: State | None = None
        self._save_at = 0.0
        try:
            self._state = load_state(options.state_file)
        except StateFileError as error:
            self._state = State()
            # Shown for as long as this process lives: what was learned before is gone.
            self._note("state file", Problem("StateFileUnusable", f"{error}. Started afresh from the ConfigMap's files."))

    def turn(self) -> View:
        """One round. Never fails because of the engine, its socket, or a file."""
        self._files.read()
        self._good = self._fleet.add_to(self._files.good)
        self._note("files", self._files.problem)
        self._note("fleet", self._fleet.problem)
        heard: Reading | None = None
        cells: tuple[StepCell, ...] = ()
        try:
            heard, cells = self._listen()
            self._batch_sizes = self._batch_sizes.after(self._state.total.chosen)
            self._measure(heard, cells)
            self._note("engine", None)
        except (ChannelClosedError, ChannelError, AnswerError) as error:
            self._note("engine", _not_heard(error, met=self._facts is not None))
        verdict = self._judge() if heard else honour.UNKNOWN
        in_force, generation = self._in_force or (None, None)
        self._save_now_and_then()
        return View(
            mode=self._options.settings.mode,
            state=self._state,
            files=self._good,
            engine=self._facts,
            reachable=heard is not None,
            in_force=in_force,
            generation=generation,
            verdict=verdict,
            cells=cells,
            batch_shares=self._batch_sizes.shares,
            batch_size_last=heard.batch_size_last if heard else None,
            draft_length_last=heard.draft_length_last if heard else None,
            problems=tuple(self._problems.values()),
            updated_at=datetime.now(UTC),
            goodput=self._goodput(),
        )

    def save(self) -> None:
        """Write the state file, if there is something new; a folder that cannot be written is a problem to show, no more."""
        if self._state == self._saved:
            return
        try:
            save_state(self._options.state_file, self._state)
        except OSError as error:
            self._note(
                "saving", Problem("StateNotSaved", f"{self._options.state_file} cannot be written ({error}). A restart begins afresh.")
            )
            return
        self._note("saving", None)
        self._saved = self._state

    def close(self) -> None:
        self.save()
        self._engine.close()

    def _listen(self) -> tuple[Reading, tuple[StepCell, ...]]:
        facts = self._engine.facts()
        if self._facts is None or self._facts.boot_id != facts.boot_id:
            self._meet(facts)
        self._facts = facts
        reading = self._engine.counts()
        boot_id, cells = self._engine.cells()
        if not reading.boot_id == boot_id == facts.boot_id:
            raise ChannelClosedError("The engine restarted between two questions.")
        settings, uptime = self._options.settings, reading.uptime_seconds
        decision = decide(self._state, self._good, facts, reading.counters, settings, uptime_seconds=uptime, cells=cells)
        self._state = decision.state
        self._note("controller", decision.problem)
        self._note("step times", drift(self._state.live.step_times))
        if decision.push is not None and decision.push != self._refused:
            self._push(decision.push)
        elif self._judge().honour is Honour.IN_FORCE and time.monotonic() >= self._next_proof_at:
            self._prove(facts)
        return reading, cells

    def _meet(self, facts: EngineFacts) -> None:
        """Another engine start: forget what the last one had in force."""
        if facts.active:
            self._engine.force(None)  # a sidecar that died in a proof may have left a length forced
        self._in_force, self._refused = None, None
        self._note("push", None)
        self._note("proof", None)
        logger.info("engine start %s, vLLM %s, lengths %s, active %s", facts.boot_id, facts.vllm, facts.launch_lengths, facts.active)

    def _push(self, push: Push) -> None:
        try:
            self._in_force = self._engine.push(push)
        except ChannelError as error:
            self._refused = push
            text = f"The engine refused the table {push.table} ({error.code}): {error.message} Its table stays as it is."
            self._note("push", Problem("TableRefused", text))
            return
        self._state = took(self._state, push)
        self._next_proof_at = time.monotonic() + PROOF_AFTER_SECONDS
        self._refused = None
        self._note("push", None)
        logger.info("table %s in force, generation %d", push.table, self._in_force[1])

    def _measure(self, heard: Reading, cells: tuple[StepCell, ...]) -> None:
        if self._in_force is not None:
            of = (heard.boot_id, str(self._in_force[0]))  # not its generation: the same table may be pushed with other rules
            self._window = goodput.advance(self._window, goodput.read(of, time.monotonic(), heard.counters, cells))

    def _goodput(self) -> goodput.Goodput | None:
        files, belief = self._good, self._state.belief
        if self._window is None or self._in_force is None or files is None or files.table.table is None or belief is None:
            return None
        return goodput.measure(self._window, files.profile, files.table.table, belief.used)

    def _judge(self) -> Verdict:
        state = self._state
        if self._facts is None or not self._facts.active or state.pushed is None or state.first_push is None:
            return honour.UNKNOWN
        return honour.judge(state.seen.since(state.first_push), self._facts.launch_lengths)

    def _prove(self, facts: EngineFacts) -> None:
        """Ask for a few tokens at the shortest length, where an engine that ignores its table gives itself away."""
        self._next_proof_at = time.monotonic() + PROOF_AFTER_SECONDS
        self._engine.force(min(facts.launch_lengths))
        try:
            request_proof(self._options.engine_url)
            self._note("proof", None)
        except (httpx.HTTPError, AnswerError) as error:
            url, pause = self._options.engine_url, PROOF_AFTER_SECONDS
            cause = str(error) or type(error).__name__
            self._note("proof", Problem("ProofFailed", f"{url} made no tokens for a proof ({cause}). Tried again in {pause:.0f} s."))
        finally:
            self._engine.force(None)

    def _note(self, finder: str, problem: Problem | None) -> None:
        """Keep the present problem of each finder, and log each once."""
        if problem is None:
            self._problems.pop(finder, None)
        elif self._problems.get(finder) != problem:
            self._problems[finder] = problem
            logger.warning("%s: %s", problem.code, problem.message)

    def _save_now_and_then(self) -> None:
        if time.monotonic() >= self._save_at:
            self._save_at = time.monotonic() + SAVE_SECONDS
            self.save()


def main(argv: Sequence[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    options = parse_options(argv)
    signal.signal(signal.SIGTERM, _leave)
    sidecar = Sidecar(options)
    try:
        board = Board(sidecar.turn())
        try:
            StatusServer(options.port, board).start()
        except OSError as error:
            print(f"--port {options.port} cannot be used ({error}). Choose another one.", file=sys.stderr)
            return 2
        while True:
            started = time.monotonic()
            board.show(sidecar.turn())
            time.sleep(max(0.0, TURN_SECONDS - (time.monotonic() - started)))
    finally:
        sidecar.close()


def _not_heard(error: ChannelClosedError | ChannelError | AnswerError, *, met: bool) -> Problem:
    if not isinstance(error, ChannelClosedError):
        return Problem(
            "PluginNotUnderstood",
            f"{str(error).rstrip('.')}. Plugin and sidecar are likely of different versions. The engine keeps its table. "
            "Roll the workload out again, so that both come from one image.",
        )
    if not met:
        return Problem("EngineNotHeardYet", f"{error} It is starting, or does not load the plugin. The table is pushed when it answers.")
    return Problem("EngineUnreachable", f"{error} The table is pushed again when it answers.")


def _leave(_signal: int, _frame: FrameType | None) -> None:
    # Raised in the loop's thread, wherever it waits; what must be put right on the way out is in finally blocks.
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
