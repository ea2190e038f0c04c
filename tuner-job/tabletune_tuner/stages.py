"""The stages of a run, in the order that needs the fewest engine starts.

On a GPU: an engine that rejects every guess (step times), one that serves as in production (acceptance, live comparison), one
without speculation. On a CPU the plugin does the rejecting, so that one engine serves the first two. A present setting with
another drafter, or with adaptive verification, takes one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tabletune.acceptance import Counts, Part
from tabletune.argv import option
from tabletune.formats import AcceptanceFile, TableFile
from tabletune.graphs import GraphCells, usable_cells
from tabletune.profile import Cell, batch_sizes, largest_graph, step_times
from tabletune.regimes import Prefills, Requests
from tabletune.transitions import length_to_drop, say_bad
from tabletune_tuner import build as building
from tabletune_tuner.acceptance import CONCURRENCY, count_acceptance, judge_answers
from tabletune_tuner.build import OFF, Built, Candidate
from tabletune_tuner.clients import Clients
from tabletune_tuner.conclude import Said, conclude
from tabletune_tuner.contexts import build_waves
from tabletune_tuner.engine import Engine, Hello
from tabletune_tuner.judge import Judge
from tabletune_tuner.load import Prompt, connect, cut, tokenize_all
from tabletune_tuner.options import Options
from tabletune_tuner.outcome import BlockedError
from tabletune_tuner.preflight import judge_engine, judge_options, measured_lengths, needs_own_engine, reachable_batch_size
from tabletune_tuner.progress import Tracker, Work
from tabletune_tuner.prompts import Prompts, read_prompts
from tabletune_tuner.results import Asking, Compared, Decided, Frame, Measured, Swept
from tabletune_tuner.starts import Starts, TimingEngine
from tabletune_tuner.sweep import Sweep
from tabletune_tuner.sweep_plan import Room, SweepPlan, SweepResult, noise_ppm, with_ceilings
from tabletune_tuner.transitions import Trials
from tabletune_tuner.verify import GPU_WINDOW_SECONDS, WINDOW_FACTOR, Comparison, Traffic

ANSWER_FACTOR = 4  # length of an answer to a real prompt, in output tokens of a cell
LONGEST_ANSWER_FACTOR = 1.25  # answers in the live comparison differ by a quarter
USUAL_LOADS, USUAL_ARMS = 3, 3  # to plan with; known once the table is built
USUAL_TAU = 1.5
LEAST_WINDOWS = 2  # of an arm: one window alone stands and falls with what the machine does just then


class Stages:
    """The stages, each of which takes what those before it found."""

    def __init__(self, options: Options, engine: Engine, tracker: Tracker) -> None:
        self._options = options
        self._engine = engine
        self._tracker = tracker
        self._judge = Judge(tracker)
        self._starts = Starts(options, engine, tracker, self._judge)

    async def measure(self) -> tuple[Mapping[str, str], TableFile]:
        """The files of the result, and the decision in them. Raises TunerError."""
        prompts = await self._prepare()
        timing = await self._starts.for_timing()
        self._tracker.enter("preflight", "what the engine says")
        self._judge.take(judge_engine(timing.hello, self._options))
        traffic = self._traffic(timing.hello)
        async with connect(self._options.engine_url, self._api_key) as client:
            asking = Asking(client, self._fit(await tokenize_all(client, prompts.texts), timing.hello, traffic.max_tokens))
            frame = self._frame(timing, traffic, asking.prompt_tokens)
            swept = await self._sweep(asking, frame)
            hello = await self._starts.serving(timing)
            acceptance = await self._count(asking, prompts, hello, frame)
            decided = await self._decide(asking, hello, frame, swept, acceptance)
            compared = await self._compare(asking, frame, swept, decided)
        measured = Measured(hello, frame, swept, acceptance, decided, compared)
        said = Said(self._judge.warnings, self._tracker.stage_seconds, self._engine.device_seconds, self._engine.python_path)
        return conclude(self._options, measured, said)

    @property
    def _api_key(self) -> str | None:
        return option(self._options.shown_args, "--api-key")

    # Before the first cell

    async def _prepare(self) -> Prompts:
        """What can be known before an engine is started."""
        options, tracker = self._options, self._tracker
        tracker.enter("preflight", "options and prompts")
        self._judge.take(judge_options(options))
        prompts = read_prompts(options.prompts_file, options.prompt_count)
        await self._engine.wait_for_supervisor()
        tracker.leave(f"{len(prompts.texts)} prompts from {prompts.source}")
        return prompts

    def _frame(self, timing: TimingEngine, traffic: Traffic, prompt_tokens: int) -> Frame:
        hello, options = timing.hello, self._options
        largest, lengths = reachable_batch_size(hello, options), measured_lengths(hello, options)
        ceiling = largest_graph(hello.facts)
        sizes = with_ceilings(batch_sizes(largest), lengths, ceiling, prompt_tokens)
        plan = SweepPlan(sizes, lengths, options.repeats, options.output_tokens, options.prompt_tokens, ceiling, prompt_tokens)
        room = Room(hello.facts.get("maxModelLen"), hello.facts.get("kvCacheTokens"))
        frame = Frame(str(hello.reject_by), largest, lengths, room, traffic, max(LEAST_WINDOWS, options.repeats), plan)
        self._announce(frame, starts=1 + timing.is_synthetic + needs_own_engine(options))
        self._tracker.leave(f"vLLM {hello.facts['vllm']}, runner {hello.facts['runner']}, guesses rejected by the {frame.reject_by}")
        return frame

    def _traffic(self, hello: Hello) -> Traffic:
        options = self._options
        seconds = options.window_seconds
        if seconds is None:
            seconds = GPU_WINDOW_SECONDS if hello.devices else 0
        steps = WINDOW_FACTOR * options.output_tokens
        return Traffic(ANSWER_FACTOR * options.output_tokens, options.temperature_milli / 1000, steps, seconds)

    def _announce(self, frame: Frame, *, starts: int) -> None:
        """Tell how much is left to do after the first start, as far as it can be known."""
        options, plan, rows = self._options, frame.plan, len(frame.plan.batch_sizes)
        sweeps = rows * (len(plan.cells) + 1) * options.repeats * options.output_tokens
        windows = USUAL_LOADS * (USUAL_ARMS + 1) * frame.windows * frame.traffic.planned_steps
        waves = max(len(options.context_tokens), 1)
        acceptance = waves * options.prompt_count * self._steps_per_prompt(max(plan.batch_sizes))
        self._tracker.plan(Work(sweeps + acceptance + windows, starts), cells_total=rows * (len(plan.cells) + 1))

    def _steps_per_prompt(self, largest: int) -> float:
        return ANSWER_FACTOR * self._options.output_tokens / min(CONCURRENCY, largest) / USUAL_TAU

    def _fit(self, prompts: Sequence[Prompt], hello: Hello, answer: int) -> tuple[Prompt, ...]:
        longest, most = hello.facts.get("maxModelLen"), self._most_prompt_tokens(hello, answer)
        if most is None:
            return tuple(prompts)
        if most < 1:
            raise BlockedError(
                "ContextTooShort", f"Answers of {answer} tokens do not fit into max_model_len {longest}. Lower spec.profile.outputTokens."
            )
        long = sum(len(p) > most for p in prompts)
        if long:
            self._judge.warn(f"{long} of {len(prompts)} prompts were cut to {most} tokens to fit max_model_len {longest}.")
        return cut(prompts, most)

    def _most_prompt_tokens(self, hello: Hello, answer: int) -> int | None:
        """Beside an answer and a draft; None when the engine does not say how much it takes."""
        longest = hello.facts.get("maxModelLen")
        return None if longest is None else longest - round(answer * LONGEST_ANSWER_FACTOR) - self._options.max_draft_length - 1

    # Step times and acceptance

    async def _sweep(self, asking: Asking, frame: Frame) -> Swept:
        """Step times of the engine with speculation."""
        self._tracker.enter("sweep", f"batch sizes 1 to {frame.largest}, draft lengths {', '.join(map(str, frame.lengths))}")
        result = await self._run_sweep(asking, frame.plan, frame)
        requests = Requests(asking.prompt_tokens, frame.traffic.max_tokens)
        prefills = Prefills.of(result.prefill, step_times(result.cells), requests, frame.plan.ceiling)
        return Swept(result, requests, prefills, noise_ppm(result.cells) / 1e6)

    async def _run_sweep(self, asking: Asking, plan: SweepPlan, frame: Frame) -> SweepResult:
        """Step times of decode-only steps, and of steps with a prefill, in the engine that runs."""
        sweep = Sweep(self._engine, asking.client, plan, room=frame.room, real=asking.real, tracker=self._tracker)
        swept = replace(await sweep.run(), prefill=await sweep.run_prefills(frame.traffic.max_tokens))
        self._tracker.leave(f"{len(swept.cells)} cells, {len(swept.skipped)} left out, {swept.saved}")
        return swept

    async def _count(self, asking: Asking, prompts: Prompts, hello: Hello, frame: Frame) -> AcceptanceFile:
        options, tracker, answer = self._options, self._tracker, frame.traffic.max_tokens
        temperature = options.temperature_milli / 1000
        tracker.enter("acceptance", f"{len(asking.real)} prompts at temperature {temperature:g}")
        most, between = self._most_prompt_tokens(hello, answer), await asking.client.tokenize("\n\n", special=False)
        waves, of_contexts = build_waves(asking.real, prompts.kinds, options.context_tokens, most, between)
        parts: list[Part] = []
        answers: list[str] = []
        for wave in waves:
            counted, answered = await count_acceptance(
                self._engine,
                asking.client,
                wave.prompts,
                draft_length=options.max_draft_length,
                concurrency=min(CONCURRENCY, frame.largest),
                max_tokens=answer,
                temperature=temperature,
                steps_per_prompt=self._steps_per_prompt(frame.largest),
                tracker=tracker,
            )
            parts += [Part(counts, wave.context_tokens) for counts in counted]
            answers += answered
        counts = sum((part.counts for part in parts), start=Counts.zero(len(parts[0].counts.drafted)))
        warnings = (*prompts.warnings, *of_contexts, *judge_answers(answers, temperature))
        for warning in warnings:
            tracker.warn(warning)
        file = AcceptanceFile(counts, options.temperature_milli, len(asking.real), prompts.digest, prompts.source, warnings, tuple(parts))
        rates = " ".join(f"{a:.2f}" for a in counts.rates)
        tracker.leave(f"a = {rates}, coverage {counts.coverage:.2f}")
        return file

    # The table, live

    async def _decide(self, asking: Asking, hello: Hello, frame: Frame, swept: Swept, acceptance: AcceptanceFile) -> Decided:
        cells = usable_cells(swept.result.cells, GraphCells.of(hello.facts))
        longest, on_gpu = frame.room.max_model_len, bool(hello.devices)
        trials = Trials(self._engine, asking.client, asking.real, self._tracker, swept.result.cells, max_model_len=longest, on_gpu=on_gpu)
        return await self._build(
            trials, frame.lengths, frame.largest, cells, lambda of: building.build(of, acceptance.estimate, swept.noise, swept.prefills)
        )

    async def _build(
        self, trials: Trials, lengths: Sequence[int], largest: int, cells: Sequence[Cell], build: Callable[[Sequence[Cell]], Built]
    ) -> Decided:
        """The table of highest goodput whose changes of length the engine stands; the present table's are tried as well."""
        tracker, kept, comparable = self._tracker, tuple(lengths), tuple(lengths)
        tracker.enter("build", "table from step times and acceptance")
        built, present = build(cells), self._present(comparable, largest)
        tracker.leave(f"table {built.table}, best fixed length {built.fixed_length}")
        tracker.enter("transitions", f"changes of draft length in table {built.table}")
        while True:
            bad = await trials.run(built.table, explored=kept)
            if bad is None and present is not None:
                bad = await trials.run(present.table, explored=())
            if bad is None:
                break
            dropped = length_to_drop(bad, {c.batch_size: c.goodput for c in built.choices})
            if {bad.from_length, bad.to_length} <= set(kept):
                self._judge.warn(f"Draft length {dropped} is left out of the table and the launch set: {say_bad(bad)}.")
                kept = tuple(k for k in kept if k != dropped)
                built = build([c for c in cells if c.draft_length in kept])
            elif present is not None:
                self._judge.warn(f"The present setting is compared without draft length {dropped}: {say_bad(bad)}.")
                comparable = tuple(k for k in comparable if k != dropped)
                present = self._present(comparable, largest)
        tracker.leave(f"{trials.summary}; table {built.table}")
        return Decided(built, kept, present, trials.transitions)

    def _present(self, lengths: Sequence[int], largest: int) -> Candidate | None:
        """The present setting in these lengths of the engine that runs."""
        present = self._options.present
        return None if present is None or needs_own_engine(self._options) else building.present_candidate(present, lengths, largest)

    async def _compare(self, asking: Asking, frame: Frame, swept: Swept, decided: Decided) -> Compared:
        built, tracker = decided.built, self._tracker
        candidates = building.choose_candidates(built, decided.present, frame.largest)
        loads = building.choose_loads([c.batch_size for c in built.choices], built.table)
        here = building.fixed_here(built, loads)
        candidates_at = {B: [*candidates, *([here[B]] if B in here else [])] for B in loads}
        comparison = Comparison(frame.traffic, loads, frame.windows, tracker)
        async with Clients(asking.client, asking.real, self._options.engine_url, self._api_key) as clients:
            tracker.enter("verify", f"{', '.join(c.name for c in candidates)} at B={', '.join(map(str, loads))}")
            await comparison.measure(self._engine, clients, candidates_at)
            tracker.leave("with speculation")
            settings = {c.name: c.setting for c in candidates} | await self._compare_present(comparison, clients)
            off = await self._starts.start(None, "no speculation")
            tracker.enter("sweep", "no speculation")
            baseline = await self._run_sweep(asking, frame.plan.baseline(swept.result.cells), frame)
            tracker.enter("verify", "no speculation")
            await comparison.measure_as_is(self._engine, clients, OFF)
            tracker.leave("without speculation")
        return Compared(comparison, candidates_at, settings | {OFF: "no speculation"}, here, off, baseline)

    async def _compare_present(self, comparison: Comparison, clients: Clients) -> dict[str, str]:
        """A present setting that needs an engine of its own: its setting by arm; empty when it was a candidate."""
        present = self._options.present
        if present is None or not needs_own_engine(self._options):
            return {}
        await self._starts.start(present, "the present setting")
        self._tracker.enter("verify", "the present setting")
        await comparison.measure_as_is(self._engine, clients, "present")
        return {"present": building.say_present(present)}
