"""Runs every launched length at several batch sizes before the engine takes a request, so that no user pays for a first use.

vLLM has compiled its kernels and captured a graph for each length by then. What nobody has done yet is to run them one after the
other as traffic does: replay, verification and drafting at each length, and the changes between them. Requests of our own go
through the engine's own loop here, by the methods that its busy loop calls; nothing is imitated. `hooks` calls it in the engine's process
right before that loop begins. vLLM's HTTP server opens after the loop has answered its first question, so this is a part of the start
that startup probes wait for.
"""

from __future__ import annotations

import importlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tabletune_engine.graph_report import GraphState
from tabletune_engine.graphs import captured_lengths

logger = logging.getLogger(__name__)

SECONDS_VARIABLE = "TABLETUNE_WARM_UP_SECONDS"
SWITCH_VARIABLE = "TABLETUNE_WARM_UP"
METHODS = ("add_request", "abort_requests", "step_fn", "post_step", "has_work", "reset_prefix_cache", "request_block_hasher")
SCHEDULER_METHODS = ("dynamic_sd_lookup", "get_request_counts", "get_kv_connector")
STEPS = 4  # of a length: chosen in the first, drafted at its end, verified in the second; an engine that schedules ahead has one more
MOST_FILL_STEPS = 8  # until all requests that were added run
MOST_DRAIN_STEPS = 64  # after the requests were ended; an engine has a few steps in flight
PROMPT_TOKENS = 4


def seconds_asked(environment: Mapping[str, str]) -> float:
    """For how long the lengths may run; 0: nothing is run. The switch is its user's, and wins over the seconds, which a roll-out sets."""
    if environment.get(SWITCH_VARIABLE) == "off":
        return 0.0
    text = environment.get(SECONDS_VARIABLE, "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        logger.warning(
            "TableTune runs no draft length before the first request: %s is %r, which is no number of seconds", SECONDS_VARIABLE, text
        )
        return 0.0
    return seconds


def warm_up(core: Any, wrapped: Collection[str], *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Run what can be run in so many seconds, and leave the engine without a request, as it was.

    A single step that takes longer is not cut short: the first user would have waited for it.

    Args:
        core: vLLM's EngineCoreProc in which nothing hinders it, idle, in its main thread.
        wrapped: attributes that the plugin has put on the scheduler; they see nothing of these steps.
        seconds: after which no step is begun but those that end the requests.
        clock: monotonic, in seconds.

    Raises:
        Exception: vLLM's own, when it cannot make the steps that end these requests; such an engine could not serve either.
    """
    begun = clock()
    ids: list[str] = []
    ran: list[tuple[int, int]] = []
    with _unobserved(core.scheduler, wrapped):
        try:
            for cell in _run(core, ids):
                ran += [] if cell is None else [cell]
                if clock() - begun >= seconds:
                    break
        except Exception:
            logger.exception("TableTune could not run all of this engine's draft lengths before its first request")
        _end(core, ids)
    shown = ", ".join(f"B={B} k={k}" for B, k in ran)
    logger.info("TableTune ran this engine's draft lengths before its first request, in %.1f s: %s", clock() - begun, shown or "none")


def find_hindrance(core: Any, graphs: GraphState) -> str | None:
    """Why nothing may be run, as a clause; None if all is as this plugin knows it."""
    missing = [name for name in METHODS if not hasattr(core, name)]
    missing += [name for name in SCHEDULER_METHODS if not hasattr(core.scheduler, name)]
    if missing:
        return f"this vLLM's engine has no {', '.join(missing)}"
    config = core.vllm_config
    if core.scheduler.dynamic_sd_lookup is None:
        return "it was launched without a table"
    if config.parallel_config.data_parallel_size > 1:
        return "its steps must go together with those of other engines (data parallelism)"
    if core.scheduler.get_kv_connector() is not None:
        return "a KV connector would offer our requests to other engines"
    if graphs.mismatched and not graphs.cured:
        return "it has cells that would stall it, and they are not cured"
    return None


def batch_sizes(most: int) -> tuple[int, ...]:
    """Powers of two up to the largest batch size, and that."""
    return (*(1 << i for i in range(most.bit_length()) if 1 << i < most), most)


def _run(core: Any, ids: list[str]) -> Iterator[tuple[int, int] | None]:
    """Hold more and more requests, and run all lengths with each number of them.

    Yields after each step: the batch size and length that has now been run, or None. `ids`: of all requests that were added.
    """
    scheduler, most = core.scheduler, core.vllm_config.scheduler_config.max_num_seqs
    lengths, sizes = sorted(captured_lengths(core.vllm_config)), batch_sizes(most)
    steps = len(sizes) * (MOST_FILL_STEPS + STEPS * len(lengths))
    room = core.vllm_config.model_config.max_model_len - PROMPT_TOKENS - 1
    make = _request_maker(core, max_tokens=max(1, min(steps * (max(lengths) + 1), room)))
    for B in sizes:
        while len(ids) < B:
            ids.append(f"tabletune-warm-up-{len(ids)}")
            core.add_request(make(ids[-1], len(ids)))
        for _ in range(MOST_FILL_STEPS):
            _step(core)
            yield None
            running, waiting = scheduler.get_request_counts()
            if not waiting:
                break
        for k in lengths:
            scheduler.dynamic_sd_lookup = [k] * (most + 1)
            for _ in range(STEPS - 1):
                _step(core)
                yield None
            _step(core)
            yield running, k


def _request_maker(core: Any, *, max_tokens: int) -> Callable[[str, int], Any]:
    request = importlib.import_module("vllm.v1.request").Request
    sampling = importlib.import_module("vllm").SamplingParams

    def make(request_id: str, number: int) -> Any:
        # Greedy and not: verification has a kernel for each.
        params = sampling(max_tokens=max_tokens, ignore_eos=True, temperature=float(number % 2))
        tokens = [1 + (number + i) % 100 for i in range(PROMPT_TOKENS)]  # any that a vocabulary has
        return request(
            request_id=request_id,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            block_hasher=core.request_block_hasher,
        )

    return make


def _end(core: Any, ids: list[str]) -> None:
    """Take our requests out of the engine, and what they left in its prefix cache."""
    core.abort_requests(ids)
    for _ in range(MOST_DRAIN_STEPS):
        if not core.has_work():
            break
        _step(core)
    core.reset_prefix_cache()


def _step(core: Any) -> None:
    """One turn of the engine's busy loop, whose outputs nobody waits for."""
    _, executed = core.step_fn()
    core.post_step(executed)


@contextmanager
def _unobserved(scheduler: Any, wrapped: Collection[str]) -> Iterator[None]:
    """Without what the plugin has put on the scheduler: traffic is counted, and this is none."""
    held = {name: scheduler.__dict__.pop(name) for name in wrapped if name in scheduler.__dict__}
    lookup = scheduler.dynamic_sd_lookup
    try:
        yield
    finally:
        scheduler.__dict__.update(held)
        scheduler.dynamic_sd_lookup = lookup
