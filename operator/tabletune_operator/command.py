"""How a container starts vLLM: a list, or a script that a shell reads. Read and written through one interface. Pure.

target.py reads it, rollout.py writes it, drift.py and restore.py compare what is there with what was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from tabletune.argv import FLAG, ArgvError, fold_speculative_config, speculative_items, with_speculative_config
from tabletune_operator.pods import literal
from tabletune_operator.shell.edit import Changes, prologue, with_config, with_hook
from tabletune_operator.shell.script import RUNS_VLLM, SHELLS, Call, command_string, describe, find_call
from tabletune_operator.shell.text import MARKS, NotEditableError, Root, Text, apply, from_kubelet
from tabletune_operator.shell.words import Environment, Field, Script, UnclearError

OTHER_SHELLS = frozenset({"zsh", "ksh", "fish", "csh", "tcsh"})

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_WRAPPERS = frozenset({"exec", "env", "nohup", "tini", "dumb-init", "nice", "setsid"})

_READ_FIELDS = ("command", "args", "env", "envFrom")

Container = Mapping[str, Any]


class CommandError(ValueError):
    """It is not certain how the container starts vLLM: a stable reason for the condition, and what is so with its cure."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Written:
    """Fields of the container that are ours to write; None: not ours. `environment` holds values of `env`."""

    command: list[str] | None = None
    args: list[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListCommand:
    """`command` and `args` as they are given to the engine."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    words: tuple[str, ...]  # what runs
    argv: tuple[str, ...]  # the same without speculative flags
    speculation: Mapping[str, Any] | None

    @property
    def run(self) -> tuple[str, ...]:
        """What the profiling pod starts; a speculative flag goes at its end."""
        return self.argv

    @property
    def script(self) -> None:
        """There is none."""

    def write(self, config: Mapping[str, Any] | None, *, explicit_off: bool = False) -> Written:
        """`args`, or `command` where the flags live there; both when the user wrote speculative flags into both. Raises CommandError."""
        try:
            if self.command and not self.args:
                return Written(command=_literal_flag(self.command, config, explicit_off=explicit_off))
            command = with_speculative_config(self.command, None)
            changed = None if command == self.command else list(command)
            return Written(changed, _literal_flag(self.args, config, explicit_off=explicit_off))
        except ArgvError as error:
            raise CommandError("ArgumentNotUnderstood", str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class ShellCommand:
    """A shell that reads a script from `command` or `args`. Words are as the script spells them where they are not known."""

    container: Container
    items: tuple[str, ...]  # command and args
    command_length: int
    at: int  # the script's number among them
    call: Call
    variables: Mapping[str, str]  # literal ones, as the kubelet gives them
    words: tuple[str, ...]  # what the engine gets
    argv: tuple[str, ...]  # the same without speculative flags
    speculation: Mapping[str, Any] | None

    @property
    def run(self) -> tuple[str, ...]:
        """What the profiling pod starts: the same script, for its other lines may matter, with a hook for the flag at its end.

        Raises CommandError.
        """
        try:
            items, environment, _ = self._changed(with_hook(self.call))
        except NotEditableError as error:
            raise _unclear(str(error)) from error
        given = {name: _resolved(value, self.variables) for name, value in environment.items()}
        resolved = [_resolved(item, self.variables) for item in items]
        name, arguments = resolved[self.at + 1 : self.at + 2] or [resolved[0]], resolved[self.at + 2 :]
        script = prologue(len(arguments), given) + resolved[self.at]
        return (*resolved[: self.at], script, *name, *arguments)

    @property
    def script(self) -> str:
        """Digest of what the script says besides its speculative flags: engines may differ in it."""
        said = describe(Script(Text(self.run[self.at]), Environment({}, frozenset(), complete=False), None))
        return hashlib.sha256("\0".join(said).encode()).hexdigest()[:12]

    def write(self, config: Mapping[str, Any] | None, *, explicit_off: bool = False) -> Written:
        """The script with exactly one flag, or the arguments or the variable that its flags stand in. Raises CommandError.

        All that any setting would change is named, also where this one does not: who stops naming a field has it deleted.
        """
        try:
            written = self._written_with(config, explicit_off=explicit_off)
            others = [self._written_with(other, explicit_off=explicit_off) for other in ({"method": ""}, None)]
        except NotEditableError as error:
            raise _unclear(str(error)) from error
        self._check(written, config)
        command, args = list(self.items[: self.command_length]), list(self.items[self.command_length :])
        touched = {name for other in others for name in other.environment}
        present = {name: self._written(Root("env", name)) for name in touched if name in self.call.script.environment.values}
        return Written(
            (written.command or command) if any(other.command is not None for other in others) else None,
            (written.args or args) if any(other.args is not None for other in others) else None,
            present | dict(written.environment),
        )

    def _written_with(self, config: Mapping[str, Any] | None, *, explicit_off: bool) -> Written:
        items, environment, dropped = self._changed(with_config(self.call, config, explicit_off=explicit_off))
        command, args = items[: self.command_length - dropped], items[self.command_length - dropped :]
        before, after = self.items[: self.command_length], self.items[self.command_length :]
        return Written(list(command) if command != before else None, list(args) if args != after else None, environment)

    def _changed(self, changes: Changes) -> tuple[tuple[str, ...], dict[str, str], int]:
        """Items and variables with the changes, and how many items of `command` are gone (less those that came)."""
        roots = {edit.root for edit in changes.edits}
        values = {root: apply(self._written(root), [e for e in changes.edits if e.root == root]) for root in roots}
        items: list[str] = []
        gone = 0
        for number, item in enumerate(self.items):
            if str(number) in changes.more:
                new: tuple[str, ...] = changes.more[str(number)]
            else:
                changed = values.get(Root("item", str(number)), item)
                new = () if changed != item and not changed.strip() else (changed,)
            items += new
            gone += 1 - len(new) if number < self.command_length else 0
        environment = {root.name: value for root, value in values.items() if root.kind == "env"}
        return tuple(items), environment | dict(changes.added), gone

    def _written(self, root: Root) -> str:
        if root.kind == "item":
            return self.items[int(root.name)]
        return next(str(e.get("value", "")) for e in reversed(self.container.get("env") or ()) if e["name"] == root.name)

    def _check(self, written: Written, config: Mapping[str, Any] | None) -> None:
        """What was written must say what it was to say, and everything else what it said before."""
        again = read_command(with_written(self.container, written))
        if again.speculation != (None if config is None else dict(config)) or again.argv != self.argv:
            raise _unclear("its flag cannot be written so that the rest stays as it is")


Command = ListCommand | ShellCommand


def read_command(container: Container) -> Command:
    """How this container starts vLLM.

    Raises:
        CommandError: it is not certain what the engine's flags are.
    """
    return _read(json.dumps({name: container[name] for name in _READ_FIELDS if name in container}))


@lru_cache(maxsize=256)
def _read(fields: str) -> Command:
    """By the fields that matter, as text: a target is looked at several times in each reconcile, and a long script takes a while."""
    container = json.loads(fields)
    items = (*(container.get("command") or ()), *(container.get("args") or ()))
    at = script_item(items)
    if at is not None:
        return _read_shell(container, items, at)
    command, args = tuple(container.get("command") or ()), tuple(container.get("args") or ())
    try:
        words = expand(items, container) if command else ("vllm", "serve", *expand(items, container))
        folded = fold_speculative_config(words)
    except ArgvError as error:
        raise CommandError("ArgumentNotUnderstood", str(error)) from error
    return ListCommand(command, args, words, folded.args, folded.config)


def runs_vllm(container: Container) -> bool:
    """Is vLLM what this container starts, as far as its command tells?"""
    items = (*(container.get("command") or ()), *(container.get("args") or ()))
    at = script_item(items)
    if at is not None:
        return bool(RUNS_VLLM.search(" ".join(items[at:])))  # of the script, or of what it gets to run
    pairs = list(pairwise(items))
    if any(PurePosixPath(first).name == "vllm" and second == "serve" for first, second in pairs):
        return True
    if any(first == "-m" and second.startswith("vllm.entrypoints") for first, second in pairs):
        return True
    # Arguments only: the image's entry point gets them, and that of vllm-openai is `vllm serve`.
    repository = container.get("image", "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    return not container.get("command") and bool(items) and "vllm" in repository


def script_item(items: Sequence[str]) -> int | None:
    """Number of the item that a shell reads as a script; None: no shell is started with one."""
    for at, item in enumerate(items):
        name = PurePosixPath(item).name
        if name in SHELLS | OTHER_SHELLS:
            found = command_string(items[at + 1 :])
            return None if found is None else at + 1 + found
        if name not in _WRAPPERS and not (at and (item.startswith("-") or re.match(r"[A-Za-z_]\w*=", item))):
            return None
    return None


def with_written(container: Container, written: Written) -> dict[str, Any]:
    """The container with these fields; variables keep their place, new ones come last."""
    changed = dict(container)
    if written.command is not None:
        changed["command"] = written.command
    if written.args is not None:
        changed["args"] = written.args
    if written.environment:
        entries = [dict(entry) for entry in container.get("env") or ()]
        for name, value in written.environment.items():
            last = next((entry for entry in reversed(entries) if entry["name"] == name), None)
            if last is None:
                entries.append({"name": name, "value": value})
            else:
                last["value"] = value
        changed["env"] = entries
    return changed


def expand(items: Sequence[str], container: Container) -> tuple[str, ...]:
    """Resolve `$(NAME)` as the kubelet does, so that the profiling pod can start the engine without the target's kubelet.

    Raises CommandError for a variable whose value the pod template does not hold.
    """
    values, hidden = _variables(container)
    for name in _references(items):
        if name in hidden or (container.get("envFrom") and name not in values):
            raise CommandError(
                "ArgumentFromEnvironment",
                f"an argument uses $({name}), whose value is not in the pod template. "
                "Write the value into args, or give the variable a literal value.",
            )
    return tuple(_resolved(item, values) for item in items)


def _read_shell(container: Container, items: tuple[str, ...], at: int) -> ShellCommand:
    shell = next(PurePosixPath(item).name for item in items if PurePosixPath(item).name in SHELLS | OTHER_SHELLS)
    if shell in OTHER_SHELLS:
        raise _unclear(f"{shell} reads it, which is not understood")
    values, hidden = _variables(container)
    unseen = next((name for name in _references(items) if name in hidden), None)
    if unseen is not None:
        raise CommandError(
            "ArgumentFromEnvironment",
            f"the script uses $({unseen}), whose value is not in the pod template. Give the variable a literal value.",
        )
    if any(mark in text for mark in MARKS for text in (*items, *values.values())):
        raise _unclear("it holds characters for private use")
    texts = [from_kubelet(item, Root("item", str(number)), values) for number, item in enumerate(items)]
    environment = Environment(_environment(container), hidden, complete=not container.get("envFrom"))
    try:
        call = find_call(texts[at], environment, texts[at + 2 :])
    except UnclearError as error:
        raise _unclear(str(error)) from error
    config = _fold(call)
    words = tuple(_shown(call, field) for field in call.fields)
    taken = set(speculative_items(call.values))
    argv = tuple(word for number, word in enumerate(words) if number not in taken)
    command = ShellCommand(container, items, len(container.get("command") or ()), at, call, values, words, argv, config)
    _ = command.run  # what could not be profiled is not understood
    return command


def _shown(call: Call, found: Field) -> str:
    # A shell takes a carriage return as a part of the word before it; the engine's parser strips it where it matters.
    return (found.value if found.known else call.words[found.word].source).rstrip("\r")


def _fold(call: Call) -> Mapping[str, Any] | None:
    try:
        folded = fold_speculative_config(call.values)
    except ArgvError as error:
        if error.value is not None and MARKS & set(error.value):
            raise CommandError(
                "ArgumentFromEnvironment",
                f"the value of {error.flag} is not in the pod template. Write it out, or give its variable a literal value in env.",
            ) from error
        raise CommandError("ArgumentNotUnderstood", str(error)) from error
    if folded.config is not None and MARKS & set(json.dumps(folded.config, ensure_ascii=False)):
        raise CommandError(
            "ArgumentFromEnvironment",
            f"a part of {FLAG} is not in the pod template. Write it out, or give its variable a literal value in env.",
        )
    return folded.config


def _unclear(problem: str) -> CommandError:
    return CommandError(
        "TargetShellString", f"vLLM is started by a shell script, and {problem}. Write command [vllm, serve] and args as a list."
    )


def _environment(container: Container) -> dict[str, Text]:
    texts: dict[str, Text] = {}
    values: dict[str, str] = {}
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            texts.pop(entry["name"], None)
            continue
        texts[entry["name"]] = from_kubelet(entry.get("value", ""), Root("env", entry["name"]), values)
        values[entry["name"]] = texts[entry["name"]].value
    return texts


def _variables(container: Container) -> tuple[dict[str, str], frozenset[str]]:
    """Literal values, and names of those that come from a reference."""
    values: dict[str, str] = {}
    hidden: set[str] = set()
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            hidden.add(entry["name"])
        else:
            values[entry["name"]] = _resolved(entry.get("value", ""), values)
    return values, frozenset(hidden)


def _resolved(text: str, values: Mapping[str, str]) -> str:
    def resolve(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else values.get(name, match.group(0))

    return _REFERENCE.sub(resolve, text)


def _references(items: Iterable[str]) -> Iterator[str]:
    for item in items:
        yield from (name for name in _REFERENCE.findall(item) if name)


def _literal_flag(args: Sequence[str], config: Mapping[str, Any] | None, *, explicit_off: bool) -> list[str]:
    written = with_speculative_config(args, config, explicit_off=explicit_off)
    return [literal(arg) if at and written[at - 1] == FLAG else arg for at, arg in enumerate(written)]
