"""What is believed about the traffic, and what evidence does to it: counted, contradicted, learned from, faded. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tabletune.acceptance import Counts, Estimate, standard_errors, surprises
from tabletune.table import Table
from tabletune_sidecar.counters import Chosen, steps_at
from tabletune_sidecar.exploration import SHORT_REBUILDS, Explore
from tabletune_sidecar.files import Files
from tabletune_sidecar.options import PriorDecay, Settings

SWITCH_ERRORS = 5.0
"""The traffic is another one when a position's fresh counts are so many standard errors off. Looked for every second at four positions, a
normal deviate is so far off once in 5 days; looks at counts that share most of their steps are alike, which makes it rarer still."""

LEAST_DRAFTS = 100
"""Of a position, before its fresh counts can say that."""

PRIOR_LEFT = 1 / 16
"""What the prior's weight keeps when the traffic is another one than it was counted on."""

START_DESIGN_EFFECT = 8.0
"""Until enough was seen. Answers of 100 steps whose acceptance varies by 0.12 among each other have 1 + 100 * 0.12^2 / (0.7 * 0.3)."""

LEARNED_SHARE = 1 / 16
"""Of the design effect, with each rebuild: a mean over about 30 of them, 25 % off at most times."""

MOST_LEARNED_ERRORS = 3.0
"""A rebuild teaches no more than counts so many standard errors off: what is further off is another traffic, not noise."""


UNSETTLED_REBUILDS = 3
"""After another traffic was found: the table of the first one is made of counts of both, and the next ones are still unsure."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The prior from the ConfigMap's files and what was counted since; `digest` says from which files (fleet.json is in no digest)."""

    digest: str
    prior: Estimate
    prior_weight: float
    live: Counts  # since then; older ones fade
    fresh: Counts  # the part of `live` since the last rebuild
    design_effect: float  # drafts that are worth one independent draft: those of one answer are alike
    used: Estimate  # what the last rebuild used; the prior before the first
    errors: tuple[float, ...]  # standard error of each `a_i` of `used`
    wanted: Table | None  # None: the files hold no table (no speculation pays)
    tables: tuple[Table, ...] = ()  # of the last rebuilds, the newest last
    batch_sizes: Mapping[int, int] = field(default_factory=dict)  # steps by batch size; half of them with each rebuild
    explore: Explore | None = None
    unsettled: int = 0  # rebuilds to come in which the table in force is one for another traffic


def believe(files: Files, settings: Settings) -> Belief:
    """Start from the files: their acceptance as prior, their table, nothing counted; what the fleet knows comes before both."""
    fleet, table = files.fleet, files.table.table
    prior = fleet.estimate if fleet is not None else files.acceptance
    if table is not None and fleet is not None and fleet.table is not None:
        table = fleet.table
    nothing = Counts.zero(len(prior.acceptance))
    return Belief(
        digest=files.digest,
        prior=prior,
        prior_weight=settings.prior_weight,
        live=nothing,
        fresh=nothing,
        design_effect=START_DESIGN_EFFECT,
        used=prior,
        errors=standard_errors(prior, nothing, settings.prior_weight, START_DESIGN_EFFECT),
        wanted=table,
    )


def count(belief: Belief, counts: Counts, chosen: Chosen) -> Belief:
    """Take in what was counted since the last reading."""
    batch_sizes = dict(belief.batch_sizes)
    for batch_size, steps in steps_at(chosen).items():
        batch_sizes[batch_size] = batch_sizes.get(batch_size, 0) + steps
    return replace(belief, live=belief.live + counts, fresh=belief.fresh + counts, batch_sizes=batch_sizes)


def is_other_traffic(belief: Belief) -> bool:
    """Whether the fresh counts contradict what was believed before them, so far that noise does not explain it."""
    return max(_surprises(belief), default=0.0) > SWITCH_ERRORS**2 * belief.design_effect


def forget(belief: Belief) -> Belief:
    """Keep the fresh counts only, and little of the prior: both were of another traffic. The load may be the same."""
    return replace(belief, live=belief.fresh, prior_weight=belief.prior_weight * PRIOR_LEFT, unsettled=UNSETTLED_REBUILDS)


def learn_design_effect(belief: Belief) -> Belief:
    """From how far the fresh counts of settled traffic are off: squared standard errors of independent drafts are 1 on average.

    Whether counts contradict the belief is judged by the same numbers, so what they leave out (fading, a prior that is slightly off)
    makes no false alarms.
    """
    most = MOST_LEARNED_ERRORS**2 * belief.design_effect
    seen = [min(surprise, most) for surprise in _surprises(belief)]
    if not seen:
        return belief
    learned = belief.design_effect + LEARNED_SHARE * (sum(seen) / len(seen) - belief.design_effect)
    return replace(belief, design_effect=max(1.0, learned))


def fade(belief: Belief, settings: Settings) -> Belief:
    """After a rebuild: halve what is old, and begin to count afresh.

    A position's counts are halved as soon as they say more than the prior as it was asked for, drafts of one answer being alike. Until
    then they would only become less sure: positions that exploring alone shows, or all of them with one request at a time, gather evidence
    over several rebuilds. The counts in which another traffic was found are of both, so none of them stay.
    """
    nothing = Counts.zero(len(belief.fresh.drafted))
    weight = belief.prior_weight / 2 if settings.prior_decay is PriorDecay.HALVE else belief.prior_weight
    return replace(
        belief,
        prior_weight=weight,
        live=nothing if belief.unsettled == UNSETTLED_REBUILDS else belief.live.faded(settings.prior_weight * belief.design_effect),
        fresh=nothing,
        tables=(*belief.tables, *((belief.wanted,) if belief.wanted else ()))[-SHORT_REBUILDS:],
        batch_sizes={B: steps // 2 for B, steps in belief.batch_sizes.items() if steps > 1},
        unsettled=max(0, belief.unsettled - 1),
    )


def _surprises(belief: Belief) -> tuple[float, ...]:
    return surprises(belief.prior, belief.live - belief.fresh, belief.prior_weight, belief.fresh, LEAST_DRAFTS)
