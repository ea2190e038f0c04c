"""What the plugin changes in a worker process, for the time that step times are measured.

Needed only where vLLM's own synthetic rejection is refused (runner V1 on a CPU): every guess is rejected after it was
verified, so the cost is that of a step that keeps none. And the n-gram drafter, which drafts when it finds something,
then drafts in every step. While nobody asks for it, a worker's step costs one more read of memory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tabletune_engine.control import Control

REJECTED = -1  # vLLM's PLACEHOLDER_TOKEN_ID


def prepare_worker(wrapper: Any, control: Control) -> None:
    """Wrap the sampler and the drafter of this process, if they are those of runner V1; then say that it listens.

    `wrapper` is vLLM's WorkerWrapperBase after `init_device`, which has imported all that the worker will use. Nothing
    is imported here: on a CPU, modules with Triton kernels must not be loaded before the platform has replaced them.
    """
    config = wrapper.vllm_config
    sampler = _loaded("vllm.v1.sample.rejection_sampler", "RejectionSampler")
    if config.speculative_config is None or config.use_v2_model_runner or sampler is None:
        return
    sampler.forward = _rejecting(sampler.forward, control)
    drafter = _loaded("vllm.v1.spec_decode.ngram_proposer", "NgramProposer")
    if drafter is not None:
        drafter.propose = _always_drafting(drafter.propose, control)
    control.announce(wrapper.global_rank)


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _rejecting(forward: Callable[..., Any], control: Control) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if control.rejects():
            output.sampled_token_ids[:, 1:] = REJECTED
        return output

    return wrapped


def _always_drafting(propose: Callable[..., Any], control: Control) -> Callable[..., Any]:
    @functools.wraps(propose)
    def wrapped(drafter: Any, k: int, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        drafts = propose(drafter, k, sampled_token_ids, *args, **kwargs)
        if not control.rejects():
            return drafts
        # Any token serves: it costs what another costs, and will be rejected. A request without a sampled token has
        # not finished its prompt.
        return [(draft + sampled[-1:] * k)[:k] if sampled else draft for draft, sampled in zip(drafts, sampled_token_ids, strict=True)]

    return wrapped
