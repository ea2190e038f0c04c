"""The speculative flags in a vLLM argument list: read as vLLM reads them, and written as exactly one.

vLLM 0.24 to 0.33 know five spellings: `--speculative-config JSON` (`-sc`, `=`, `_` for `-`, unambiguous abbreviations), dotted keys
(`--speculative-config.method eagle3`), lists (`--speculative-config.x+ a,b`), and `--spec-method`, `--spec-model`, `--spec-tokens`.
Its precedence (vllm/utils/argparse_utils.py, engine/arg_utils.py) is a trap: dotted keys are merged to one JSON text that is appended
*last*, so one dotted key replaces a whole `--speculative-config`; and the `--spec-*` flags are added to whatever won. Hence the
operator, the tuner and the command line all fold what they find before they judge it, and never add a second flag.

Only argument lists are read here; a shell string is no list, and is refused by whoever finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FLAG = "--speculative-config"
SHORT_FLAG = "-sc"
NOT_GIVEN = "None"
"""vLLM's spelling of "not given"."""
SPEC_KEYS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}

_NAMES = (FLAG, *SPEC_KEYS)


class ArgvError(ValueError):
    """An argument cannot be read: which, its value, and what to do."""

    def __init__(self, flag: str, value: str | None, problem: str, cure: str) -> None:
        found = "" if value is None else f" {value!r:.80}"
        super().__init__(f"{flag}{found} {problem}. {cure}")
        self.flag = flag
        self.value = value


@dataclass(frozen=True, slots=True)
class FoldedArgs:
    """An argument list with its speculative flags taken out, and what they say together; `config` is None without speculation."""

    config: dict[str, Any] | None
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """One speculative argument: where it starts, how many items it takes, and what it says."""

    at: int
    items: int
    spelled: str  # as written, for messages
    name: str  # canonical
    keys: tuple[str, ...]  # of a dotted argument
    value: str


def fold_speculative_config(args: Sequence[str]) -> FoldedArgs:
    """Take every speculative flag out of `args` and merge them with vLLM's precedence.

    Raises:
        ArgvError: a flag has no value or one that vLLM would refuse, or two flags set the same key.
    """
    found = tuple(_find(args))
    taken = {f.at + n for f in found for n in range(f.items)}
    return FoldedArgs(_merge(found), tuple(arg for at, arg in enumerate(args) if at not in taken))


def speculative_items(args: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the items that speculative flags and their values take.

    Raises:
        ArgvError: a speculative flag has no value, so that it is unknown where the next argument starts.
    """
    return tuple(f.at + n for f in _find(args) for n in range(f.items))


def spelled_value(config: Mapping[str, Any] | None) -> str:
    """The value of `--speculative-config` on a command line; for None what vLLM reads as no speculation."""
    return NOT_GIVEN if config is None else json.dumps(config, separators=(",", ":"))


def with_speculative_config(args: Sequence[str], config: Mapping[str, Any] | None, *, explicit_off: bool = False) -> tuple[str, ...]:
    """`args` with exactly one `--speculative-config JSON`, at the place of the first speculative flag (else at the end).

    None removes the flag; with `explicit_off` it is given as None, for an engine whose `--config` file would else speculate.
    Every other argument keeps its place and its bytes.

    Raises:
        ArgvError: a speculative flag has no value, so that it is unknown where the next argument starts.
    """
    found = tuple(_find(args))
    taken = {f.at + n for f in found for n in range(f.items)}
    place = found[0].at if found else len(args)
    before = [arg for at, arg in enumerate(args) if at < place]
    after = [arg for at, arg in enumerate(args) if at >= place and at not in taken]
    flag = [] if config is None and not explicit_off else [FLAG, spelled_value(config)]
    return (*before, *flag, *after)


def option(args: Sequence[str], *names: str) -> str | None:
    """The value of an ordinary option under any of its names (`--max-num-seqs`, `-tp`): the last one wins, as in vLLM."""
    value: str | None = None
    for at, arg in enumerate(args):
        spelled, equals, rest = arg.partition("=")
        if _dashed(spelled) not in names:
            continue
        if equals:
            value = rest
        elif at + 1 < len(args):
            value = args[at + 1]
    return value


def has_flag(args: Sequence[str], name: str) -> bool:
    """Is a flag without a value (`--enforce-eager`) there? Its negation (`--no-enforce-eager`) takes it back if it comes later."""
    present = False
    for arg in map(_dashed, args):
        if arg in {name, name.replace("--", "--no-", 1)}:
            present = arg == name
    return present


def _find(args: Sequence[str]) -> Iterator[_Found]:
    at = 0
    while at < len(args):
        arg = args[at]
        head, equals, rest = arg.partition("=")
        spelled, dot, path = head.partition(".")
        name = canonical_flag(spelled)
        # Only JSON flags have keys; to vLLM `--spec-model.x` is one of its own unknown arguments.
        if name is None or (dot and name != FLAG):
            at += 1
            continue
        if equals:
            value, items = rest, 1
        elif at + 1 < len(args) and (dot or not args[at + 1].startswith("-")):
            value, items = args[at + 1], 2
        else:
            raise ArgvError(head, None, "has no value", f"Give it one, or remove {head}.")
        yield _Found(at, items, head, name, tuple(path.split(".")) if dot else (), value)
        at += items


def canonical_flag(spelled: str) -> str | None:
    """The full name of a speculative flag, None for another one.

    Abbreviations count where argparse takes them: when only one name starts so.
    """
    if spelled == SHORT_FLAG:
        return FLAG
    name = _dashed(spelled)
    if name in _NAMES:
        return name
    longer = [full for full in _NAMES if full.startswith(name)] if name.startswith("--spec") else []
    return longer[0] if len(longer) == 1 else None


def _dashed(spelled: str) -> str:
    return spelled.replace("_", "-") if spelled.startswith("--") else spelled


def _merge(found: Sequence[_Found]) -> dict[str, Any] | None:
    whole = [f for f in found if f.name == FLAG and not f.keys]
    config, dotted = _last_json(whole), _merge_dotted(found)
    if dotted is not None:
        config = dotted
    elif config is not None and not isinstance(config, dict):
        last = whole[-1]
        raise ArgvError(last.spelled, last.value, "is no JSON object", 'Give one like {"method": "ngram", "num_speculative_tokens": 3}.')
    # Every value is parsed, for vLLM refuses also one that a later one would replace.
    short = {f.name: (f, _parse_spec(f)) for f in found if f.name in SPEC_KEYS}
    for name, (spec, value) in short.items():
        key = SPEC_KEYS[name]
        if value is None:
            continue
        if config is not None and key in config:
            raise ArgvError(spec.spelled, spec.value, f"sets {key}, which {FLAG} sets too", "vLLM refuses both: keep one of them.")
        config = {**(config or {}), key: value}
    return None if config is None else {key.replace("-", "_"): value for key, value in config.items()}


def _last_json(found: Sequence[_Found]) -> Any:
    value: Any = None
    for f in found:
        if f.value in {"", NOT_GIVEN}:
            value = None
            continue
        try:
            value = json.loads(f.value)
        except ValueError as error:
            raise ArgvError(f.spelled, f.value, f"is not JSON ({error})", "Quote it as one JSON object.") from error
    return value


def _merge_dotted(found: Sequence[_Found]) -> dict[str, Any] | None:
    """All dotted keys of one spelling make one object, appended where that spelling was first seen; the last object wins."""
    objects: dict[str, dict[str, Any]] = {}
    for f in found:
        if not f.keys:
            continue
        keys, value = f.keys, f.value
        if keys[-1].endswith("+"):
            keys, value = (*keys[:-1], keys[-1].removesuffix("+")), json.dumps(value.split(","))
        if not all(keys):
            raise ArgvError(f.spelled, f.value, "has an empty key", "Name the field after the dot, such as .method.")
        tree: Any = _parse_loose(value)
        for key in reversed(keys):
            tree = {key: tree}
        _update(objects.setdefault(f.spelled.partition(".")[0].replace("_", "-"), {}), tree)
    return list(objects.values())[-1] if objects else None


def _parse_loose(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _update(original: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        present = original.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            _update(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            original[key] = present + value
        else:
            original[key] = value


def _parse_spec(found: _Found) -> str | int | None:
    if found.value in {"", NOT_GIVEN}:
        return None
    if found.name != "--spec-tokens":
        return found.value
    try:
        return int(found.value)
    except ValueError as error:
        raise ArgvError(found.spelled, found.value, "is no whole number", "Give the number of tokens to guess, such as 3.") from error
