"""Checks of vLLM's `--speculative-config` before an engine is started with it.

vLLM makes its own checks late, after the model is loaded, and changes some values without a word (docs/cli.md lists every rule).
The command line, the operator and the tuner ask here first. Rules were read in vLLM 0.24 to 0.33; those of ranges agree with
`vllm/v1/spec_decode/dynamic/utils.py`, except that true integers are wanted where vLLM converts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

TABLE_FIELD = "num_speculative_tokens_per_batch_size"
LONGEST_FIELD = "num_speculative_tokens"
ADAPTIVE_FIELD = "enable_adaptive_verification"  # vLLM trims each request's draft by how sure the drafter was
FIRST_WITH_TABLE, FIRST_V2_WITH_TABLE = (0, 24), (0, 32)
NEWEST_KNOWN_VERSION = (0, 33)  # assumed when the caller does not know the version

DEFAULT_CAPTURE_CEILING = 512
"""Tokens of the largest CUDA graph that vLLM captures by default (1024 on SM100); a larger step replays no graph."""

TABLE_METHODS = frozenset({"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash", "dflash2", "lilicorr", "dspark"})
"""Methods whose drafter survives a length below the longest."""
V2_ONLY_METHODS = frozenset({"dflash2", "lilicorr", "dspark"})
V1_ONLY_METHODS = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class", "ngram_gpu", "extract_hidden_states"})
FULL_DRAFT_ON_V2 = frozenset({"ngram", "draft_model", "dflash", "dflash2", "lilicorr", "dspark"})
"""On V2 these draft the longest length in every step; a shorter length only hides the rest from verification."""
_CRASHES = "stops the engine as soon as a length below the longest is chosen"
_WITHOUT_TABLE = {
    **dict.fromkeys(("suffix", "medusa", "ngram_gpu", "extract_hidden_states"), _CRASHES),
    "custom_class": "ignores the length chosen",
}
MODEL_METHODS = frozenset({"eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "dflash", "custom_class"})
"""Methods for which vLLM does not find a drafter by itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: the engine does not start, or serves something else than the table says. `warning`: know this before rolling it out."""

    level: Literal["error", "warning"]
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.level} {self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Engine:
    """What a rule may ask; None = not known."""

    method: str | None
    version: tuple[int, int]
    version_text: str
    runner: str | None
    max_num_seqs: int | None
    data_parallel_size: int


BatchRange = tuple[int, int, int]


def parse_speculative_config(text: str) -> dict[str, Any]:
    """Read the value of `--speculative-config`.

    Raises:
        ValueError: not one JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"--speculative-config is not JSON ({error}). Give one object, quoted for the shell: '{{\"method\": ...}}'."
        ) from error
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004 - the same kind of refusal as above
            f"--speculative-config must be a JSON object, found {text[:60]}. Give '{{\"method\": ...}}'."
        )
    return value


def parse_vllm_version(text: str) -> tuple[int, int]:
    """Major and minor of `0.32.0`, `v0.33`, `0.26.1rc1.dev251` or `0.32.0+cpu`.

    Raises:
        ValueError: anything else.
    """
    found = re.fullmatch(r"v?(\d+)\.(\d+)(?:[.+\-a-z].*)?", text.strip())
    if not found:
        raise ValueError(f"vLLM version {text!r} cannot be read. Give it as in 0.32.0 (python3 -c 'import vllm; print(vllm.__version__)').")
    return int(found[1]), int(found[2])


def validate(
    config: Mapping[str, Any],
    *,
    vllm_version: str | None = None,
    max_num_seqs: int | None = None,
    data_parallel_size: int | None = None,
    model_runner: str | None = None,
) -> tuple[Finding, ...]:
    """Every finding about a speculative config, errors first.

    Args:
        config: the JSON object of `--speculative-config`.
        vllm_version: as `vllm.__version__`; None = the newest version that these rules know.
        max_num_seqs: the engine's largest batch size; None leaves out the rules that need it.
        data_parallel_size: None = 1.
        model_runner: `v1` or `v2`; None = what that version takes by default for this config.

    Raises:
        ValueError: an argument besides `config` cannot be used.
    """
    if max_num_seqs is not None and max_num_seqs < 1:
        raise ValueError(f"max_num_seqs is {max_num_seqs}; it must be 1 or more.")
    if data_parallel_size is not None and data_parallel_size < 1:
        raise ValueError(f"data_parallel_size is {data_parallel_size}; it must be 1 or more.")
    if model_runner not in (None, "v1", "v2"):
        raise ValueError(f"model runner {model_runner!r} is not known. Choices: v1, v2.")
    version = parse_vllm_version(vllm_version) if vllm_version is not None else NEWEST_KNOWN_VERSION
    method = _method(config)
    engine = _Engine(
        method=method,
        version=version,
        version_text=vllm_version if vllm_version is not None else "{}.{}".format(*NEWEST_KNOWN_VERSION),
        runner=model_runner or _default_runner(config, method, version),
        max_num_seqs=max_num_seqs,
        data_parallel_size=data_parallel_size or 1,
    )
    findings = [*_check_longest(config, engine), *_check_drafter(config, engine), *_check_adaptive_verification(config, engine)]
    if config.get(TABLE_FIELD) is not None:
        findings += _check_engine(engine)
        ranges, range_findings = _read_ranges(config[TABLE_FIELD])
        findings += range_findings
        if ranges and not range_findings:
            findings += _check_order(ranges)
            findings += _check_lengths(ranges, config, engine)
            findings += _check_reach(ranges, engine)
    return tuple(sorted(findings, key=lambda f: f.level))


def _method(config: Mapping[str, Any]) -> str | None:
    method = config.get("method")
    if not isinstance(method, str):
        return None
    return "mtp" if method.endswith("_mtp") else method.strip("[]")  # vLLM's other spellings: deepseek_mtp, [ngram]


def _default_runner(config: Mapping[str, Any], method: str | None, version: tuple[int, int]) -> str | None:
    """The runner that vLLM takes on a GPU when nobody names one; None when that hangs on the model's architecture."""
    v1_only = method in V1_ONLY_METHODS
    v1_only |= method == "ngram" and version < (0, 32)
    v1_only |= method == "draft_model" and version < (0, 31)
    v1_only |= bool(config.get("parallel_drafting")) and method not in V2_ONLY_METHODS | {"dflash"}
    v1_only |= bool(config.get("use_heterogeneous_vocab"))
    if v1_only:
        return "v1"
    return "v2" if version >= (0, 29) else None


def _check_longest(config: Mapping[str, Any], engine: _Engine) -> Iterator[Finding]:
    longest = config.get(LONGEST_FIELD)
    if longest is None:
        if engine.method == "mtp":
            yield _warning(
                "LongestNotGiven", f"{LONGEST_FIELD} is missing; vLLM takes it from the checkpoint. Set it: a table cannot be checked."
            )
        else:
            yield _error("LongestMissing", f"{LONGEST_FIELD} is missing. vLLM needs it as the longest draft length. Set it to 1 or more.")
    elif type(longest) is not int or longest < 1:
        yield _error("LongestInvalid", f"{LONGEST_FIELD} is {json.dumps(longest)}; it must be an integer of 1 or more.")


def _check_drafter(config: Mapping[str, Any], engine: _Engine) -> Iterator[Finding]:
    needs_model = engine.method in MODEL_METHODS or engine.method is None
    if needs_model and not config.get("model"):
        yield _warning(
            "ModelMissing",
            f"model is missing and method {engine.method or '(none)'} has no drafter of its own. "
            "vLLM refuses to start unless another flag names one. Add model.",
        )
    if engine.method in V2_ONLY_METHODS and engine.runner == "v1":
        yield _error("MethodNeedsV2", f"Method {engine.method} exists on the V2 runner only. Remove VLLM_USE_V2_MODEL_RUNNER=0.")
    if engine.method in {"suffix", "medusa", "custom_class"} or (engine.method == "ngram" and engine.runner == "v1"):
        yield _warning(
            "AsyncSchedulingOff",
            f"vLLM turns async scheduling off for method {engine.method}{' on V1' if engine.method == 'ngram' else ''}, "
            "which an engine without speculation keeps. Compare against that engine.",
        )


def _check_adaptive_verification(config: Mapping[str, Any], engine: _Engine) -> Iterator[Finding]:
    if not config.get(ADAPTIVE_FIELD):
        return
    if engine.version < (0, 28):
        yield _error(
            "AdaptiveVerificationTooOld", f"vLLM {engine.version_text} has no adaptive verification; first in 0.28.0. Remove the field."
        )
    elif engine.version < (0, 30) and engine.method != "dspark":
        yield _error(
            "AdaptiveVerificationMethod",
            f"vLLM {engine.version_text} has adaptive verification for dspark only; other methods from 0.30.0. Remove the field.",
        )
    elif engine.runner == "v1":
        yield _error("AdaptiveVerificationNeedsV2", "Adaptive verification exists on the V2 runner only. Remove the field, or run V2.")
    if config.get(TABLE_FIELD) is not None:
        yield _warning(
            "AdaptiveVerificationWithTable",
            "Adaptive verification and a table are both on: not refused, tested by nobody, and it biases acceptance counts low. "
            "Use one of them.",
        )


def _check_engine(engine: _Engine) -> Iterator[Finding]:
    """Can this engine follow any table at all?"""
    if engine.version < FIRST_WITH_TABLE:
        yield _error(
            "EngineTooOld",
            f"vLLM {engine.version_text} has no table; first in 0.24.0. Upgrade to 0.32.0 or later, or remove {TABLE_FIELD}.",
        )
        return
    yield from _check_runner(engine)
    if engine.method is not None and engine.method not in TABLE_METHODS:
        effect = _WITHOUT_TABLE.get(engine.method, "is not known to follow a table")
        yield _error(
            "MethodCannot", f"Method {engine.method} {effect}. Remove {TABLE_FIELD}, or use one of {', '.join(sorted(TABLE_METHODS))}."
        )
    if engine.data_parallel_size > 1:
        effect = "can hang with a table" if engine.version < (0, 26) else f"drops the table and drafts {LONGEST_FIELD} at every load"
        yield _error(
            "DataParallel",
            f"With data parallel size {engine.data_parallel_size}, vLLM {engine.version_text} {effect}. "
            f"Remove {TABLE_FIELD} and set {LONGEST_FIELD} to one measured length, or run replicas of size 1.",
        )


def _check_runner(engine: _Engine) -> Iterator[Finding]:
    if engine.runner is None:
        yield _warning(
            "RunnerUnknown",
            f"vLLM {engine.version_text} chooses its runner by architecture, and V2 ignores tables before 0.32.0. "
            "Set VLLM_USE_V2_MODEL_RUNNER=0, or say --model-runner.",
        )
    elif engine.runner == "v1":
        yield _warning(
            "PiecewiseGraphs",
            "On the V1 runner a table switches full CUDA graphs off (PIECEWISE), which can cost more than the table wins. "
            "Compare with one fixed length, or use the V2 runner of 0.32.0 or later.",
        )
    elif engine.version[:2] == (0, 25):
        yield _error(
            "EngineCrashes", "vLLM 0.25 with the V2 runner crashes in its drafter's graphs when a table is set. Upgrade to 0.32.0 or later."
        )
    elif engine.version < FIRST_V2_WITH_TABLE:
        yield _error(
            "TableIgnored",
            f"The V2 runner of vLLM {engine.version_text} drafts the longest length whatever the table says; first honoured in 0.32.0. "
            "Upgrade, or set VLLM_USE_V2_MODEL_RUNNER=0 and accept piecewise graphs.",
        )


def _read_ranges(value: object) -> tuple[list[BatchRange], list[Finding]]:
    """The ranges, or why they cannot be read."""
    if isinstance(value, Mapping):
        return [], [_error("TableIsObject", f"{TABLE_FIELD} is an object; no release of vLLM takes that form.{_suggest(value)}")]
    if not isinstance(value, list | tuple):
        return [], [_error("TableNotAList", f"{TABLE_FIELD} is {json.dumps(value)}; it must be a list like [[1, 64, 3], [65, 128, 1]].")]
    if not value:
        return [], [
            _error(
                "TableEmpty",
                f"{TABLE_FIELD} is an empty list: V2 refuses it, and V1 loses its full CUDA graphs for nothing. Remove the field.",
            )
        ]
    ranges: list[BatchRange] = []
    findings: list[Finding] = []
    for at, item in enumerate(value):
        where = f"{TABLE_FIELD}[{at}] is {json.dumps(item)}"
        if not isinstance(item, list | tuple) or len(item) != 3:
            findings.append(_error("RangeNotThree", f"{where}; each range is [first batch size, last batch size, draft length]."))
            continue
        if any(type(n) is not int for n in item):
            findings.append(_error("NotAnInteger", f"{where}; all three must be integers. vLLM converts some other values without a word."))
            continue
        first, last, length = item
        if first < 1 or last < 1:
            findings.append(_error("BatchSizeNotPositive", f"{where}; batch sizes start at 1."))
        elif first > last:
            findings.append(_error("RangeReversed", f"{where}; the first batch size is above the last. Swap them."))
        if length < 0:
            findings.append(_error("LengthNegative", f"{where}; a draft length is 0 or more."))
        ranges.append((first, last, length))
    return ranges, findings


def _suggest(value: Mapping[str, Any]) -> str:
    """The list form of `{"1-16": 3}` when it can be told, as a cure."""
    ranges: list[list[int]] = []
    for name, length in value.items():
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", str(name))
        if not found or type(length) is not int:
            return " Give a list like [[1, 64, 3], [65, 128, 1]]."
        ranges.append([int(found[1]), int(found[2] or found[1]), length])
    return f" Give {json.dumps(sorted(ranges))}." if ranges else " Remove the field."


def _check_order(ranges: list[BatchRange]) -> Iterator[Finding]:
    ordered = sorted(ranges)
    if ordered != ranges:
        yield _warning("NotSorted", f"Ranges are not in order; vLLM sorts them. Write {json.dumps(ordered)}.")
    if ordered[0][0] != 1:
        yield _error("FirstNotOne", f"The first range starts at {ordered[0][0]}; it must start at 1, or vLLM refuses to start.")
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            yield _error(
                "RangesOverlap", f"{list(before)} and {list(after)} overlap; vLLM refuses that. Start the second at {before[1] + 1}."
            )
        elif after[0] > before[1] + 1:
            gap = f"{before[1] + 1}..{after[0] - 1}"
            yield _warning(
                "Gap", f"Batch sizes {gap} are in no range; vLLM gives them the length before, {before[2]}. Extend {list(before)}."
            )


def _check_lengths(ranges: list[BatchRange], config: Mapping[str, Any], engine: _Engine) -> Iterator[Finding]:
    longest = config.get(LONGEST_FIELD)
    lengths = {k for _, _, k in ranges}
    if type(longest) is int and longest >= 1:
        for item in ranges:
            if item[2] > longest:
                yield _error(
                    "LengthAboveLongest",
                    f"{list(item)} asks for {item[2]} drafts and {LONGEST_FIELD} is {longest}; vLLM cuts it to {longest} without a word. "
                    f"Set the range to {longest} or less, or {LONGEST_FIELD} to {item[2]}.",
                )
        if max(lengths) < longest:
            yield _warning(
                "LongestUnused",
                f"{LONGEST_FIELD} is {longest} and the table goes up to {max(lengths)}; memory is reserved for {longest}. "
                f"Set {LONGEST_FIELD} to {max(*lengths, 1)}.",
            )
        if engine.runner == "v2" and engine.method in FULL_DRAFT_ON_V2 and min(lengths) < longest:
            yield _warning(
                "FullDraftCost",
                f"On the V2 runner method {engine.method} drafts {longest} tokens in every step; a shorter length saves verification only. "
                "Measure its step times so, not from a shorter drafter.",
            )
    if 0 in lengths and engine.method not in {"ngram", "ngram_gpu", "suffix"}:
        yield _warning(
            "ZeroIsNotOff",
            "Length 0 is not the same as no speculation: the drafter's first forward still runs (4 to 22 % of a step was published). "
            "If it covers the usual load, serve without speculation.",
        )
    if engine.runner == "v2" and engine.method in {"eagle", "eagle3"} and 2 in lengths and lengths & {0, 1}:
        yield _warning(
            "UnsafeLaunchSet",
            f"Lengths {sorted(lengths)}: 2 beside 0 or 1 led to stalls of seconds and crashes on the V2 runner (vLLM 0.33, H200). "
            "Leave 2 out, or run the TableTune plugin.",
        )


def _check_reach(ranges: list[BatchRange], engine: _Engine) -> Iterator[Finding]:
    """Ranges against the largest batch size and the largest captured graph."""
    ordered = sorted(ranges)
    largest = engine.max_num_seqs
    if largest is not None:
        for item in ordered:
            if item[1] > largest:
                cure = "Remove it: it is never used" if item[0] > largest else f"End it at {largest}"
                yield _warning("BeyondMaxNumSeqs", f"{list(item)} reaches above max_num_seqs {largest}; no batch is so large. {cure}.")
        first, last, length = ordered[-1]
        if last < largest:
            yield _warning(
                "TailNotCovered",
                f"The table ends at {last}; vLLM carries length {length} on to max_num_seqs {largest}. Extend [{first}, {last}, {length}].",
            )
    reached = [(first, min(last, largest) if largest else last, k) for first, last, k in ordered if largest is None or first <= largest]
    if largest is not None and reached and reached[-1][1] < largest:
        reached[-1] = (reached[-1][0], largest, reached[-1][2])
    for first, last, k in reached:
        ceiling = DEFAULT_CAPTURE_CEILING // (k + 1)
        if last > ceiling:
            yield _warning(
                "AboveCaptureCeiling",
                f"Length {k} at batch sizes {max(first, ceiling + 1)}..{last} makes steps of up to {last * (k + 1)} tokens; the largest "
                f"CUDA graph has {DEFAULT_CAPTURE_CEILING} by default (1024 on SM100). Measure there, or raise max_cudagraph_capture_size.",
            )


def _error(code: str, message: str) -> Finding:
    return Finding("error", code, message)


def _warning(code: str, message: str) -> Finding:
    return Finding("warning", code, message)
