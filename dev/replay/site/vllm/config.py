"""The configuration objects, reduced to what an engine plugin reads, with vLLM's names and early checks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from vllm.version import HAS_TABLES

V1_ONLY_METHODS = frozenset({"suffix", "medusa", "mlp_speculator", "ngram_gpu"})
METHODS_WITHOUT_MODEL = frozenset({"ngram", "ngram_gpu", "suffix", "mtp"})
SYNTHETIC = "synthetic"


class CUDAGraphMode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL_AND_PIECEWISE = (2, 1)


@dataclass
class ModelConfig:
    model: str
    max_model_len: int
    served_model_name: str
    revision: str | None = None
    dtype: str = "torch.bfloat16"
    quantization: str | None = None
    enforce_eager: bool = False


@dataclass
class SchedulerConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool = False


@dataclass
class ParallelConfig:
    tensor_parallel_size: int
    data_parallel_size: int
    pipeline_parallel_size: int

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass
class CacheConfig:
    block_size: int = 16
    num_gpu_blocks: int = 65536


@dataclass
class DeviceConfig:
    device_type: str = "cuda"


@dataclass
class CompilationConfig:
    cudagraph_mode: CUDAGraphMode
    cudagraph_capture_sizes: list[int]

    @property
    def max_cudagraph_capture_size(self) -> int:
        return max(self.cudagraph_capture_sizes, default=0)


@dataclass
class SpeculativeConfig:
    """Raises ValueError in the constructor for what vLLM refuses before it loads a model."""

    num_speculative_tokens: int | None = None
    method: str | None = None
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = None
    rejection_sample_method: str = "standard"
    synthetic_acceptance_rates: list[float] | None = None
    synthetic_acceptance_length: float | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    draft_tensor_parallel_size: int | None = None
    quantization: str | None = None
    max_model_len: int | None = None
    enable_adaptive_verification: bool = False
    draft_model_config: ModelConfig | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.num_speculative_tokens or self.num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens must be greater than zero, got {self.num_speculative_tokens!r}.")
        self.method = self.method or ("draft_model" if self.model else None)
        if self.method is None:
            raise ValueError("speculative-config needs a method or a model.")
        if self.method not in METHODS_WITHOUT_MODEL and not self.model:
            raise ValueError(f"speculative method {self.method} needs a model.")
        if self.num_speculative_tokens_per_batch_size is not None:
            if not HAS_TABLES:
                raise ValueError("num_speculative_tokens_per_batch_size: Unexpected keyword argument")
            self.num_speculative_tokens_per_batch_size = _parse_ranges(self.num_speculative_tokens_per_batch_size)
        self._resolve_synthetic()
        if self.model:
            self.draft_model_config = ModelConfig(self.model, self.max_model_len or 0, self.model, self.revision)

    def _resolve_synthetic(self) -> None:
        rates, length, positions = self.synthetic_acceptance_rates, self.synthetic_acceptance_length, self.num_speculative_tokens or 0
        if self.rejection_sample_method != SYNTHETIC:
            if rates is not None or length is not None:
                raise ValueError("synthetic_acceptance_rates and _length are only valid with rejection_sample_method='synthetic'.")
            return
        if (rates is None) == (length is None):
            raise ValueError("rejection_sample_method='synthetic' requires exactly one of synthetic_acceptance_rates or _length.")
        if length is not None:
            if not 1 <= length <= positions + 1:
                raise ValueError(f"synthetic_acceptance_length must be in [1, {positions + 1}], got {length}.")
            rates = [min(1.0, max(0.0, length - 1 - i)) for i in range(positions)]
        assert rates is not None
        if len(rates) != positions or any(not 0 <= r <= 1 for r in rates) or sorted(rates, reverse=True) != list(rates):
            raise ValueError(f"synthetic_acceptance_rates must be {positions} non-increasing rates in [0, 1], got {rates}.")
        self.synthetic_acceptance_rates = list(rates)
        self.synthetic_acceptance_length = None

    def uses_dynamic_speculative_decoding(self) -> bool:
        return self.num_speculative_tokens_per_batch_size is not None


@dataclass
class VllmConfig:
    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    cache_config: CacheConfig
    device_config: DeviceConfig
    compilation_config: CompilationConfig
    speculative_config: SpeculativeConfig | None

    @property
    def use_v2_model_runner(self) -> bool:
        asked = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
        if asked is not None:
            return asked.lower() in {"1", "true"}
        return self.speculative_config is None or self.speculative_config.method not in V1_ONLY_METHODS

    @property
    def num_speculative_tokens(self) -> int:
        return (self.speculative_config.num_speculative_tokens or 0) if self.speculative_config else 0


def _parse_ranges(ranges: Any) -> list[tuple[int, int, int]]:
    """As pydantic does: a list of triples, numbers coerced where nothing is lost."""
    if not isinstance(ranges, list):
        raise ValueError("num_speculative_tokens_per_batch_size: Input should be a valid list")  # noqa: TRY004 (one error type, as pydantic)
    parsed = []
    for item in ranges:
        if not isinstance(item, list) or len(item) != 3:
            raise ValueError("num_speculative_tokens_per_batch_size: Input should be a valid tuple of 3 integers")
        first, last, length = (_coerce(n) for n in item)
        parsed.append((first, last, length))
    return parsed


def _coerce(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"Input should be a valid integer, got {value}")
    if isinstance(value, bool | int | float | str):
        return int(value)
    raise ValueError(f"Input should be a valid integer, got {value!r}")
