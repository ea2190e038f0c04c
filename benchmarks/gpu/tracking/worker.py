"""Runs inside the engine, for benchmarks only: vLLM's `--worker-extension-cls tracking.worker.BenchWorker`.

vLLM calls its methods between two steps, for `POST /collective_rpc` (VLLM_SERVER_DEV_MODE=1), so nothing changes in the middle of one.
It changes which share of the guesses is kept, and takes TableTune's hands off the scheduler and puts them back, both without a restart.
A step costs nothing more for it on a GPU: vLLM's synthetic rejection reads its rates from a tensor, which is written to.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.v1.core.sched.scheduler import Scheduler

REJECTED = -1
_schedulers: list[Any] = []  # of this process: the worker is in the engine's with one GPU
_held: dict[str, Any] = {}  # what the plugin put on the scheduler, while it is off


def _remember(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _schedulers.append(self)

    return wrapped


Scheduler.__init__ = _remember(Scheduler.__init__)  # workers are made before the scheduler is


class BenchWorker:
    """Methods take texts, as vLLM passes nothing else."""

    def set_rates(self, rates: str) -> str:
        """`0.7,0.5,0.3`: how often the first 1, 2, 3 guesses are all kept, from the next step on; the rates in force."""
        wanted = [float(rate) for rate in rates.split(",")]
        sampler = self.model_runner.rejection_sampler  # type: ignore[attr-defined]
        conditional = _conditional(wanted)
        if sampler.synthetic_conditional_rates is not None:
            with torch.inference_mode():  # in case the tensor was made in it
                sampler.synthetic_conditional_rates.copy_(torch.tensor(conditional))
        else:
            _thin(sampler, conditional)
        return rates

    def hold_plugin(self, on: str) -> str:
        """`off`: the scheduler is as vLLM made it; `on`: as the plugin made it. Only where scheduler and worker share a process."""
        [scheduler] = _schedulers
        # Imported here only: an engine without the plugin has this class, too.
        names = importlib.import_module("tabletune_engine.hooks").SCHEDULER_METHODS
        if on == "off" and not _held:
            _held.update({name: scheduler.__dict__.pop(name) for name in names if name in scheduler.__dict__})
            _held["dynamic_sd_lookup"] = scheduler.dynamic_sd_lookup
            scheduler.dynamic_sd_lookup = list(scheduler.dynamic_sd_lookup)  # a policy's own items are the launch table
        elif on == "on" and _held:
            scheduler.__dict__.update(_held)
            _held.clear()
        return ",".join(name for name in names if name in scheduler.__dict__)


def _conditional(rates: Sequence[float]) -> list[float]:
    """Of those that kept the guesses before, the share that keeps one more."""
    return [rate / before if before else 0.0 for before, rate in zip((1.0, *rates), rates, strict=False)]


def _thin(sampler: Any, conditional: Sequence[float]) -> None:
    """Where there is no synthetic rejection (a CPU): of the guesses that were really kept, keep so many, the text being the same."""
    original = type(sampler).forward.__get__(sampler)

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        ids = output.sampled_token_ids
        width = ids.shape[1] - 1
        kept = torch.rand((ids.shape[0], width)) < torch.tensor(conditional[:width])
        ids[:, 1:] = torch.where(kept.cumprod(1).bool(), ids[:, 1:], REJECTED)
        return output

    sampler.forward = forward
