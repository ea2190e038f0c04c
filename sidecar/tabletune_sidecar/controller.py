"""The controller: which table should be in force, and when that is looked at again. Pure: no clock, no socket, no file.

Acceptance is estimated from prior and live counts, and a table built from it and the profile's step times, after so many engine steps at
the most; earlier as soon as the evidence is enough to change the table, or contradicts what was believed. A length in force changes only
for a gain beyond noise and the estimate's own error, a table only so many times a minute, and it is pushed only when the engine does not
have it yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tabletune.acceptance import Estimate, estimate, standard_errors
from tabletune.goodput import predict_goodput, predict_steps, tau
from tabletune.graphs import GraphCells
from tabletune.profile import Profile
from tabletune.regimes import Prefills
from tabletune.table import Choice, Table, build_choices, table_of
from tabletune_sidecar import live as live_costs
from tabletune_sidecar.belief import Belief, believe, count, fade, forget, is_other_traffic, learn_design_effect
from tabletune_sidecar.counters import Counters, StepCell
from tabletune_sidecar.exploration import Explore, Forbidden, plan_exploring
from tabletune_sidecar.files import Files
from tabletune_sidecar.live import Live
from tabletune_sidecar.options import Mode, Settings
from tabletune_sidecar.problem import Problem
from tabletune_sidecar.trial import with_trial

LEAST_STEPS = 100
"""Between two rebuilds: below it a step or two of one long answer decide. So many take 0.5 to 5 s."""

SWAP_WINDOW_SECONDS = 60.0

StepTimes = Mapping[int, Mapping[int, float]]
"""`{B: {k: microseconds}}`."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Of the plugin's `hello`: what the controller needs to know about one engine start."""

    boot_id: str
    active: bool
    inactive_reason: str | None
    vllm: str | None
    launch_lengths: tuple[int, ...]
    max_num_seqs: int | None
    graphs: GraphCells
    launch_table: Table | None = None  # what it follows until a table is pushed; None: it does not say


@dataclass(frozen=True, slots=True)
class Push:
    """A table for the engine, with the rules of its use."""

    table: Table
    hysteresis: int
    explore: Explore | None  # None: never


@dataclass(frozen=True, slots=True)
class State:
    """All that a decision rests on. All but `pushed` and the last reading in `live` survives a restart."""

    belief: Belief | None = None
    boot_id: str | None = None
    seen: Counters = field(default_factory=Counters)  # of this engine start, as read last
    earlier: Counters = field(default_factory=Counters)  # summed over earlier engine starts
    first_push: Counters | None = None  # counters when this engine start first took a table of ours
    steps_since_rebuild: int = 0
    swapped_at: tuple[float, ...] = ()  # uptimes of this engine start, in seconds, at which a rebuild lately gave another table
    traffic_switches: int = 0  # times that the traffic was found to be another one
    rebuilds_changed: int = 0
    rebuilds_unchanged: int = 0
    pushed: Push | None = None  # what this engine start took from this process
    live: Live = field(default_factory=Live)  # costs, as far as live steps tell them

    @property
    def total(self) -> Counters:
        """Counters over all engine starts."""
        return self.earlier.plus(self.seen)


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    push: Push | None
    problem: Problem | None


def decide(
    state: State,
    files: Files | None,
    engine: EngineFacts,
    counters: Counters,
    settings: Settings,
    *,
    uptime_seconds: float,
    cells: Sequence[StepCell] = (),
) -> Decision:
    """Take in one reading of an engine that answers, its counters and step cells, and say what to push to it, if anything.

    `uptime_seconds` is the engine's own, of that reading: a clock that nobody sets, and that begins with the counters.
    """
    if files is not None and (state.belief is None or state.belief.digest != files.digest):
        state = replace(state, belief=believe(files, settings), steps_since_rebuild=0)
    state = absorb(state, engine.boot_id, counters, uptime_seconds)
    if files is not None:
        state = replace(state, live=live_costs.absorb(state.live, engine.boot_id, cells, counters, files.profile))
    if files is None or state.belief is None:
        return Decision(state, None, None)
    if not engine.active:
        reason = engine.inactive_reason or "It gave no reason."
        return Decision(state, None, Problem("PluginInactive", f"The engine was left as it is: {reason}"))
    rolled_out = files.table.table
    if rolled_out is None:
        return Decision(state, None, None)
    foreign = [k for k in rolled_out.lengths if k not in engine.launch_lengths]
    if foreign:
        return Decision(state, None, _not_launched(foreign, engine.launch_lengths))
    if is_exposed(files.profile, engine):
        return Decision(state, None, _not_cured())
    state = follow(state, state.belief, files, engine, settings, uptime_seconds=uptime_seconds)
    if settings.mode is Mode.TRACK and state.belief is not None:
        wanted = state.belief.wanted or rolled_out
        state = try_lengths(state, state.belief, files, engine, settings, wanted=wanted, uptime_seconds=uptime_seconds)
    push = _push(state, rolled_out, settings)
    return Decision(state, push if push != state.pushed else None, None)


def try_lengths(
    state: State, belief: Belief, files: Files, engine: EngineFacts, settings: Settings, *, wanted: Table, uptime_seconds: float
) -> State:
    """Begin, go on with or end a trial of a length beside the wanted table. One that begins is a swap, and waits after too many of them."""
    before = state.live.trials.running
    lately = _swapped_lately(state, uptime_seconds)
    if before is None and len(lately) >= settings.max_swaps_per_minute:
        return state
    live = live_costs.try_lengths(state.live, files.profile, _usable(files, engine), belief.used, wanted)
    has_begun = live.trials.running not in (None, before)
    return replace(state, live=live, swapped_at=(*lately, uptime_seconds) if has_begun else state.swapped_at)


def _swapped_lately(state: State, uptime_seconds: float) -> tuple[float, ...]:
    """When, within the time that the limit is for."""
    return tuple(at for at in state.swapped_at if uptime_seconds - at < SWAP_WINDOW_SECONDS)


def _push(state: State, rolled_out: Table, settings: Settings) -> Push:
    belief = state.belief
    if settings.mode is Mode.OBSERVE or belief is None:  # to observe is to leave serving alone, so nothing is explored or tried
        return Push(rolled_out, settings.hysteresis, None)
    return Push(with_trial(belief.wanted or rolled_out, state.live.trials.running), settings.hysteresis, belief.explore)


def is_exposed(profile: Profile, engine: EngineFacts) -> bool:
    """Whether this engine's lengths are safe only by the plugin's cure, and the cure does not work in it.

    An engine that cannot tell is judged by the one that was profiled.
    """
    mismatched = engine.graphs if engine.graphs.mismatched is not None else GraphCells.of(profile.engine)
    return mismatched.needs_cure and not engine.graphs.cured


def absorb(state: State, boot_id: str, counters: Counters, uptime_seconds: float) -> State:
    """Add what was counted since the last reading. Another boot id is another engine, whose counters and clock began at 0."""
    if boot_id != state.boot_id:
        state = replace(state, boot_id=boot_id, earlier=state.total, seen=Counters(), first_push=None, pushed=None, swapped_at=())
    fresh = counters.since(state.seen)
    belief = state.belief
    if belief is not None:
        belief = count(belief, fresh.acceptance(len(belief.prior.acceptance)), fresh.chosen)
    return replace(
        state,
        belief=belief,
        seen=counters,
        steps_since_rebuild=state.steps_since_rebuild + fresh.steps,
        # Should the clock go back all the same, a swap that would be in the future is one of this moment.
        swapped_at=tuple(min(at, uptime_seconds) for at in state.swapped_at),
    )


def follow(state: State, belief: Belief, files: Files, engine: EngineFacts, settings: Settings, *, uptime_seconds: float) -> State:
    """Rebuild when it is time: after the most steps, or from the least on when the traffic is another one or the table would change."""
    if state.steps_since_rebuild < min(LEAST_STEPS, settings.rebuild_every_steps):
        return state
    costs = live_costs.costs_of(state.live, files.profile)
    times = usable_times(costs.step_times, _usable(files, engine), engine.max_num_seqs)
    switched = is_other_traffic(belief)
    weighed = forget(belief) if switched else belief
    due = switched or state.steps_since_rebuild >= settings.rebuild_every_steps
    rebuilt = rebuild(weighed, times, costs.prefills, files.profile.switch_gain, afresh=due and weighed.unsettled > 0)
    lately = _swapped_lately(state, uptime_seconds)
    if len(lately) >= settings.max_swaps_per_minute:
        rebuilt = replace(rebuilt, wanted=belief.wanted)
    changed = rebuilt.wanted != belief.wanted
    if not (due or changed):
        return state
    settled = fade(rebuilt if rebuilt.unsettled else learn_design_effect(rebuilt), settings)
    explore = plan_exploring(
        settled.tables,
        predict_steps(times, rebuilt.used),
        rebuilt.fresh,
        settled.batch_sizes,
        Forbidden.of(files.profile, engine.graphs),
        least_every_steps=settings.explore_every_steps,
    )
    return replace(
        state,
        belief=replace(settled, explore=explore),
        steps_since_rebuild=0,
        swapped_at=(*lately, uptime_seconds) if changed else lately,
        traffic_switches=state.traffic_switches + switched,
        rebuilds_changed=state.rebuilds_changed + changed,
        rebuilds_unchanged=state.rebuilds_unchanged + (not changed),
    )


def _usable(files: Files, engine: EngineFacts) -> set[int]:
    """On runner V1 an engine may use lengths that the tuner left out, since changes to or from them were bad."""
    return {k for k in engine.launch_lengths if k in files.table.launch_lengths and k <= len(files.acceptance.acceptance)}


def rebuild(belief: Belief, step_times: StepTimes, prefills: Prefills | None, noise: float, *, afresh: bool) -> Belief:
    """Estimate acceptance, and build a table from it.

    Args:
        belief: with all that was counted.
        step_times: of the lengths that may be used; the wanted table stays where there are none.
        prefills: what steps with a prefill cost; None: not known.
        noise: relative noise floor of the step times.
        afresh: the table in force was for another traffic, so that its lengths have no claim to stay.
    """
    used = estimate(belief.prior, belief.live, belief.prior_weight)
    errors = standard_errors(belief.prior, belief.live, belief.prior_weight, belief.design_effect)
    wanted = belief.wanted
    if step_times:
        choices = build_choices(predict_goodput(step_times, used, prefills), noise)
        wanted = table_of(choices if wanted is None or afresh else keep_length(choices, wanted, used, errors, noise))
    return replace(belief, used=used, errors=errors, wanted=wanted)


def usable_times(step_times: StepTimes, lengths: Collection[int], max_num_seqs: int | None) -> dict[int, dict[int, float]]:
    """The step times of the lengths that may be used, at batch sizes that this engine can reach."""
    return {
        B: {k: micros for k, micros in row.items() if k in lengths}
        for B, row in step_times.items()
        if (max_num_seqs is None or max_num_seqs >= B) and not row.keys().isdisjoint(lengths)
    }


def keep_length(choices: Sequence[Choice], table: Table, traffic: Estimate, errors: Sequence[float], noise: float) -> tuple[Choice, ...]:
    """Keep the length that is in force unless another is better by more than we can be wrong, or near ties would flap for ever.

    The gain must exceed `noise` plus what one standard error of the positions between the two lengths is worth in tokens a step.
    """

    def settle(choice: Choice) -> Choice:
        kept = table.length_at(choice.batch_size)
        if kept == choice.draft_length or kept not in choice.goodput:
            return choice
        shorter, longer = sorted((kept, choice.draft_length))
        error = traffic.coverage * sum(errors[shorter:longer]) / tau(traffic.acceptance, shorter, traffic.coverage)
        gain = choice.goodput[choice.draft_length] / choice.goodput[kept] - 1
        return choice if gain > noise + error else replace(choice, draft_length=kept)

    return tuple(map(settle, choices))


def took(state: State, push: Push) -> State:
    """The engine has put `push` in force."""
    return replace(state, pushed=push, first_push=state.first_push or state.seen)


def _not_launched(foreign: list[int], launch_lengths: tuple[int, ...]) -> Problem:
    needed, had = (", ".join(map(str, lengths)) for lengths in (foreign, launch_lengths))
    return Problem(
        "LengthNotInLaunchSet",
        f"table.json uses draft length {needed}; this engine was launched for {had or 'none'}. "
        "Its table stays as it is. Roll the workload out again with the new table.",
    )


def _not_cured() -> Problem:
    return Problem(
        "GraphsNotCured",
        "Some batch sizes of this engine replay graphs that nobody prepared, and the plugin does not keep it from them "
        "(TABLETUNE_GRAPH_CURE is off, or the engine's log says why). Its launch table stays as it is. Restart the engine with the cure.",
    )
