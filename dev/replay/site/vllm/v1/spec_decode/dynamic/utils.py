"""The table's late checks and its dense form, with the results that facts about vLLM 0.24 to 0.33 list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Ranges = Sequence[tuple[int, int, int]]


def build_dynamic_sd_schedule_lookup(ranges: Ranges, vllm_max_batch_size: int, vllm_num_speculative_tokens: int) -> list[int]:
    """Draft length by batch size, index 0 unused. Gaps and the tail carry the length before them; too long a length is clamped.

    Raises:
        ValueError: empty, not positive, overlapping, or not starting at batch size 1.
    """
    if not ranges:
        raise ValueError("num_speculative_tokens_per_batch_size must not be empty.")
    ordered = sorted(ranges)
    for first, last, length in ordered:
        if first <= 0 or last <= 0:
            raise ValueError("Batch-size range bounds must be > 0.")
        if first > last:
            raise ValueError("Batch-size range start must be <= end.")
        if length < 0:
            raise ValueError("num_speculative_tokens must be >= 0.")
    if ordered[0][0] != 1:
        raise ValueError("The first batch-size range must start at 1 so every batch size has a schedule.")
    if any(later[0] <= earlier[1] for earlier, later in pairwise(ordered)):
        raise ValueError("Batch-size ranges must be non-overlapping and sorted.")
    by_batch_size = ([k for first, _, k in ordered if first <= batch_size][-1] for batch_size in range(1, vllm_max_batch_size + 1))
    return [0, *(min(k, vllm_num_speculative_tokens) for k in by_batch_size)]
