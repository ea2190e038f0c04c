"""Texts whose characters know where they stand, so that a change of what a shell reads becomes the smallest change of a manifest.

What `eval` reads is made of pieces: quoted parts of a script, values of variables, arguments. A change of it is handed on to the
piece that it touches, written as that piece is quoted, down to an item of `command` or `args` or a value in `env`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

UNKNOWN = "\ue000"
"""Stands for a part whose value is not in the pod template, within one word."""
UNKNOWN_WORDS = "\ue001"
"""Stands for such a part that may be any number of words."""
NO_FLAGS = "\ue002"
"""Stands for any number of words, none of which can be a speculative flag."""
MARKS = frozenset({UNKNOWN, UNKNOWN_WORDS, NO_FLAGS})

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


class Quoting(Enum):
    """How a text is written in the place where it stands."""

    PLAIN = "Plain"  # as it is
    KUBELET = "Kubelet"  # `$$` for one dollar sign
    BARE = "Bare"  # outside of quotes
    SINGLE = "Single"
    DOUBLE = "Double"
    FIXED = "Fixed"  # written in a way that is not edited

    def write(self, text: str) -> str:
        """`text` so that it is read there as it is. Raises NotEditableError."""
        match self:
            case Quoting.PLAIN:
                return text
            case Quoting.KUBELET:
                return text.replace("$", "$$")
            case Quoting.BARE:
                return shlex.quote(text)
            case Quoting.SINGLE:
                return text.replace("'", "'\\''")
            case Quoting.DOUBLE:
                return re.sub(r'([\\"$`])', r"\\\1", text)
            case Quoting.FIXED:
                raise NotEditableError("the flag stands in a place that cannot be edited")


class NotEditableError(ValueError):
    """A change cannot be written in the place that it touches: which place, as a part of a sentence."""


@dataclass(frozen=True, slots=True)
class Root:
    """Where a text stands in the container: an item of command and args together, or the value of a variable."""

    kind: Literal["item", "env"]
    name: str  # number of the item, or name of the variable


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a text, and how what is read from it is quoted there."""

    text: Text
    start: int
    end: int
    quoting: Quoting


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a character comes from. `use` is where its whole variable or argument is used, if it is a part of one."""

    place: Place
    use: Place | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """What is read somewhere; one origin a character, or the root itself. A space that a shell puts between words has no origin."""

    value: str
    origins: tuple[Origin | None, ...] = field(default=(), repr=False)
    root: Root | None = None

    def part(self, start: int, end: int) -> Text:
        return Text(self.value[start:end], self.origins[start:end])


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters of a root that another text replaces."""

    root: Root
    start: int
    end: int
    new: str


def joined(texts: Iterable[Text], separator: str = "") -> Text:
    value = ""
    origins: list[Origin | None] = []
    for number, text in enumerate(texts):
        if number:
            value += separator
            origins += [None] * len(separator)
        value += text.value
        origins += text.origins
    return Text(value, tuple(origins))


def from_kubelet(written: str, root: Root, variables: Mapping[str, str]) -> Text:
    """What a container gets of an item or a value: the kubelet has put in `$(NAME)` and read `$$` as one dollar sign."""
    base = Text(written, root=root)
    value, origins, at = "", [], 0

    def take(text: str, start: int, end: int) -> None:
        nonlocal value
        value += text
        whole = Origin(Place(base, start, end, Quoting.KUBELET))
        origins.extend([whole] * len(text))

    for match in _REFERENCE.finditer(written):
        for number in range(at, match.start()):
            take(written[number], number, number + 1)
        name = match.group(1)
        if name is None:
            take("$", match.start(), match.end())
        elif name in variables:
            use = Place(base, match.start(), match.end(), Quoting.KUBELET)
            value += variables[name]
            origins.extend([Origin(Place(base, match.start(), match.end(), Quoting.FIXED), use)] * len(variables[name]))  # as a whole only
        else:
            for number in range(match.start(), match.end()):
                take(written[number], number, number + 1)
        at = match.end()
    for number in range(at, len(written)):
        take(written[number], number, number + 1)
    return Text(value, tuple(origins))


def read_slice(text: Text, start: int, end: int, quoting: Quoting) -> Text:
    """Characters of `text` that are read as they stand."""
    return Text(text.value[start:end], tuple(Origin(Place(text, at, at + 1, quoting)) for at in range(start, end)))


def used(value: Text, use: Place) -> Text:
    """The value of a variable where it is used: its characters stand where they were set."""
    return Text(value.value, tuple(None if o is None else Origin(o.place, use) for o in value.origins))


def mark(character: str, use: Place) -> Text:
    return Text(character, (Origin(use, use),))


def remove(text: Text, start: int, end: int) -> tuple[Edit, ...]:
    """Take out characters, wherever they stand. Raises NotEditableError."""
    return tuple(edit for edit in _replace(text, start, end, "") if edit.start != edit.end)


def replace(text: Text, start: int, end: int, new: str) -> tuple[Edit, ...]:
    """Put `new` in place of characters, where the first of them stands. Raises NotEditableError."""
    return _replace(text, start, end, new)


def insert_after(text: Text, at: int, new: str) -> tuple[Edit, ...]:
    """Put `new` behind the character before `at`; behind the whole use where that belongs to a variable. Raises NotEditableError."""
    if text.root is not None:
        return (Edit(text.root, at, at, new),)
    origin = text.origins[at - 1] if at else None
    if origin is None:
        raise NotEditableError("the end of the command stands in no text of its own")
    place = origin.use or origin.place
    return insert_after(place.text, place.end, place.quoting.write(new))


def _replace(text: Text, start: int, end: int, new: str) -> tuple[Edit, ...]:
    if text.root is not None:
        return (Edit(text.root, start, end, new),)
    for at, beside in ((start, start - 1), (end - 1, end)):
        if start < end and 0 <= beside < len(text.origins) and _whole_only(text.origins[at], text.origins[beside]):
            raise NotEditableError("the flag is a part of the value of a variable that the kubelet puts in")
    edits: tuple[Edit, ...] = ()
    for first, last in _runs(text, start, end):
        place = first.place
        edits += _replace(place.text, place.start, last.place.end, place.quoting.write(new) if new else "")
        new = ""
    if new:
        raise NotEditableError("the flag stands in no text of its own")
    return edits


def _runs(text: Text, start: int, end: int) -> list[tuple[Origin, Origin]]:
    """Characters that stand side by side in one place, by their first and last."""
    runs: list[tuple[Origin, Origin]] = []
    for origin in text.origins[start:end]:
        if origin is None:
            continue
        last = runs[-1][1].place if runs else None
        here = origin.place
        follows = last is not None and last.text is here.text and here.start in {last.end, last.start} and last.quoting is here.quoting
        if follows:
            runs[-1] = (runs[-1][0], origin)
        else:
            runs.append((origin, origin))
    return runs


def _whole_only(one: Origin | None, other: Origin | None) -> bool:
    return one is not None and other is not None and one.place is other.place and one.place.quoting is Quoting.FIXED


def apply(written: str, edits: Iterable[Edit]) -> str:
    """`written` with the edits of its root made; they do not overlap."""
    for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
        written = written[: edit.start] + edit.new + written[edit.end :]
    return written
