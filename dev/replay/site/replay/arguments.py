"""vLLM's command line, as far as it matters here. Unknown flags are accepted, so that any real command starts the stand-in."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm.config import (
    CacheConfig,
    CompilationConfig,
    CUDAGraphMode,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)

logger = logging.getLogger("replay")

SHORT_SPECULATIVE = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_MODEL_LEN = 8192
MAX_CAPTURE_SIZE = 512


def with_file(argv: Sequence[str]) -> list[str]:
    """The options of `--config FILE` before those of the command, as vLLM puts them; one `key: JSON or text` a line is read of YAML.

    Raises ValueError where vLLM ends: two files, another name than .yaml or .yml, none there, or nothing in it.
    """
    items = list(argv)
    if "--config" not in items:
        return items
    at = items.index("--config")
    if items.count("--config") > 1 or at + 1 == len(items):
        raise ValueError(f"--config: vLLM takes one file, got {items.count('--config')} options")
    path = Path(items[at + 1])
    if path.suffix not in {".yaml", ".yml"}:
        raise ValueError(f"Config file must be of a yaml/yml type. {path.suffix} supplied")
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"Unable to read the config file at {path}: {error}") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise ValueError(f"{path}: 'NoneType' object has no attribute 'items'")
    options: list[str] = []
    for line in lines if lines != ["{}"] else []:
        key, colon, value = line.partition(": ")
        if not colon or line.startswith((" ", "-")):
            raise ValueError(f"{path}: the stand-in reads lines of `key: value` only, got {line!r:.60}")
        options += [f"--{key}", value]
    rest = [*items[:at], *items[at + 2 :]]
    first = 1 if rest and not rest[0].startswith("-") else 0  # after the model
    return [*rest[:first], *options, *rest[first:]]


class Arguments:
    """The flags of one command, last one wins, `--a_b`, `--a-b`, `--a b` and `--a=b` alike; those of a `--config` file first."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.model: str | None = None
        self.values: dict[str, str] = {}
        items = with_file(argv)
        while items:
            item = items.pop(0)
            if not item.startswith("-"):
                self.model = self.model or item
                continue
            name, equals, value = item.partition("=")
            head, dot, key = name.partition(".")
            name = head.replace("_", "-") + dot + key
            if not equals:
                value = items.pop(0) if items and _is_value(items[0]) else "true"
            self.values[name] = value
        self.model = self.values.get("--model", self.model)

    def integer(self, name: str, default: int, short: str | None = None) -> int:
        """Raises ValueError when the value is no integer."""
        text = self.values.get(name, self.values.get(short or "", str(default)))
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}: expected an integer, got {text!r}") from None

    def text(self, name: str, default: str) -> str:
        return self.values.get(name, default)

    def flag(self, name: str) -> bool:
        return self.values.get(name) == "true"

    def speculative(self) -> dict[str, Any] | None:
        """The speculative config of all spellings together; None without any.

        Raises ValueError when the JSON cannot be read.
        """
        settings: dict[str, Any] = {}
        if self.values.get("--speculative-config", "None") not in {"", "None"}:  # vLLM's spelling of "not given", over a file that gives it
            found = json.loads(self.values["--speculative-config"])
            if not isinstance(found, dict):
                raise ValueError("--speculative-config: expected a JSON object")
            settings.update(found)
        for name, value in self.values.items():
            if name.startswith("--speculative-config."):
                settings[name.removeprefix("--speculative-config.")] = _json_or_text(value)
            elif name in SHORT_SPECULATIVE:
                settings[SHORT_SPECULATIVE[name]] = _json_or_text(value)
        return settings or None


def _is_value(item: str) -> bool:
    return not item.startswith("-") or item.lstrip("-").replace(".", "").isdigit()


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def build_config(arguments: Arguments) -> VllmConfig:
    """Raises ValueError for what vLLM refuses before it loads a model."""
    if arguments.model is None:
        raise ValueError("vllm serve needs a model")
    settings = arguments.speculative()
    try:
        speculative = SpeculativeConfig(**settings) if settings else None
    except TypeError as error:
        raise ValueError(f"speculative-config: {error}") from error
    max_num_seqs = arguments.integer("--max-num-seqs", DEFAULT_MAX_NUM_SEQS)
    eager = arguments.flag("--enforce-eager")
    config = VllmConfig(
        model_config=ModelConfig(
            model=arguments.model,
            max_model_len=arguments.integer("--max-model-len", DEFAULT_MAX_MODEL_LEN),
            served_model_name=arguments.text("--served-model-name", arguments.model),
            revision=arguments.values.get("--revision"),
            dtype="torch." + arguments.text("--dtype", "bfloat16").replace("auto", "bfloat16"),
            quantization=arguments.values.get("--quantization"),
            enforce_eager=eager,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=arguments.integer("--max-num-batched-tokens", 8192),
        ),
        parallel_config=ParallelConfig(
            tensor_parallel_size=arguments.integer("--tensor-parallel-size", 1, "-tp"),
            data_parallel_size=arguments.integer("--data-parallel-size", 1, "-dp"),
            pipeline_parallel_size=arguments.integer("--pipeline-parallel-size", 1, "-pp"),
        ),
        cache_config=CacheConfig(),
        device_config=DeviceConfig(),
        compilation_config=CompilationConfig(CUDAGraphMode.NONE, []),
        speculative_config=speculative,
    )
    _disable_table_for_data_parallel(config)
    config.compilation_config = _graphs(config, eager)
    return config


def _disable_table_for_data_parallel(config: VllmConfig) -> None:
    speculative = config.speculative_config
    if speculative and speculative.num_speculative_tokens_per_batch_size and config.parallel_config.data_parallel_size > 1:
        logger.warning("Dynamic speculative decoding is not supported with data parallelism; the static length is used.")
        speculative.num_speculative_tokens_per_batch_size = None


def _graphs(config: VllmConfig, eager: bool) -> CompilationConfig:
    if eager:
        return CompilationConfig(CUDAGraphMode.NONE, [])
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, MAX_CAPTURE_SIZE + 1, 16)]
    speculative = config.speculative_config
    if speculative and speculative.uses_dynamic_speculative_decoding() and not config.use_v2_model_runner:
        logger.warning(
            "Dynamic speculative decoding changes the target verification length at runtime. "
            "Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE"
        )
        return CompilationConfig(CUDAGraphMode.PIECEWISE, sizes)
    return CompilationConfig(CUDAGraphMode.FULL_AND_PIECEWISE, sizes)
