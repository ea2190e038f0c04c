"""What the engine says about itself, for `hello`: read from vLLM's configuration, null where it does not say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def read_facts(scheduler: Any) -> dict[str, Any]:
    """The `engine` object of `hello` (docs/protocol.md), from vLLM's Scheduler."""
    config = _get(scheduler, "vllm_config")
    table = _launch_table(scheduler)
    return {
        "vllm": _get(sys.modules.get("vllm"), "__version__"),
        "runner": _map({True: "v2", False: "v1"}.get, _get(scheduler, "use_v2_model_runner")),
        "device": _get(config, "device_config.device_type"),
        "model": _get(config, "model_config.model"),
        "revision": _get(config, "model_config.revision"),
        "dtype": _map(lambda dtype: str(dtype).removeprefix("torch."), _get(config, "model_config.dtype")),
        "quantization": _map(str, _get(config, "model_config.quantization")),
        "method": _get(config, "speculative_config.method"),
        "drafter": _get(config, "speculative_config.draft_model_config.model"),
        "drafterRevision": _get(config, "speculative_config.draft_model_config.revision"),
        # Only multi-token prediction heads and MLP speculators say it; EAGLE's checkpoints do not.
        "drafterTrainedLength": _map(_integer, _get(config, "speculative_config.draft_model_config.hf_config.n_predict")),
        "numSpeculativeTokens": _get(config, "num_speculative_tokens"),
        "launchTable": table,
        "launchLengths": list(launch_lengths(scheduler)),
        "maxNumSeqs": _get(config, "scheduler_config.max_num_seqs"),
        "maxModelLen": _get(config, "model_config.max_model_len"),
        "maxNumBatchedTokens": _get(config, "scheduler_config.max_num_batched_tokens"),
        "dataParallelSize": _get(config, "parallel_config.data_parallel_size"),
        "tensorParallelSize": _get(config, "parallel_config.tensor_parallel_size"),
        "pipelineParallelSize": _get(config, "parallel_config.pipeline_parallel_size"),
        "cudagraphMode": _get(config, "compilation_config.cudagraph_mode.name"),
        "captureSizes": _map(list, _get(config, "compilation_config.cudagraph_capture_sizes")),
        "kvCacheTokens": _kv_cache_tokens(scheduler),
        "asyncScheduling": _get(config, "scheduler_config.async_scheduling"),
        "enforceEager": _get(config, "model_config.enforce_eager"),
    }


def launch_lengths(scheduler: Any) -> tuple[int, ...]:
    """The lengths that may be put in force; none without a launch table.

    Runner V2 captures graphs for the lengths of the launch table only. V1 has no graph for a length, so all are alike.
    """
    lookup = _get(scheduler, "dynamic_sd_lookup")
    if lookup is None:
        return ()
    if scheduler.use_v2_model_runner:
        return tuple(sorted(set(list(lookup)[1:])))
    return tuple(range(scheduler.num_spec_tokens + 1))


def count_workers(scheduler: Any) -> int:
    """Worker processes of the engine; 0 when it does not say."""
    return int(_get(scheduler, "vllm_config.parallel_config.world_size") or 0)


def rejects_by_itself(scheduler: Any) -> bool:
    """Whether the engine was launched to reject every guess (vLLM's synthetic rejection with all rates 0)."""
    speculative = scheduler.vllm_config.speculative_config
    rates = _get(speculative, "synthetic_acceptance_rates")
    return _get(speculative, "rejection_sample_method") == "synthetic" and rates is not None and not any(rates)


def _launch_table(scheduler: Any) -> list[list[int]] | None:
    if _get(scheduler, "dynamic_sd_lookup") is None:
        return None
    ranges = _get(scheduler, "vllm_config.speculative_config.num_speculative_tokens_per_batch_size")
    return sorted([first, last, k] for first, last, k in ranges)


def _kv_cache_tokens(scheduler: Any) -> int | None:
    groups = _get(scheduler, "kv_cache_config.kv_cache_groups")
    blocks = _get(scheduler, "kv_cache_config.num_blocks")
    if not groups or blocks is None:
        return None
    # As vLLM reports it: the groups share the blocks.
    sizes = [_get(group, "kv_cache_spec.block_size") for group in groups]
    return None if None in sizes else blocks // len(groups) * min(sizes)


def _get(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else change(value)
