"""What the words of a shell command come to, as far as a pod template tells.

A value that is not known does not matter unless it could hold a flag. So each field says how much is unknown about it; a variable
that is assigned in several places, or in one that may be passed by, stands for no flags if none of its values can hold one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from tabletune_operator.shell.text import (
    MARKS,
    NO_FLAGS,
    UNKNOWN,
    UNKNOWN_WORDS,
    Origin,
    Place,
    Quoting,
    Text,
    joined,
    mark,
    read_slice,
    used,
)

_LANGUAGE = Language(tree_sitter_bash.language())
_MAYBE_FLAG = re.compile(r"-s(?:c|pec)|vllm", re.ASCII | re.IGNORECASE)
"""What a value must not hold to be of no interest: the beginning of a speculative flag, or an engine's command."""
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}", re.DOTALL)
_OWN_PROCESS = frozenset({"command_substitution", "process_substitution", "subshell", "command"})
_NO_WORDS = frozenset({"variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect", "comment"})
_ASSIGNING = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "let", "unset", "declare", "typeset", "local"})
_PLAIN_WORD = re.compile(r"(?:\\\S|[^\s\\$`*?\[\]<>(){}\"'])+")
_SPACE = " \t\n"
_OWN_SPACE = frozenset({"word", "string", "raw_string", "ansi_c_string", "comment", "heredoc_body", "heredoc_content", "regex"})
_SPACE_NOT_SEEN = re.compile(r"\\[ \t\r\f\v]|(?<![\s\\])\\\n(?=\S)")
ADDITIONAL_ARGS = "VLLM_ADDITIONAL_ARGS"
"""KServe's own hook for arguments: no image sets it, so where the pod template does not, it is empty."""


class UnclearError(ValueError):
    """It is not certain what a shell makes of a script: why, as a part of a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """One word of a command, as it is written: what touches is one to a shell, if not to the grammar."""

    nodes: tuple[Node, ...]
    start: int
    end: int
    source: str


class Stands(Enum):
    """What a field is in the place where it stands."""

    WORD = "Word"  # a whole word of the command
    PIECE = "Piece"  # one of the words that a variable's value is split into
    ITEM = "Item"  # one of the script's own arguments


@dataclass(frozen=True, slots=True)
class Field:
    """One argument (or several, where marks say so). `at` is where it stands; None: in no place of its own."""

    value: str
    at: tuple[Text, int, int] | None
    word: int
    stands: Stands

    @property
    def known(self) -> bool:
        return not MARKS & set(self.value)


@dataclass(frozen=True, slots=True)
class _Value:
    """`text` None: not known; `harmless`: whatever it is, it holds no flag."""

    text: Text | None
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a word. Fields are split in it where `splits`; `items` are the script's arguments where it is `"$@"`."""

    text: Text
    splits: bool
    items: tuple[Text, ...] | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """What a container gives a shell: values that the pod template holds. `complete`: no other can come from a reference."""

    values: Mapping[str, Text]
    hidden: frozenset[str]
    complete: bool

    def value(self, name: str) -> Text | None:
        if name in self.values:
            return self.values[name]
        return Text("") if name == ADDITIONAL_ARGS and self.complete and name not in self.hidden else None


@dataclass(eq=False)
class Script:
    """A text that a shell reads, parsed. `positional` are its arguments, None where they are not known.

    `outer` is the script whose variables are these too (for `eval`), which stands there at character `outer_at`.
    """

    text: Text
    environment: Environment
    positional: tuple[Text, ...] | None
    outer: Script | None = None
    outer_at: int = 0
    _bytes: tuple[int, ...] = field(init=False)  # number of the character at each byte

    def __post_init__(self) -> None:
        source = self.text.value.encode()
        numbers: list[int] = []
        for number, character in enumerate(self.text.value):
            numbers += [number] * len(character.encode())
        self._bytes = (*numbers, len(self.text.value))
        self.root = Parser(_LANGUAGE).parse(source).root_node
        if self.root.has_error:
            raise UnclearError("the script is not read by the shell grammar")
        self._check_spaces()
        self._check_gaps()

    def _check_gaps(self) -> None:
        """Between what the grammar names there may be space only; now and then it passes over a word (`-` before `2>&1`)."""
        seen = bytearray(len(self.text.value))
        for node in self.nodes:
            if not node.child_count or node.type in _OWN_SPACE:
                start, end = self.start(node), self.end(node)
                seen[start:end] = b"\1" * (end - start)
        between = "".join(c if not taken else " " for c, taken in zip(self.text.value, seen, strict=True))
        missed = between.replace("\\\n", "").split()
        if missed:
            raise UnclearError(f"the shell grammar passes over {missed[0]:.20}")

    def _check_spaces(self) -> None:
        """The grammar takes any backslash before a space for nothing; a shell does so only at the end of a line, between words."""
        spans = [(self.start(node), self.end(node)) for node in self.nodes if node.type in _OWN_SPACE]
        for match in _SPACE_NOT_SEEN.finditer(self.text.value):
            if any(start <= match.start() and match.end() <= end for start, end in spans):
                continue
            if match[0].endswith("\n"):
                raise UnclearError("a word goes on in the next line: put a space before the backslash")
            if match[0].endswith("\r"):
                raise UnclearError("its lines end in CR LF, where a backslash continues no line: save the script with LF")
            raise UnclearError("a backslash stands before a space: put the space in quotes")

    def start(self, node: Node) -> int:
        return self._bytes[node.start_byte]

    def end(self, node: Node) -> int:
        return self._bytes[node.end_byte]

    def source(self, node: Node) -> str:
        return self.text.value[self.start(node) : self.end(node)]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, as they stand."""
        found: list[Node] = []
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            found.append(node)
            waiting += reversed(node.children)
        return tuple(found)

    @cached_property
    def assigned(self) -> Mapping[str, tuple[Node, ...]]:
        """Places that give a variable its value: assignments, and nodes of another kind that make it unknown."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in self._names_set(node):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def _names_set(self, node: Node) -> Sequence[str]:
        if node.type == "variable_assignment":
            name = node.child_by_field_name("name")
            return [self.source(name).partition("[")[0]] if name is not None else []
        if node.type == "for_statement" and (variable := node.child_by_field_name("variable")) is not None:
            return [self.source(variable)]
        if node.type in {"command", "unset_command", "declaration_command"}:
            words = re.findall(r"[A-Za-z_]\w*", self.source(node)) if node.type != "command" else []
            if node.type == "command" and (name := node.child_by_field_name("name")) is not None:
                taken = self.source(name) in _ASSIGNING and (self.source(name) != "printf" or " -v" in self.source(node))
                words = re.findall(r"[A-Za-z_]\w*", self.source(node)) if taken else []
            if node.type == "declaration_command":  # its assignments are nodes of their own; a bare name sets nothing
                words = []
            return words
        if node.type in {"expansion", "arithmetic_expansion", "test_command"} or node.type == "compound_statement":
            return (
                re.findall(r"([A-Za-z_]\w*)\s*:?(?:[-+*/%&|^]|<<|>>)?=(?!=)", self.source(node))
                if _sets(self.source(node).lstrip(" \t\n\\"))
                else []
            )
        return []

    @cached_property
    def foreign(self) -> bool:
        """Does it run text from elsewhere, which may set any variable?"""
        for node in self.nodes:
            if node.type == "command" and (name := node.child_by_field_name("name")) is not None:
                word = self.source(name)
                harmless = self.source(node).rstrip("'\"").endswith("/bin/activate")  # sets PATH and a prompt
                sourced = word in {"source", "."} and not harmless
                if sourced or (word.startswith(("$", '"$')) and "@" not in word):
                    return True
        return False

    @cached_property
    def splits_elsewhere(self) -> bool:
        """Does it set IFS, so that values are not split at spaces? In a substitution, or for one command, that changes nothing here."""
        return any(not _is_within(site, _OWN_PROCESS) for site in self.assigned.get("IFS", ())) or (
            self.outer is not None and self.outer.splits_elsewhere
        )

    @property
    def sets_arguments(self) -> bool:
        """Does `set` or `shift` change the script's arguments?"""
        for node in self.nodes:
            if node.type != "command" or (name := node.child_by_field_name("name")) is None:
                continue
            words = [self.source(child) for child in node.children[1:]]
            takes = [w for at, w in enumerate(words) if not w.startswith(("-", "+")) and not (at and words[at - 1].endswith("o"))]
            if self.source(name) == "shift" or (self.source(name) == "set" and (takes or "--" in words or "-" in words)):
                return True
        return False

    def value_of(self, name: str, before: int, busy: frozenset[str] = frozenset()) -> _Value:
        """Of a variable where it is used, at character `before`."""
        if self.outer is not None and name not in self.assigned:
            return self.outer.value_of(name, self.outer_at, busy)
        sites = self.assigned.get(name, ())
        if self.foreign or (self.outer is not None and sites):
            return _Value(None)
        if name in busy or not sites:
            return _Value(self.environment.value(name))
        values = [self._assigned_value(site, busy | {name}) for site in sites]
        surely = [at for at, site in enumerate(sites) if _is_plain(site) and self.start(site) < before]
        if surely and len(sites) == 1:
            return values[0]
        # Several may be the last one; what the container gave counts only if none is certain to be made.
        possible = values if surely else [*values, _Value(self.environment.value(name))]
        return _Value(None, harmless=all(v.harmless or (v.text is not None and not _MAYBE_FLAG.search(v.text.value)) for v in possible))

    def _assigned_value(self, site: Node, busy: frozenset[str]) -> _Value:
        if site.type != "variable_assignment" or "+=" in self.source(site).partition("=")[0] + "=":
            return _Value(None)
        name, value = site.child_by_field_name("name"), site.child_by_field_name("value")
        after = self.text.value[self.end(site) : self.end(site) + 1]
        if name is None or name.type != "variable_name" or after not in {"", *" \t\n;&|)"}:
            return _Value(None)  # a list's entry, or a value that the grammar cuts short
        if value is None:
            return _Value(Text(""))
        if value.type == "array":
            return _Value(None, harmless=not _MAYBE_FLAG.search(self.source(value)) and not re.search(r"[$`]", self.source(value)))
        text = joined([part.text for part in self._parts(value, busy, quoted=True)])
        unknown = MARKS & set(text.value)
        return _Value(None, harmless=unknown == {NO_FLAGS} and not _MAYBE_FLAG.search(text.value)) if unknown else _Value(text)

    def words(self, command: Node) -> tuple[Word, ...]:
        """The words of a simple command, behind its assignments and without redirections."""
        groups: list[list[Node]] = []
        for node in (child for child in command.children if child.type not in _NO_WORDS):
            if groups and self.start(node) == self.end(groups[-1][-1]):
                groups[-1].append(node)
            else:
                groups.append([node])
        found = []
        for nodes in groups:
            start, end = self.start(nodes[0]), self.end(nodes[-1])
            while self.text.value[end : end + 1] == "\r":  # to a shell a part of the word
                end += 1
            found.append(Word(tuple(nodes), start, end, self.text.value[start:end].strip()))
        return tuple(found)

    def fields(self, word: Word, number: int) -> tuple[Field, ...]:
        """What one word of a command comes to."""
        start, end = word.start, word.end
        if _BRACES.search(_outside_quotes(word.source)) and not re.search(r"\$\{", word.source):
            return (Field(UNKNOWN_WORDS, (self.text, start, end), number, Stands.WORD),)
        parts = [part for node in word.nodes for part in self._parts(node, frozenset())]
        if end > self.end(word.nodes[-1]):
            parts.append(_Part(read_slice(self.text, self.end(word.nodes[-1]), end, Quoting.BARE), splits=False))
        own = (self.text, start, end)
        if len(parts) == 1 and parts[0].items is not None:
            items = parts[0].items
            return tuple(Field(item.value, (item, 0, len(item.value)), number, Stands.ITEM) for item in items)
        if any(part.items is not None for part in parts):
            raise UnclearError('"$@" is a part of a longer word')
        if not any(part.splits for part in parts):
            return (Field("".join(part.text.value for part in parts), own, number, Stands.WORD),)
        split = _split(parts)
        if len(split) == 1 and split[0].value:
            return (Field(split[0].value, own, number, Stands.WORD),)
        return tuple(Field(piece.value, piece.at, number, Stands.PIECE) for piece in split)

    def spoken(self, words: Sequence[Word]) -> Text:
        """What `eval` reads: its words, with spaces between them."""
        return joined([self._spoken_word(word) for word in words], " ")

    def _spoken_word(self, word: Word) -> Text:
        parts = [part for node in word.nodes for part in self._parts(node, frozenset())]
        return joined([part.text if part.items is None else joined(part.items, " ") for part in parts])

    def _parts(self, node: Node, busy: frozenset[str], *, quoted: bool = False) -> Sequence[_Part]:  # noqa: PLR0911 - one for each kind of node
        """`quoted`: no fields are split (in double quotes, and in an assignment)."""
        source = self.source(node)
        match node.type:
            case "word" | "number" | "variable_name" | "test_operator" | "regex" | "extglob_pattern":
                return [_Part(self._bare(self.start(node), self.end(node)), splits=False)]
            case "raw_string":
                return [_Part(read_slice(self.text, self.start(node) + 1, self.end(node) - 1, Quoting.SINGLE), splits=False)]
            case "ansi_c_string" if "\\" not in source:
                return [_Part(read_slice(self.text, self.start(node) + 2, self.end(node) - 1, Quoting.FIXED), splits=False)]
            case "string":
                return self._string(node, busy)
            case "concatenation" | "command_name":
                return [part for child in node.children for part in self._parts(child, busy, quoted=quoted)]
            case "arithmetic_expansion":
                return [self._unknown(node, NO_FLAGS, quoted=quoted)]
            case "simple_expansion" | "expansion":
                return [self._expansion(node, busy, quoted=quoted)]
        if not node.children and _PLAIN_WORD.fullmatch(source):  # of whatever kind to the grammar
            return [_Part(self._bare(self.start(node), self.end(node)), splits=False)]
        return [self._unknown(node, UNKNOWN if quoted else UNKNOWN_WORDS, quoted=quoted)]

    def _bare(self, start: int, end: int) -> Text:
        raw, value, origins, at = self.text.value, "", [], start
        while at < end:
            size = 2 if raw[at] == "\\" and at + 1 < end else 1
            if raw[at : at + size] != "\\\n":
                value += raw[at + size - 1]
                origins.append(Origin(Place(self.text, at, at + size, Quoting.BARE)))
            at += size
        return Text(value, tuple(origins))

    def _string(self, node: Node, busy: frozenset[str]) -> Sequence[_Part]:
        parts: list[_Part] = []
        at, end = self.start(node) + 1, self.end(node) - 1
        for child in node.children:
            if child.type in {'"', "string_content"}:
                continue
            start = self._dollar(child)
            parts.append(_Part(self._double(at, start), splits=False))
            parts += (
                self._parts(child, busy, quoted=True) if child.is_named else [_Part(self._double(start, self.end(child)), splits=False)]
            )
            at = self.end(child)
        parts.append(_Part(self._double(at, end), splits=False))
        return [part for part in parts if part.text.value or part.items is not None] or [_Part(Text(""), splits=False)]

    def _dollar(self, node: Node) -> int:
        """Where an expansion begins: the grammar counts spaces and ends of lines before it as its own."""
        start, end = self.start(node), self.end(node)
        return next((at for at in range(start, end) if self.text.value[at] in "$`"), start)

    def _double(self, start: int, end: int) -> Text:
        raw, value, origins, at = self.text.value, "", [], start
        while at < end:
            escaped = raw[at] == "\\" and at + 1 < end and raw[at + 1] in '"\\$`\n'
            size = 2 if escaped else 1
            if raw[at : at + size] != "\\\n":
                value += raw[at + size - 1]
                origins.append(Origin(Place(self.text, at, at + size, Quoting.DOUBLE)))
            at += size
        return Text(value, tuple(origins))

    def _use(self, node: Node, *, quoted: bool) -> Place:
        return Place(self.text, self._dollar(node), self.end(node), Quoting.DOUBLE if quoted else Quoting.BARE)

    def _unknown(self, node: Node, kind: str, *, quoted: bool) -> _Part:
        return _Part(mark(kind, self._use(node, quoted=quoted)), splits=False)

    def _expansion(self, node: Node, busy: frozenset[str], *, quoted: bool) -> _Part:
        source = self.text.value[self._dollar(node) : self.end(node)]
        use = self._use(node, quoted=quoted)
        if source in {"$@", "$*", "${@}", "${*}"}:
            return self._arguments(node, use, quoted=quoted, each="@" in source)
        matched = re.fullmatch(r"\$(?:(\w+)|\{(\w+)(?:(:?-)(.*))?\})", source, re.DOTALL)
        if matched is not None:
            name = matched[1] or matched[2]
            value = self._numbered(name, node) if name.isdigit() else self.value_of(name, self._dollar(node), busy)
            default = matched[4] if matched[3] is not None else None
            if value.text is not None and default is not None and not value.text.value and matched[3] == ":-":
                value = _Value(Text(default)) if re.fullmatch(r"[\w./:@%+=,-]*", default) else _Value(None)
            elif value.text is None and default is not None:
                value = _Value(None)  # known only if the default is not needed
            if value.text is not None and (quoted or not self.splits_elsewhere or not value.text.value):
                return _Part(used(value.text, use), splits=not quoted)
            if value.harmless:
                return self._unknown(node, NO_FLAGS, quoted=quoted)
        elif re.fullmatch(r"\$(?:[#?$!]|\{#.*\})", source, re.DOTALL):
            return self._unknown(node, NO_FLAGS, quoted=quoted)  # a number
        elif (listed := re.fullmatch(r"\$\{(\w+)\[@\]\}", source)) and self.value_of(listed[1], self._dollar(node), busy).harmless:
            return self._unknown(node, NO_FLAGS, quoted=quoted)
        single = quoted and "@" not in source
        return self._unknown(node, UNKNOWN if single else UNKNOWN_WORDS, quoted=quoted)

    def _numbered(self, name: str, node: Node) -> _Value:
        positional = self._positional
        at = int(name) - 1
        if positional is None or at < 0 or _is_within(node, frozenset({"function_definition"})):
            return _Value(None)
        return _Value(positional[at] if at < len(positional) else Text(""))

    @property
    def _positional(self) -> tuple[Text, ...] | None:
        return None if self.sets_arguments or self.foreign else self.positional

    def _arguments(self, node: Node, use: Place, *, quoted: bool, each: bool) -> _Part:
        items = self._positional
        if items is None or _is_within(node, frozenset({"function_definition"})):
            return self._unknown(node, UNKNOWN_WORDS, quoted=quoted)
        placed = tuple(used(item, use) for item in items)
        if quoted and each:
            return _Part(Text(""), splits=False, items=placed)
        return _Part(joined(placed, " "), splits=not quoted)


def _sets(source: str) -> bool:
    return source.startswith(("((", "$((", "${"))


def _is_plain(site: Node) -> bool:
    """Is an assignment made whatever happens, once the script gets there? Not in a branch, a loop, a function or another shell."""
    node, parent = site, site.parent
    while parent is not None and (parent.type in {"declaration_command", "variable_assignments"} or _is_first(node, parent)):
        node, parent = parent, parent.parent
    return site.type == "variable_assignment" and parent is not None and parent.type == "program"


def _is_first(node: Node, parent: Node) -> bool:
    """Of commands that are joined by `&&` or `||`."""
    return parent.type == "list" and parent.children[0] == node


def _is_within(node: Node, kinds: frozenset[str]) -> bool:
    parent = node.parent
    while parent is not None and parent.type not in kinds:
        parent = parent.parent
    return parent is not None


def _outside_quotes(source: str) -> str:
    return re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", "", source, flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Piece:
    value: str
    at: tuple[Text, int, int] | None  # None: it comes from more than one place


def _split(parts: Sequence[_Part]) -> list[_Piece]:
    """Fields of a word, at the spaces of what variables brought in."""
    pieces: list[_Piece] = []
    current: list[tuple[Text, int, int]] = []

    def close() -> None:
        if current:
            value = "".join(text.value[start:end] for text, start, end in current)
            pieces.append(_Piece(value, current[0] if len(current) == 1 else None))
            current.clear()

    for part in parts:
        value, at = part.text.value, 0
        if not part.splits:
            current.append((part.text, 0, len(value)))
            continue
        for match in re.finditer(rf"[{_SPACE}]+", value):
            if match.start() > at:
                current.append((part.text, at, match.start()))
            close()
            at = match.end()
        if at < len(value):
            current.append((part.text, at, len(value)))
    close()
    return pieces
