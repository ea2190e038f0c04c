"""vLLM's scheduler as on a GPU, where there is none: asynchronous scheduling and runner V2. A scheduler needs no GPU itself.

For `measure.py` beside it and `tests/engine/async_scheduler_run.py`; runs in the engine's environment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_TOKENS = 16


def make_config(tiny: str, launch: Sequence[Sequence[int]], blocks: int, **arguments: Any) -> Any:
    """The configuration of the tiny pair with this launch table and so many blocks of KV cache."""
    speculation = {"method": "draft_model", "model": f"{tiny}/draft", "num_speculative_tokens": 3}
    config = EngineArgs(
        model=f"{tiny}/target",
        max_num_seqs=launch[-1][1],
        max_model_len=512,
        enforce_eager=True,
        enable_prefix_caching=False,
        speculative_config=speculation | {"num_speculative_tokens_per_batch_size": launch},
        **arguments,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = True
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # not earlier: a whole engine with that runner needs Triton
    config.cache_config.num_gpu_blocks = blocks
    return config


def make_scheduler(config: Any) -> AsyncScheduler:
    """A scheduler with the configuration's blocks."""
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return AsyncScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(config.cache_config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=True,
    )
