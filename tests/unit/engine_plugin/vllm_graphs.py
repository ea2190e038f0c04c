"""Stand-ins for vLLM 0.33's graph managers, with their names and the choice that `CudaGraphManager.dispatch` makes.

`tests/engine/test_graph_cells.py` asks the real ones; these are for what the real ones never do: fail, change, or go away.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

CAPTURE_SIZES = (1, 2, 3, 4, 6, *range(8, 65, 8))


class CUDAGraphMode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class BatchExecutionDescriptor:
    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None


class CudaGraphManager:
    """Sees, of full graphs, only those with the fewest tokens that hold the batch: that is how holes come about."""

    def __init__(self, query_lens: Collection[int], longest_query: int) -> None:
        self.decode_query_len = longest_query
        self.lora_capture_cases = [0]
        shapes = {(-(-size // q) * q, q) for size in CAPTURE_SIZES for q in query_lens}
        self.full = [BatchExecutionDescriptor(CUDAGraphMode.FULL, n, n // q, q) for n, q in sorted(shapes)]

    def dispatch(  # noqa: PLR0917 - vLLM's own signature
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> BatchExecutionDescriptor:
        nearest = min((d.num_tokens for d in self.full if d.num_tokens >= num_tokens), default=0)
        for d in self.full:
            fits = d.num_reqs is not None and d.num_reqs >= num_reqs
            if d.num_tokens == nearest and d.uniform_token_count == uniform_token_count and fits:
                return d
        piecewise = min((size for size in CAPTURE_SIZES if size >= num_tokens), default=None)
        if piecewise is None:
            return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
        return BatchExecutionDescriptor(CUDAGraphMode.PIECEWISE, piecewise, None)


class ModelCudaGraphManager(CudaGraphManager):
    pass


class SpeculatorCudaGraphManager(CudaGraphManager):
    pass


class EagleSpeculator:
    def __init__(self, manager: Any) -> None:
        self.prefill_cudagraph_manager = manager


class DFlashSpeculator:
    pass


class DSparkSpeculator(DFlashSpeculator):
    pass


def make_worker(ranges: list[list[int]] | None, longest: int = 3, most: int = 16, **changes: Any) -> Any:
    """vLLM's Worker after its graphs were captured, as far as the plugin looks."""
    lengths = {longest} if ranges is None else {k for _, _, k in ranges}
    query_lens = sorted(k + 1 for k in lengths)
    target, drafter = ModelCudaGraphManager(query_lens, longest + 1), SpeculatorCudaGraphManager(query_lens, longest + 1)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens_per_batch_size=ranges),
        num_speculative_tokens=longest,
        scheduler_config=SimpleNamespace(max_num_seqs=most),
        use_v2_model_runner=changes.get("v2", True),
    )
    runner = SimpleNamespace(cudagraph_manager=target, speculator=changes.get("speculator", EagleSpeculator(drafter)))
    return SimpleNamespace(vllm_config=config, model_runner=runner, rank=0)
