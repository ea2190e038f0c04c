"""Which command of a shell script is the engine's, for certain, and what its words are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from tree_sitter import Node

from tabletune_operator.shell.text import MARKS, NO_FLAGS, Quoting, Text, read_slice
from tabletune_operator.shell.words import Environment, Field, Script, UnclearError, Word

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
"""Those that read a script as POSIX and bash do; others, such as zsh, do not split the values of variables."""

RUNS_VLLM = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b")

_SPEAKING = frozenset({"echo", "printf", "logger", ":", "grep", "pgrep", "pkill"})
"""Commands that may name the engine without running it."""

_MANY = {"for_statement": "a for loop", "c_style_for_statement": "a for loop", "function_definition": "a function"}
_WORDS = frozenset(
    {"word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "expansion", "simple_expansion", "heredoc_start"}
)
_HIDDEN = {"command_substitution": "a command substitution", "process_substitution": "a process substitution"}

ONE_VALUE = frozenset({
    "--model", "--tokenizer", "--served-model-name", "--host", "--port", "--uds", "--tensor-parallel-size", "-tp",
    "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl", "--data-parallel-address",
    "-dpa", "--data-parallel-rpc-port", "-dpp", "--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr",
    "--data-parallel-backend", "-dpb", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size",
    "--gpu-memory-utilization", "--dtype", "--quantization", "-q", "--kv-cache-dtype", "--kv-transfer-config", "--seed", "--api-key",
    "--api-server-count", "-asc", "--config", "--download-dir", "--load-format", "--revision", "--tokenizer-revision", "--code-revision",
    "--chat-template", "--tool-call-parser", "--reasoning-parser", "--compilation-config", "-cc", "--attention-backend", "--node-rank",
    "--nnodes", "--master-addr", "--master-port", "--uvicorn-log-level", "--ssl-certfile", "--ssl-keyfile", "--root-path",
    "--cpu-offload-gb", "--distributed-executor-backend", "--shutdown-timeout", "--decode-context-parallel-size", "-dcp",
    "--all2all-backend", "--max-cudagraph-capture-size", "--optimization-level", "--additional-config", "--hf-overrides",
    "--generation-config", "--limit-mm-per-prompt", "--mm-processor-kwargs", "--performance-mode", "--kv-events-config",
})  # fmt: skip
"""Options of `vllm serve` that take a value (tests/engine asks vLLM): what follows one is that, also where it is not known."""


@dataclass(frozen=True, slots=True)
class Call:
    """The engine's command: its words in `script`, and the fields that they come to."""

    script: Script
    words: tuple[Word, ...]
    fields: tuple[Field, ...]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(field.value for field in self.fields)


def find_call(text: Text, environment: Environment, positional: Sequence[Text]) -> Call:
    """The only command of the script that starts vLLM.

    Raises:
        UnclearError: there is none, or it is not certain that there is one, or that all its flags are seen.
    """
    script = Script(text, environment, tuple(positional))
    calls = list(_calls(script))
    if not calls:
        raise UnclearError("no command of the script is certain to start vLLM")
    if len(calls) > 1:
        raise UnclearError(f"the script starts vLLM in {len(calls)} places")
    (call,) = calls
    _look_for_hidden_flags(call)
    return call


def describe(script: Script) -> tuple[str, ...]:
    """Everything that the script says, without comments and spaces: two that say the same do the same."""
    return tuple(script.source(node) for node in script.nodes if node.child_count == 0 and node.type != "comment")


def _calls(script: Script) -> Iterator[Call]:
    taken: list[Node] = []
    for node in script.nodes:
        if node.type != "command":
            continue
        found = list(_calls_of(script, node))
        if found:
            taken.append(node)
            _check_place(node)
        yield from found
    for node in script.nodes:
        if node.type == "comment" or node.child_count or not RUNS_VLLM.search(script.source(node)):
            continue
        command = _command_of(node)
        if command is not None and (command in taken or _name(script, command) in _SPEAKING):
            continue
        if not any(t.start_byte <= node.start_byte and node.end_byte <= t.end_byte for t in taken) and not _feeds(node, taken):
            raise UnclearError("vllm serve stands in a text of the script, which may be run")


def _feeds(node: Node, taken: Sequence[Node]) -> bool:
    """Is it the here-document of a shell that was read?"""
    statement = node.parent
    while statement is not None and statement.type != "redirected_statement":
        statement = statement.parent
    return statement is not None and any(t.parent == statement for t in taken)


def _calls_of(script: Script, command: Node) -> Iterator[Call]:
    written = script.words(command)
    words = [_static(script, word) for word in written]
    at = _program(words)
    if at is None:
        return
    name = PurePosixPath(words[at] or "").name
    if name == "eval":
        spoken = script.spoken(written[at + 1 :])
        if not RUNS_VLLM.search(spoken.value) and not MARKS & set(spoken.value):
            return
        if not RUNS_VLLM.search(spoken.value):
            raise UnclearError("eval runs a text whose value is not in the pod template")
        if any(character != NO_FLAGS and _alone(spoken.value, number) for number, character in _marked(spoken.value)):
            raise UnclearError("eval runs a text of which a part is not in the pod template")
        yield from _calls(Script(spoken, script.environment, None, outer=script, outer_at=script.start(command)))
    elif name in SHELLS:
        if any(re.match(r"[A-Za-z_]\w*=", word or "") for word in words[:at]):
            raise UnclearError("env sets variables for a shell that may start vLLM")
        yield from _calls_of_shell(script, command, written[at + 1 :], words[at + 1 :])
    elif name not in _SPEAKING and (fields := _fields(script, written)) and _starts_vllm([field.value for field in fields]):
        yield Call(script, written, fields)
    elif any(word is not None and RUNS_VLLM.search(word) for word in words) and name not in _SPEAKING:
        raise UnclearError(f"{name or 'a command'} gets vllm serve as a text, and may run it")


def _calls_of_shell(script: Script, command: Node, written: Sequence[Word], words: Sequence[str | None]) -> Iterator[Call]:
    inner = _inner_environment(script)
    found = command_string(words)
    if found is not None:
        fields = script.fields(written[found], 0)
        if len(fields) != 1 or not fields[0].known:
            if len(fields) == 1 and RUNS_VLLM.search(fields[0].value):
                raise UnclearError("a shell in the script runs a text of which a part is not in the pod template")
            return
        text = script.spoken([written[found]])
        if RUNS_VLLM.search(text.value):
            yield from _calls(Script(text, inner, None))
        return
    statement = command.parent
    if statement is None or statement.type != "redirected_statement":
        return
    for here in (child for child in statement.children if child.type == "heredoc_redirect"):
        body = next((child for child in here.children if child.type == "heredoc_body"), None)
        start = next((child for child in here.children if child.type == "heredoc_start"), None)
        if body is None or start is None or not RUNS_VLLM.search(script.source(body)):
            continue
        quoted = script.source(start)[:1] in {"'", '"', "\\"}
        if not quoted and re.search(r"[$`\\]", script.source(body)):
            raise UnclearError("a here-document holds the command, and what it reads is not certain: quote its delimiter")
        if "<<-" in script.source(here):
            raise UnclearError("a here-document with <<- holds the command, whose tabs a shell takes away")
        yield from _calls(Script(read_slice(script.text, script.start(body), script.end(body), Quoting.PLAIN), inner, None))


def _inner_environment(script: Script) -> Environment:
    """What a shell that the script starts has: the container's variables that nothing sets."""
    outer = script
    changed: set[str] = set()
    while True:
        changed |= set(outer.assigned)
        if outer.foreign:
            return Environment({}, frozenset(), complete=False)
        if outer.outer is None:
            break
        outer = outer.outer
    given = script.environment
    kept = {name: value for name, value in given.values.items() if name not in changed}
    return Environment(kept, given.hidden | changed, given.complete)


def command_string(words: Sequence[str | None]) -> int | None:
    """Where the script stands among a shell's arguments: the first that is no option, if there is a `-c`."""
    at, asked = 0, False
    while at < len(words):
        word = words[at]
        if word is None or word[:1] not in {"-", "+"} or word in {"-", "--"}:
            at += word in {"-", "--"}
            break
        if word.startswith("--"):
            at += 2 if word in {"--rcfile", "--init-file"} else 1
            continue
        asked = asked or (word[0] == "-" and "c" in word[1:])
        at += 1 + word[1:].count("o") + word[1:].count("O")
    return at if asked and at < len(words) else None


def _static(script: Script, word: Word) -> str | None:
    """The one value of a word, None where there is none or more."""
    try:
        fields = script.fields(word, 0)
    except UnclearError:
        return None
    return fields[0].value if len(fields) == 1 and fields[0].known else None


def _fields(script: Script, words: Sequence[Word]) -> tuple[Field, ...]:
    return tuple(field for number, word in enumerate(words) for field in script.fields(word, number))


_WRAPPERS = frozenset({"exec", "env", "nohup", "command", "builtin", "time", "nice", "setsid", "stdbuf", "tini", "dumb-init", "sudo"})


def _program(words: Sequence[str | None]) -> int | None:
    """Number of the word that is run, behind wrappers that are known, their options, and assignments of `env`."""
    at = 0
    while at < len(words):
        word = words[at]
        if word is None:
            return at
        if PurePosixPath(word).name in _WRAPPERS or (at and (word.startswith("-") or re.match(r"[A-Za-z_]\w*=", word))):
            at += 1
            continue
        return at
    return None


def _starts_vllm(words: Sequence[str]) -> bool:
    for first, second in pairwise(words):
        if PurePosixPath(first).name == "vllm" and second.rstrip("\r") == "serve":
            return True
        if first == "-m" and second.startswith("vllm.entrypoints"):
            return True
    return False


def _check_place(command: Node) -> None:
    parent = command.parent
    while parent is not None:
        what = _MANY.get(parent.type) or _HIDDEN.get(parent.type)
        if what is not None:
            raise UnclearError(f"vllm serve stands in {what}")
        if parent.type == "redirected_statement" and command.parent == parent:
            for child in parent.children:
                if child.type.endswith("_redirect") and sum(c.type in _WORDS for c in child.children) > 1:
                    raise UnclearError("words of vllm serve follow a redirection: put that at the end")
        parent = parent.parent


def _command_of(node: Node) -> Node | None:
    parent: Node | None = node
    while parent is not None and parent.type != "command":
        parent = parent.parent
    return parent


def _name(script: Script, command: Node) -> str:
    name = command.child_by_field_name("name")
    return script.source(name) if name is not None else ""


def _look_for_hidden_flags(call: Call) -> None:
    values = call.values
    begin = next(at for at, value in enumerate(values) if value.rstrip("\r") == "serve" or value.startswith("vllm.entrypoints")) + 1
    for at, value in enumerate(values[begin:], begin):
        name = value.partition("=")[0]
        if set(value) <= {NO_FLAGS} or not MARKS & set(value):
            continue
        if name.startswith("--") and "=" in value and not MARKS & set(name):
            continue  # `--option=$VALUE` is that option whatever the value is
        before = values[at - 1].replace("_", "-") if values[at - 1].startswith("--") else values[at - 1]
        if (
            before in ONE_VALUE
            or before.startswith(("--spec", "-sc"))
            or (at == begin and values[at - 1].rstrip("\r") == "serve" and value[:1] != "-")
        ):
            continue
        source = call.words[call.fields[at].word].source
        raise UnclearError(f"{source} may hold --speculative-config, and its value is not in the pod template")


def _marked(text: str) -> Iterator[tuple[int, str]]:
    return ((number, character) for number, character in enumerate(text) if character in MARKS)


def _alone(text: str, at: int) -> bool:
    """Is the mark neither an option's value nor a part of one? Then it might be a command of its own."""
    before = text[:at].split()
    glued = at > 0 and not text[at - 1].isspace()
    if glued:
        return not re.match(r"--[\w.-]+=", before[-1])
    return not before or before[-1] not in ONE_VALUE
