"""What engines counted before a roll-out and after it: requests that ended in an error, and stalls. Pure.

Both are shares of what an engine counted since it started, so an engine that starts again only begins anew, and nothing needs to be
remembered but the sum of the engines that were replaced. Of two shares that differ little nobody can say which setting did it, so a
replica does worse only where the score interval of its share (`intervals.wilson`, which has a width also where nothing was counted) lies
above the one of before, above twice that share, and above it by `Measure.least`; and where what is counted from then on says so again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tabletune.intervals import wilson
from tabletune_operator.engine_counts import STALL_SECONDS
from tabletune_operator.observation import Replica, Served, Workload
from tabletune_operator.restore import container_of, template_digest
from tabletune_operator.status import ServedCounts
from tabletune_operator.target import Target

CONFIDENCE = 0.9999
"""Of the two intervals that must not meet: they are looked at hundreds of times in the two hours."""

WORSE_TIMES = 2.0
"""So many times the share of before, at least: traffic of another hour moves it too."""


@dataclass(frozen=True, slots=True)
class Share:
    """`part` of `whole`, of which `worth` were independent of each other (no more than `whole`)."""

    part: float
    whole: float
    worth: float


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared. `least`: a share that is larger by less is never worse; `fewest`: independent trials that a share is of."""

    said: str
    share: Callable[[Served], Share]
    least: float
    fewest: int


ERRORS = Measure("of requests end in an error", lambda served: Share(served.errors, served.requests, served.requests), 0.005, 200)

# All requests of a step wait for it together, so gaps are worth as many independent ones as there were steps. A thousandth of all gaps
# is 5 % of the time where a step takes 20 ms. The first steps after a start are slow ones (caches are cold): twenty of them are less
# than that thousandth among so many steps.
STALLS = Measure(
    f"of tokens come more than {STALL_SECONDS:.0f} s after the one before",
    lambda served: Share(served.stalls, served.gaps, min(served.gaps, served.steps)),
    0.001,
    20_000,
)


def sum_served(workload: Workload, replicas: Iterable[Replica]) -> ServedCounts | None:
    """What these replicas counted together, for the status; None: nothing, or what their engine is made from is not known."""
    counted = [each.served for each in replicas if each.pod.ready and each.served is not None]
    if not isinstance(workload.original, Target) or not any(served.requests or served.gaps for served in counted):
        return None
    return ServedCounts(
        engine=engine_of(workload.original),
        finished_requests=sum(served.requests for served in counted),
        failed_requests=sum(served.errors for served in counted),
        gaps=sum(served.gaps for served in counted),
        stalls=sum(served.stalls for served in counted),
        steps=sum(served.steps for served in counted),
    )


@dataclass(frozen=True, slots=True)
class Worse:
    """What half of the new replicas or more do worse: with value and limit, in words."""

    said: str
    measure: Measure
    limit: float


def find_worse(workload: Workload, current: Sequence[Replica], before: ServedCounts | None) -> Worse | None:
    """None: nothing is worse, or it is not known. One replica of several is its node's trouble, or that of the requests that it got."""
    if before is None or not isinstance(workload.original, Target) or before.engine != engine_of(workload.original):
        return None  # another image or flag since then is another cause
    for measure in (ERRORS, STALLS):
        then = measure.share(_served(before))
        if not then.whole:
            continue
        limit = _limit(then, measure)
        worse = [share for each in current if (share := _share(each, measure)) is not None and _low(share) > limit]
        if worse and 2 * len(worse) >= len(current):
            value = sum(share.part for share in worse) / sum(share.whole for share in worse)
            said = f"{len(worse)} of {len(current)} new replicas: {_percent(value)} {measure.said} "
            return Worse(f"{said}(limit {_percent(limit)}; before {_percent(then.part / then.whole)})", measure, limit)
    return None


def goes_on(worse: Worse, first: ServedCounts, now: ServedCounts | None) -> bool | None:
    """Whether it is so in what was counted since `first` alone, too. A bad minute stays in the sums, and is over.

    None: too little was counted since to say so. False also where engines that counted are gone, or started again.
    """
    if now is None:
        return False
    then, since = _served(first), _served(now)
    grown = Served(*(getattr(since, field) - getattr(then, field) for field in Served.__slots__))
    if min(getattr(grown, field) for field in Served.__slots__) < 0:
        return False
    share = worse.measure.share(grown)
    if share.part > share.whole:
        return False  # sums of other engines than then
    if share.worth < worse.measure.fewest:
        return None
    if share.part / share.whole <= worse.limit:
        return False
    return True if _low(share) > worse.limit else None


def _served(counts: ServedCounts) -> Served:
    return Served(counts.finished_requests, counts.failed_requests, counts.gaps, counts.stalls, counts.steps)


def _share(replica: Replica, measure: Measure) -> Share | None:
    """None: not known, or of too few."""
    share = measure.share(replica.served) if replica.pod.ready and replica.served is not None else None
    return share if share is not None and share.worth >= measure.fewest else None


def _limit(then: Share, measure: Measure) -> float:
    share = then.part / then.whole
    return max(_interval(then)[1], WORSE_TIMES * share, share + measure.least)


def _low(share: Share) -> float:
    return _interval(share)[0]


def _interval(share: Share) -> tuple[float, float]:
    # A status that somebody wrote by hand may say anything, and a decision never fails.
    found = wilson(min(share.part / share.whole, 1.0) * share.worth, share.worth, CONFIDENCE)
    return found.low, found.high


def _percent(share: float) -> str:
    """With two digits: a thousandth matters here."""
    return f"{share * 100:.2f} %"


def engine_of(target: Target) -> str:
    """Digest of the container as its user wrote it: a restart of the workload is no other engine."""
    return template_digest(container_of(target.template, target.container))[:16]
