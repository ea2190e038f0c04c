"""Can this engine use a table at all? Decided from the options, and from what the engine says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.argv import option
from tabletune.graphs import profile_lengths
from tabletune.speculative_config import ADAPTIVE_FIELD, LONGEST_FIELD, TABLE_FIELD, validate
from tabletune.table import Table, launch_table
from tabletune_tuner.engine import Hello
from tabletune_tuner.options import Options

SYNTHETIC, SYNTHETIC_RATES, SYNTHETIC_LENGTH = "rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length"
NO_GRAPHS = (None, "NONE")


@dataclass(frozen=True, slots=True)
class Judgement:
    """`reason` and `message` are None when the engine can be measured."""

    reason: str | None
    message: str | None
    warnings: tuple[str, ...] = ()


def build_base_config(options: Options) -> dict[str, Any]:
    """The speculative config without a table: the present one, with method and model of the options over it.

    Another method leaves nothing of the present config, whose other fields belong to its own method. Adaptive verification is left out:
    with a table it is tested by nobody, and it makes vLLM count guesses as rejected that were never verified.
    """
    present = options.present or {}
    if options.method not in (None, present.get("method")):
        present = {}
    config = {key: value for key, value in present.items() if key not in (TABLE_FIELD, ADAPTIVE_FIELD)}
    if options.method is not None:
        config["method"] = options.method
    if options.drafter is not None:
        config["model"] = options.drafter
    return {**config, LONGEST_FIELD: options.max_draft_length}


def needs_own_engine(options: Options) -> bool:
    """Whether the present setting is more than lengths of the engine to be measured: it has another drafter, or verifies adaptively."""
    base, present = build_base_config(options), options.present or {}
    differs = any(base.get(name) != present.get(name) for name in ("method", "model"))
    return options.present is not None and (differs or bool(present.get(ADAPTIVE_FIELD)))


def launched_lengths(options: Options) -> tuple[int, ...]:
    """The lengths of the launch table, whatever the runner: V1 may put others in force too."""
    return profile_lengths(options.max_draft_length, "v2")


def measured_lengths(hello: Hello, options: Options) -> tuple[int, ...]:
    """The lengths to measure in this engine."""
    return profile_lengths(options.max_draft_length, str(hello.facts.get("runner")))


def build_profiling_config(options: Options, *, synthetic: bool) -> dict[str, Any]:
    """The config that an engine is profiled with."""
    most = _max_num_seqs(options)
    table = launch_table(Table.fixed(options.max_draft_length, most), launched_lengths(options), most)
    config = {**build_base_config(options), TABLE_FIELD: table.to_vllm()}
    if synthetic:
        config.pop(SYNTHETIC_LENGTH, None)  # vLLM takes one of the two
        config[SYNTHETIC] = "synthetic"
        config[SYNTHETIC_RATES] = [0.0] * options.max_draft_length
    return config


def judge_options(options: Options) -> Judgement:
    """What can be said before an engine is started."""
    base = build_base_config(options)
    if "method" not in base and "model" not in base:
        return Judgement(
            "NoSpeculativeConfig",
            "The engine has no --speculative-config and no method was given, so there is no drafter to tune. Add one of the two.",
        )
    if _max_num_seqs(options) < len(launched_lengths(options)):
        return Judgement("BatchTooSmall", "An engine with --max-num-seqs 1 has one batch size: a table cannot help it. Set a fixed length.")
    parallel = option(options.shown_args, "--data-parallel-size", "-dp")
    config = build_profiling_config(options, synthetic=False)
    found = _first_error(config, {"dataParallelSize": int(parallel) if parallel else None})
    # Other warnings would be about the newest engine; the one that starts may be another.
    return Judgement(found.reason, found.message, _synthetic_warnings(base, options.present or {}))


def judge_engine(hello: Hello, options: Options) -> Judgement:
    """What the engine says of itself."""
    facts = hello.facts
    config = build_profiling_config(options, synthetic=False)
    judgement = _first_error(config, facts)
    if judgement.reason is not None:
        return judgement
    if not hello.active:
        return Judgement(
            "PluginInactive",
            f"The plugin left this engine as it was: {hello.inactive_reason}. Nothing was measured.",
        )
    runner = str(facts.get("runner"))
    missing = sorted(set(launched_lengths(options)) - set(hello.lengths))
    if missing:
        return Judgement(
            "TableIgnored",
            f"The engine took the lengths {list(hello.lengths)} from its table and not {missing}. "
            "Its log says why; a table would not be followed.",
        )
    if runner == "v1" and facts.get("device") != "cpu" and facts.get("cudagraphMode") not in NO_GRAPHS and not facts.get("enforceEager"):
        return Judgement(
            "PiecewiseGraphs",
            f"On the V1 runner a table switches full CUDA graphs off (mode {facts['cudagraphMode']}): that costs more than it can win. "
            "Use vLLM 0.32.0 or later with the V2 runner (remove VLLM_USE_V2_MODEL_RUNNER=0), or a fixed draft length.",
        )
    needed = options.prompt_tokens + options.output_tokens + options.max_draft_length
    if facts.get("maxModelLen") is not None and needed > facts["maxModelLen"]:
        return Judgement(
            "ContextTooShort",
            f"Prompt ({options.prompt_tokens}), output ({options.output_tokens}) and draft ({options.max_draft_length}) tokens "
            f"are {needed}, above max_model_len {facts['maxModelLen']}. Lower promptTokens or outputTokens.",
        )
    return Judgement(None, None, (*judgement.warnings, *_batch_warnings(facts, options), *_length_warnings(facts, options)))


def reachable_batch_size(hello: Hello, options: Options) -> int:
    """The largest batch size to measure."""
    return min(options.max_batch_size, hello.facts.get("maxNumSeqs") or options.max_batch_size)


def _synthetic_warnings(base: Mapping[str, Any], present: Mapping[str, Any]) -> tuple[str, ...]:
    if base.get(SYNTHETIC) != "synthetic":
        return ()
    said = (
        "The present setting keeps guesses by chance (rejection_sample_method synthetic), whatever the drafter says: acceptance and verdict"
        " are those of a benchmark. Remove it from --speculative-config before you serve."
    )
    if not present.get(ADAPTIVE_FIELD):
        return (said,)
    return (said, "Adaptive verification learns from what is kept, so with guesses kept by chance the present setting is no fair rival.")


def _batch_warnings(facts: Mapping[str, Any], options: Options) -> tuple[str, ...]:
    most = facts.get("maxNumSeqs")
    if most is None or options.max_batch_size <= most:
        return ()
    return (
        f"The largest batch size asked for is {options.max_batch_size}; the engine takes {most} (--max-num-seqs), so the sweep ends there.",
    )


def _length_warnings(facts: Mapping[str, Any], options: Options) -> tuple[str, ...]:
    trained = facts.get("drafterTrainedLength")
    if trained is None or options.max_draft_length <= trained:
        return ()
    said = (
        f"Drafts of up to {options.max_draft_length} tokens are asked for, and the drafter's checkpoint was trained for {trained}: later "
        "positions run its layers again, and fewer of them are kept. Acceptance by position tells whether they pay."
    )
    return (said,)


def _first_error(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Judgement:
    findings = validate(
        config,
        vllm_version=facts.get("vllm"),
        max_num_seqs=facts.get("maxNumSeqs"),
        data_parallel_size=facts.get("dataParallelSize"),
        model_runner=facts.get("runner") or ("v1" if facts.get("device") == "cpu" else None),  # V2 needs Triton, and that a GPU
    )
    errors = [f for f in findings if f.level == "error"]
    if errors:
        return Judgement(errors[0].code, " ".join(f.message for f in errors))
    # What a table costs by its form is measured here anyway; the rest is worth knowing.
    told = [f.message for f in findings if f.code in ("FullDraftCost", "AsyncSchedulingOff")]
    if facts.get("device") == "cpu":
        told.append("This engine runs on a CPU without graphs: its step times say nothing about a GPU.")
    return Judgement(None, None, tuple(told))


def _max_num_seqs(options: Options) -> int:
    given = option(options.shown_args, "--max-num-seqs")
    return int(given) if given and given.isdigit() else options.max_batch_size
