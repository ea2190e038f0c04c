"""Where the plugin holds on to vLLM: the only module that knows vLLM's methods, and how to let go of them again.

Everything is found by looking, not by version numbers. What is not as expected leaves the engine as it was; what fails
later lets go of the engine at once. The reason is on the socket either way.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tabletune_engine.control import Control
from tabletune_engine.facts import count_workers, launch_lengths, read_facts, rejects_by_itself
from tabletune_engine.graph_report import GraphReport
from tabletune_engine.graphs import hold_graphs
from tabletune_engine.operations import Operations
from tabletune_engine.policy import Policy
from tabletune_engine.recorder import Recorder
from tabletune_engine.server import LineServer
from tabletune_engine.warm_up import find_hindrance, seconds_asked, warm_up
from tabletune_engine.worker import prepare_worker

logger = logging.getLogger(__name__)

SCHEDULER_METHODS: Mapping[str, frozenset[str]] = {
    "schedule": frozenset(),
    "update_from_output": frozenset({"scheduler_output"}),
    "make_spec_decoding_stats": frozenset({"num_draft_tokens", "num_accepted_tokens", "num_invalid_spec_tokens", "request_id"}),
}
SCHEDULER_ATTRIBUTES = (
    "vllm_config",
    "dynamic_sd_lookup",
    "num_spec_tokens",
    "use_v2_model_runner",
    "running",
    "waiting",
    "max_num_running_reqs",
)
OUTPUT_FIELDS = frozenset(
    {
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "finished_req_ids",
        "num_spec_tokens_to_schedule",
    }
)
CACHED_FIELDS = frozenset({"req_ids", "resumed_req_ids", "num_output_tokens"})
STATISTICS_FIELDS = frozenset({"num_draft_tokens_per_pos", "num_accepted_tokens_per_pos"})
FAILED = "TableTune failed in a step and lets go of this engine"
MARK = "_tabletune"  # on what is wrapped, for vLLM may load plugins more than once


def install(socket_path: str) -> None:
    """Wait, in this process, for a scheduler and for workers to be made."""
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    _run_after(scheduler, "__init__", lambda made: _attach(made, socket_path))
    wrapper = importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    _run_after(wrapper, "init_device", lambda made: _prepare(made, socket_path))
    if (seconds := seconds_asked(os.environ)) > 0:
        core = importlib.import_module("vllm.v1.engine.core").EngineCoreProc
        _run_before(core, "run_busy_loop", lambda made: _warm_up(made, socket_path, seconds))


def _prepare(wrapper: Any, socket_path: str) -> None:
    prepare_worker(wrapper, Control(socket_path))
    if hasattr(wrapper.worker, "compile_or_warm_up_model"):
        _run_after(type(wrapper.worker), "compile_or_warm_up_model", lambda made: hold_graphs(made, GraphReport(socket_path)))


def _warm_up(core: Any, socket_path: str, seconds: float) -> None:
    try:
        hindrance = find_hindrance(core, GraphReport(socket_path).read(count_workers(core.scheduler)))
    except Exception:
        logger.exception("TableTune leaves this engine as it is")
        return
    if hindrance is not None:
        logger.info("TableTune does not run this engine's draft lengths before its first request: %s", hindrance)
        return
    warm_up(core, SCHEDULER_METHODS, seconds=seconds)


def _run_before(owner: Any, name: str, first: Callable[[Any], None]) -> None:
    """Unlike `_run_after`, it lets a failure through: an engine that cannot make its first steps must not say that it is ready."""
    original = getattr(owner, name)
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        first(self)
        return original(self, *args, **kwargs)

    setattr(wrapped, MARK, True)
    setattr(owner, name, wrapped)


def _run_after(owner: Any, name: str, then: Callable[[Any], None]) -> None:
    original = getattr(owner, name)
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            then(self)
        except Exception:
            logger.exception("TableTune leaves this engine as it is")
        return result

    setattr(wrapped, MARK, True)
    setattr(owner, name, wrapped)


def _attach(scheduler: Any, socket_path: str) -> None:
    """Count and choose in this scheduler as far as it allows, and answer on the socket in any case."""
    surprise = find_surprise(scheduler)
    graphs = functools.partial(GraphReport(socket_path).read, count_workers(scheduler))
    if surprise is not None:
        operations = Operations(
            recorder=Recorder(0, 0),
            policy=None,
            control=None,
            engine=read_facts(scheduler),
            graphs=graphs,
            reject_by=lambda: None,
            inactive_reason=surprise,
        )
        LineServer(socket_path, operations.handlers()).start()
        return
    control = Control(socket_path)
    control.set_reject(False)
    recorder = Recorder(scheduler.vllm_config.scheduler_config.max_num_seqs, scheduler.num_spec_tokens)
    attachment = Attachment(scheduler, recorder)
    policy, reason = _make_policy(scheduler, attachment.is_prefill_near)
    operations = Operations(
        recorder=recorder,
        policy=policy,
        control=control,
        engine=read_facts(scheduler),
        graphs=graphs,
        reject_by=functools.partial(_reject_by, scheduler, control),
        inactive_reason=reason,
    )
    attachment.hold(policy, operations)
    LineServer(socket_path, operations.handlers()).start()


def find_surprise(scheduler: Any) -> str | None:
    """The first thing that is not as this plugin knows it, as a sentence; None if all is."""
    for name in SCHEDULER_ATTRIBUTES:
        if not hasattr(scheduler, name):
            return f"This vLLM's scheduler has no {name}. Use vLLM 0.32 or later, or a newer TableTune."
    for name, parameters in SCHEDULER_METHODS.items():
        method = getattr(scheduler, name, None)
        if method is None or not parameters <= inspect.signature(method).parameters.keys():
            return f"This vLLM's Scheduler.{name} is not the one that TableTune knows. Use a newer TableTune."
    output = importlib.import_module("vllm.v1.core.sched.output")
    for owner, wanted in (("SchedulerOutput", OUTPUT_FIELDS), ("CachedRequestData", CACHED_FIELDS)):
        missing = wanted - getattr(getattr(output, owner, None), "__dataclass_fields__", {}).keys()
        if missing:
            names = ", ".join(sorted(missing))
            return f"This vLLM's {owner} has no {names}. Use vLLM 0.32 or later, or a newer TableTune."
    return None


def _make_policy(scheduler: Any, is_prefill_near: Callable[[], bool]) -> tuple[Policy | None, str | None]:
    lookup = scheduler.dynamic_sd_lookup
    config = scheduler.vllm_config
    if config.speculative_config is None:
        return None, "The engine was launched without speculation, so there is no draft length to choose."
    if lookup is None and config.parallel_config.data_parallel_size > 1:
        return None, "vLLM uses no table with data parallelism. Set --data-parallel-size 1, or use one fixed length."
    if lookup is None:
        return None, ("The engine was launched without a table. Add num_speculative_tokens_per_batch_size to --speculative-config.")
    ranges = config.speculative_config.num_speculative_tokens_per_batch_size
    launch = tuple(sorted((first, last, k) for first, last, k in ranges))
    return Policy(lookup, launch, launch_lengths(scheduler), is_prefill_near), None


def _reject_by(scheduler: Any, control: Control) -> str | None:
    if rejects_by_itself(scheduler):
        return "engine"
    return "plugin" if control.has_workers(scheduler.vllm_config.parallel_config.world_size) else None


class Attachment:
    """What is put into one scheduler object, and how it is taken out again."""

    def __init__(self, scheduler: Any, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self._recorder = recorder
        self._launch_lookup = scheduler.dynamic_sd_lookup

    def hold(self, policy: Policy | None, operations: Operations) -> None:
        """Put the wrappers on the object, not its class: whatever subclass vLLM chose, its own methods are called."""
        self._operations = operations
        scheduler = self._scheduler
        scheduler.schedule = self._wrap_schedule(scheduler.schedule)
        scheduler.update_from_output = self._wrap_update(scheduler.update_from_output)
        if not _keeps_statistics(scheduler):
            scheduler.make_spec_decoding_stats = self._wrap_verified(scheduler.make_spec_decoding_stats)
        if policy is not None:
            scheduler.dynamic_sd_lookup = policy

    def is_prefill_near(self) -> bool:
        """For the policy, within `schedule()`."""
        try:
            return _is_prefill_near(self._scheduler)
        except Exception:
            logger.exception(FAILED)
            self._let_go()
            return True

    def _let_go(self) -> None:
        for name in SCHEDULER_METHODS:
            self._scheduler.__dict__.pop(name, None)
        self._scheduler.dynamic_sd_lookup = self._launch_lookup
        self._operations.deactivate("The plugin failed and let go of the engine. Report its log, restart the engine.")

    # A failure of ours ends our hold instead of the engine's step. Each wrapper says so itself: a common one would cost
    # every step more than what it guards.

    def _wrap_schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        scheduled, clock = self._recorder.scheduled, time.perf_counter_ns

        def schedule(*args: Any, **kwargs: Any) -> Any:
            out = original(*args, **kwargs)
            try:
                scheduled(out, clock())
            except Exception:
                logger.exception(FAILED)
                self._let_go()
            return out

        return schedule

    def _wrap_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        updated = self._recorder.updated

        def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = original(scheduler_output, *args, **kwargs)
            try:
                updated(scheduler_output, outputs)
            except Exception:
                logger.exception(FAILED)
                self._let_go()
            return outputs

        return update_from_output

    def _wrap_verified(self, original: Callable[..., Any]) -> Callable[..., Any]:
        verified = self._recorder.verified

        def make_spec_decoding_stats(*args: Any, **kwargs: Any) -> Any:
            try:
                request_id, drafts = kwargs["request_id"], kwargs["num_draft_tokens"]
                if invalid := kwargs["num_invalid_spec_tokens"]:  # drafts that a grammar forbids, as vLLM counts them
                    drafts -= invalid.get(request_id, 0)
                verified(drafts, kwargs["num_accepted_tokens"], request_id)
            except Exception:
                logger.exception(FAILED)
                self._let_go()
            return original(*args, **kwargs)

        return make_spec_decoding_stats


def _keeps_statistics(scheduler: Any) -> bool:
    """Whether the output of a step says what was drafted and kept in it, by position, so that no request need be looked at."""
    metrics = sys.modules.get("vllm.v1.spec_decode.metrics")  # the scheduler's module has imported it
    fields = getattr(getattr(metrics, "SpecDecodingStats", None), "__dataclass_fields__", {}).keys()
    return bool(getattr(scheduler, "log_stats", False)) and fields >= STATISTICS_FIELDS


def _is_prefill_near(scheduler: Any) -> bool:
    """Within `schedule()`: whether this step carries a prefill, or the next one will as far as can be seen.

    What waits although there is room was not taken yet for want of tokens or memory, and may be in the next step. What waits
    for a full engine begins when a running request ends, which cannot be seen; a queue for ever must not end exploring for ever.
    """
    if scheduler.waiting and len(scheduler.running) < scheduler.max_num_running_reqs:
        return True
    # A request that decodes lacks its newest token only. The others are the last of the list.
    return any(request.num_computed_tokens < request.num_tokens - 1 for request in reversed(scheduler.running))
