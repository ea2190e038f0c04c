"""Keeps a drafter from replaying a graph that reads attention data which the target did not write (docs/engine-safety.md).

On vLLM's V2 runner the target and the drafter's prefill each ask a graph manager of their own which graph fits a step. Where
the target found none, but the drafter finds a full graph of a larger, padded batch, that graph reads rows that nobody wrote.
Here the drafter then gets the answer for a batch that is not uniform, which has no full graph. `hooks` calls `hold_graphs`
in each worker, once its graphs are captured.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tabletune_engine.graph_report import GraphReport
from tabletune_engine.policy import to_lengths

logger = logging.getLogger(__name__)

SWITCH_VARIABLE = "TABLETUNE_GRAPH_CURE"
DISPATCH_PARAMETERS = ("num_reqs", "num_tokens", "uniform_token_count", "num_active_loras", "max_query_len")
# Drafters that build attention data of their own for the graph that they replay, or replay none (vLLM 0.32 and 0.33).
OWN_DATA = frozenset({"DFlashSpeculator", "MultiModuleMTPSpeculator", "NgramGPUSpeculator", "StandaloneARSpeculator"})

Dispatch = Callable[..., Any]


def hold_graphs(worker: Any, report: GraphReport) -> None:
    """List the mismatched cells of this worker's engine, cure them, and say so. Says nothing where it cannot tell.

    `worker` is vLLM's Worker after `compile_or_warm_up_model`. Raises what an unknown vLLM makes it raise, having changed nothing.
    """
    config = worker.vllm_config
    if config.speculative_config is None or not config.use_v2_model_runner:
        return
    target, speculator = worker.model_runner.cudagraph_manager, worker.model_runner.speculator
    if speculator is None:
        return  # a pipeline's earlier stage: the last one speaks
    if OWN_DATA & {base.__name__ for base in type(speculator).__mro__}:
        report.say(worker.rank, ())
        report.hold(worker.rank, 0)
        return
    drafter = speculator.prefill_cudagraph_manager
    for manager in (target, drafter):
        vars(manager).pop("dispatch", None)  # ours, should vLLM warm up a second time
        missing = [name for name in DISPATCH_PARAMETERS if name not in inspect.signature(manager.dispatch).parameters]
        if missing:
            logger.warning("TableTune does not know this vLLM's graphs and leaves them: dispatch has no %s", ", ".join(missing))
            return
    lengths, most = captured_lengths(config), config.scheduler_config.max_num_seqs
    beside = target.decode_query_len - config.num_speculative_tokens
    cells = mismatched_cells(target, drafter, lengths, beside=beside, most=most)
    report.say(worker.rank, cells)
    report.switch(on=True)
    guard = Guard(target, drafter, report, worker.rank)
    guard.hold()
    try:
        left = mismatched_cells(target, drafter, lengths, beside=beside, most=most)  # asked through the guard: the proof
    except Exception:
        guard.let_go()
        raise
    if left:
        logger.warning("TableTune cannot cure %d mismatched cells, first %s, and leaves this engine's graphs", len(left), left[0])
        guard.let_go()
        return
    guard.begin(on=os.environ.get(SWITCH_VARIABLE) != "off")
    logger.info("TableTune holds this engine's graphs: %d mismatched cells", len(cells))


def mismatched_cells(target: Any, drafter: Any, lengths: Collection[int], *, beside: int, most: int) -> list[tuple[int, int]]:
    """The cells (B, k), B from 1 to `most`, in which the drafter's prefill replays a full graph though the target does not.

    `target` and `drafter` are vLLM's managers; both are asked as a step of B requests with k drafts each asks them.
    `beside` is the number of tokens that a request has in such a step beside its drafts.
    """
    return [
        (B, k)
        for B in range(1, most + 1)
        for k in sorted(lengths)
        if any(_is_mismatched(target, drafter, B, k + beside, loras) for loras in target.lora_capture_cases)
    ]


def _is_mismatched(target: Any, drafter: Any, B: int, q: int, loras: int) -> bool:
    wrote = target.dispatch(B, B * q, q, num_active_loras=loras, max_query_len=q)
    # The drafter is asked with the tokens that the target was padded to, and without adapters.
    replayed = drafter.dispatch(B, max(B * q, wrote.num_tokens), q, num_active_loras=0)
    return is_full(replayed) and not is_full(wrote)


def is_full(descriptor: Any) -> bool:
    """Whether vLLM will replay a full graph for this BatchExecutionDescriptor."""
    return bool(descriptor.cg_mode.name == "FULL")


class Guard:
    """What is put on the two managers, and how it is taken off again."""

    def __init__(self, target: Any, drafter: Any, report: GraphReport, rank: int) -> None:
        self._managers = (target, drafter)
        self._report = report
        self._rank = rank
        self._wrote_full = False  # of the target's last answer; each serves one question of the drafter
        self._cures = 0

    def hold(self) -> None:
        """Put the wrappers on the objects, whose classes other managers share."""
        target, drafter = self._managers
        target.dispatch, drafter.dispatch = self._watch(target.dispatch), self._cure(drafter.dispatch)

    def begin(self, *, on: bool) -> None:
        """Count from here, and cure from the first step on or not."""
        self._wrote_full, self._cures = False, 0
        self._report.hold(self._rank, 0)
        self._report.switch(on)

    def _watch(self, original: Dispatch) -> Dispatch:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            wrote = original(*args, **kwargs)
            try:
                self._wrote_full = is_full(wrote)
            except Exception:
                logger.exception("TableTune failed in a step and lets go of this worker's graphs")
                self.let_go()
            return wrote

        return dispatch

    def _cure(self, original: Dispatch) -> Dispatch:
        def dispatch(num_reqs: int, num_tokens: int, uniform_token_count: int | None, *args: Any, **kwargs: Any) -> Any:
            found = original(num_reqs, num_tokens, uniform_token_count, *args, **kwargs)
            try:
                wrote_full, self._wrote_full = self._wrote_full, False
                if wrote_full or not is_full(found) or not self._report.is_on():
                    return found
                other = original(num_reqs, num_tokens, None, *args, **kwargs)
                self._cures += 1
                self._report.hold(self._rank, self._cures)
            except Exception:
                logger.exception("TableTune failed in a step and lets go of this worker's graphs")
                self.let_go()
                return found
            return other

        return dispatch

    def let_go(self) -> None:
        """Leave the engine as it was, and say so."""
        for manager in self._managers:
            manager.__dict__.pop("dispatch", None)
        self._report.let_go(self._rank, self._cures)


def captured_lengths(config: Any) -> set[int]:
    """The draft lengths that graphs were captured for: those of the launch table as vLLM reads it, or the one there is."""
    longest, ranges = config.num_speculative_tokens, config.speculative_config.num_speculative_tokens_per_batch_size
    if ranges is None:
        return {longest}
    dense: Iterable[int] = to_lengths(tuple((first, last, k) for first, last, k in ranges), config.scheduler_config.max_num_seqs)
    return {min(k, longest) for k in dense}
