"""The tuner's options: one data class and one parser for the Job's container and for `tabletune profile`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tabletune.argv import ArgvError, fold_speculative_config, option

MAX_DRAFT_LENGTH = 16
MAX_CONTEXTS = 2
DEFAULT_TIMEOUT_SECONDS = 7200


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and how. `present` is the user's speculative config as it serves now, None without speculation."""

    serve_argv: tuple[str, ...]  # `vllm serve MODEL ...`, or a script that takes a flag at its end, without speculative flags
    max_draft_length: int
    max_batch_size: int
    present: Mapping[str, Any] | None = None
    method: str | None = None
    drafter: str | None = None
    repeats: int = 3
    prompt_tokens: int = 32
    output_tokens: int = 64
    prompt_count: int = 160
    prompts_file: Path | None = None
    context_tokens: tuple[int, ...] = ()  # to lengthen prompts to while acceptance is counted; empty: as they are
    temperature_milli: int = 700
    window_seconds: int | None = None  # None: 15 s on a GPU, where a window's steps take less; no limit on a CPU
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    run_dir: Path = Path("/tabletune/run")
    engine_url: str = "http://127.0.0.1:8000"
    fingerprint: Mapping[str, str] = field(default_factory=dict)  # empty: made from what the engine says of itself
    engine_args: tuple[str, ...] = ()  # the engine's arguments where serve_argv does not show them; empty: it does
    explicit_off: bool = False  # the engine's --config file speculates, so leaving the flag out would not stop it

    @property
    def shown_args(self) -> tuple[str, ...]:
        """The arguments to read options from."""
        return self.engine_args or self.serve_argv


@dataclass(frozen=True, slots=True)
class Target:
    """Where a Job publishes: its ConfigMap, and itself for the progress annotation."""

    namespace: str
    config_map: str
    job: str
    owner: Mapping[str, Any]  # ownerReference of the DraftTable


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """The options that describe the measurement, the same in a Job and on a bare machine."""
    parser.add_argument(
        "--max-draft-length", type=_between(1, MAX_DRAFT_LENGTH), help="longest draft length K (default: the present config's)"
    )
    parser.add_argument("--method", help="drafter's method, if not the present config's")
    parser.add_argument("--drafter", help="drafter's model, if not the present config's")
    parser.add_argument(
        "--present-json", default="null", type=_json_object_or_null, help="speculative config that serves now, or null (default)"
    )
    parser.add_argument("--max-batch-size", type=_between(1, 4096), help="largest batch size (default: --max-num-seqs of the engine)")
    parser.add_argument("--repeats", type=_between(1, 9), default=3, help="times that each cell is measured")
    parser.add_argument("--prompt-tokens", type=_between(1, 65536), default=32, help="prompt length while step times are measured")
    parser.add_argument("--output-tokens", type=_between(4, 4096), default=64, help="steps a cell and repeat")
    parser.add_argument("--prompt-count", type=_between(8, 1000), default=160, help="prompts for acceptance and for the live comparison")
    parser.add_argument("--prompts-file", type=Path, help="UTF-8 text, one prompt a line (default: a shipped sample)")
    parser.add_argument(
        "--context-tokens",
        type=_between(16, 1_000_000),
        action="append",
        default=[],
        help="count acceptance on prompts lengthened to so many tokens; may be given twice (default: prompts as they are)",
    )
    parser.add_argument("--temperature-milli", type=_between(0, 2000), default=700, help="serving temperature in thousandths")
    parser.add_argument(
        "--window-seconds",
        type=_between(0, 600),
        help="shortest window of the live comparison (default: 10 with a GPU; without one, the window's steps alone)",
    )
    parser.add_argument("--timeout-seconds", type=_between(60, 604800), default=DEFAULT_TIMEOUT_SECONDS, help="time for the whole run")
    parser.add_argument("--engine-url", help="where the engine will answer (default: its --port on this host)")
    parser.add_argument("serve_argv", nargs=argparse.REMAINDER, metavar="-- vllm serve MODEL ...", help="the engine's command")


def parse_job(args: Sequence[str]) -> tuple[Options, Target]:
    """Read the command line of the Job's container. Exits with 2 and a message for anything that cannot be used."""
    parser = argparse.ArgumentParser(prog="tabletune-tuner", description="Measures an engine and publishes its table.")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--config-map", required=True)
    parser.add_argument("--job", required=True, help="this Job, for its progress annotation")
    parser.add_argument("--owner-json", required=True, type=_json_object, help='{"apiVersion", "kind", "name", "uid"}')
    parser.add_argument("--fingerprint-json", default={}, type=_json_object, help="fields that the profile is valid for")
    parser.add_argument("--run-dir", type=Path, default=Path("/tabletune/run"), help="folder of supervisor.sock and engine.sock")
    parser.add_argument("--engine-args-json", default=[], type=_json_words, help="the engine's arguments, where a script starts it")
    parser.add_argument("--explicit-off", action="store_true", help="stop speculation by --speculative-config None, not by leaving it out")
    add_measuring_options(parser)
    space = parser.parse_args(args)
    missing = [name for name in ("apiVersion", "kind", "name", "uid") if not isinstance(space.owner_json.get(name), str)]
    if missing:
        parser.error(f"--owner-json lacks {', '.join(missing)}")
    target = Target(space.namespace, space.config_map, space.job, {name: space.owner_json[name] for name in _OWNER_FIELDS})
    options = parse_measuring(parser, space, space.run_dir, {k: str(v) for k, v in space.fingerprint_json.items()})
    return replace(options, engine_args=tuple(space.engine_args_json), explicit_off=space.explicit_off), target


def parse_measuring(
    parser: argparse.ArgumentParser, space: argparse.Namespace, run_dir: Path, fingerprint: Mapping[str, str] | None = None
) -> Options:
    """Options from parsed arguments, with what may be left out filled in. Speculative flags of the command count as the present config."""
    argv = space.serve_argv[1:] if space.serve_argv[:1] == ["--"] else space.serve_argv
    if not argv:
        parser.error("the engine's command is missing: end the line with -- vllm serve MODEL ...")
    try:
        folded = fold_speculative_config(argv)
    except ArgvError as error:
        parser.error(str(error))
    present = space.present_json if space.present_json is not None else folded.config
    longest = space.max_draft_length or _integer((present or {}).get("num_speculative_tokens"))
    if not longest or longest > MAX_DRAFT_LENGTH:
        parser.error(f"--max-draft-length is missing, and num_speculative_tokens does not give one from 1 to {MAX_DRAFT_LENGTH}")
    batch = space.max_batch_size or _integer(option(folded.args, "--max-num-seqs"))
    if not batch:
        parser.error("--max-batch-size is missing, and the engine's command has no --max-num-seqs to take it from")
    if len(space.context_tokens) > MAX_CONTEXTS:
        parser.error(f"--context-tokens is given {len(space.context_tokens)} times; {MAX_CONTEXTS} are possible")
    port = option(folded.args, "--port") or "8000"
    return Options(
        serve_argv=folded.args,
        max_draft_length=longest,
        max_batch_size=batch,
        present=present,
        method=space.method,
        drafter=space.drafter,
        repeats=space.repeats,
        prompt_tokens=space.prompt_tokens,
        output_tokens=space.output_tokens,
        prompt_count=space.prompt_count,
        prompts_file=space.prompts_file,
        context_tokens=tuple(space.context_tokens),
        temperature_milli=space.temperature_milli,
        window_seconds=space.window_seconds,
        timeout_seconds=space.timeout_seconds,
        run_dir=run_dir,
        engine_url=space.engine_url or f"http://127.0.0.1:{port}",
        fingerprint=fingerprint or {},
    )


_OWNER_FIELDS = ("apiVersion", "kind", "name", "uid")


def _integer(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _between(least: int, most: int) -> Any:
    def parse(text: str) -> int:
        number = _integer(text)
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {most}")
        return number

    return parse


def _json_object(text: str) -> dict[str, Any]:
    value = _json_object_or_null(text)
    if value is None:
        raise argparse.ArgumentTypeError("null given where a JSON object is needed")
    return value


def _json_words(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON ({error})") from error
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise argparse.ArgumentTypeError(f"must be a JSON list of texts, found {text[:60]}")
    return value


def _json_object_or_null(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON ({error})") from error
    if value is not None and not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, found {text[:60]}")
    return value
