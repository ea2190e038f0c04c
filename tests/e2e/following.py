"""Traffic that was not profiled, until every replica drafts less for it: the table is another one, and nothing was restarted for it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from place import WORK_SECONDS, Place

from tabletune.table import Table
from tabletune_operator.rollout import SIDECAR_PORT

QUICK = {"priorWeight": 60, "rebuildEverySteps": 60}
"""`spec.controller` for engines that make few steps a minute."""

NUMBERS = "12 90 7 53 28 61 84 3 40 76 19 95 "
"""Other traffic than was profiled (code), of which the stand-in guesses hardly anything: no noise of a machine hides that."""
IN_FLIGHT = 4  # the batch size up to which these tests measure


@dataclass(frozen=True, slots=True)
class Asking:
    """How requests are kept in flight: through which Service, so many at once, with these prompts in turn."""

    service: str = "decode"
    prompts: Sequence[str] = (NUMBERS,)
    at_once: int = IN_FLIGHT
    max_tokens: int = 64
    temperature: float = 0.0


def assert_follows(place: Place, service: str = "decode") -> None:
    """Each replica behind a Service gets a table of shorter lengths in the very engine that runs, when other traffic comes."""
    running = place.restarts(service)
    before = {pod: drafted(state_of(place, pod)) for pod in pods(place, service)}
    with in_flight(place, Asking(service)):
        place.until(
            lambda: all(drafted(state_of(place, pod)) < most for pod, most in before.items()),
            f"the tables behind {service} follow the traffic; they drafted {before}",
            WORK_SECONDS,
        )
    assert place.restarts(service) == running


def pods(place: Place, service: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in place.replicas(service)]


def state_of(place: Place, pod: str) -> dict[str, Any]:
    """What the sidecar of a replica says of itself."""
    return place.api.get_from_pod(place.namespace, pod, SIDECAR_PORT, "state")


def drafted(state: dict[str, Any]) -> int:
    """Guesses of the table in force, over the batch sizes up to the load's."""
    table = Table.parse(state["table"]["inForce"])
    return sum(table.length_at(B) for B in range(1, IN_FLIGHT + 1))


@contextlib.contextmanager
def in_flight(place: Place, asking: Asking) -> Iterator[None]:
    """Requests at any time. Fails afterwards when one of them was not answered whole, or fewer were than there are at once."""
    stop = threading.Event()

    def ask(first: int) -> int:
        answered = 0
        prompts = itertools.islice(itertools.cycle(asking.prompts), first, None)
        while not stop.is_set():
            assert place.complete(next(prompts), asking.service, asking.max_tokens, asking.temperature) == asking.max_tokens
            answered += 1
        return answered

    with ThreadPoolExecutor(asking.at_once) as clients:
        asked = [clients.submit(ask, n) for n in range(asking.at_once)]
        try:
            yield
        finally:
            stop.set()
    assert sum(each.result() for each in asked) >= asking.at_once
