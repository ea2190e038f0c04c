"""Reading a stored JSON file field by field, so that a refusal names file, field and cure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

FORMAT_VERSION = 1
PPM = 1_000_000


class FormatError(ValueError):
    """A file cannot be used: which file, which field, and what to do."""

    def __init__(self, file: str, field: str, problem: str) -> None:
        super().__init__(f"{file}: {field} {problem}. The file is not used. Restore it, or measure again (delete it).")
        self.file = file
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Node:
    """An object of a file, with its path, so that every refusal names the field."""

    file: str
    path: str
    value: dict[str, Any]

    def refuse(self, field: str, problem: str) -> NoReturn:
        """Raises FormatError for a field of this object."""
        raise FormatError(self.file, f"{self.path}{field}", problem)

    def _get(self, field: str, fits: Callable[[Any], bool], expected: str) -> Any:
        if field not in self.value:
            self.refuse(field, "is missing")
        if not fits(self.value[field]):
            self.refuse(field, f"must be {expected}, found {self.value[field]!r:.60}")
        return self.value[field]

    def integer(self, field: str, least: int) -> int:
        value: int = self._get(field, lambda v: type(v) is int and v >= least, f"an integer of {least} or more")
        return value

    def integers(self, field: str, least: int) -> tuple[int, ...]:
        fits = f"a list of integers of {least} or more"
        return tuple(self._get(field, lambda v: isinstance(v, list) and all(type(n) is int and n >= least for n in v), fits))

    def text(self, field: str) -> str:
        value: str = self._get(field, lambda v: isinstance(v, str), "a text")
        return value

    def texts(self, field: str) -> Sequence[str]:
        return list(self._get(field, lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v), "a list of texts"))

    def boolean(self, field: str) -> bool:
        value: bool = self._get(field, lambda v: isinstance(v, bool), "true or false")
        return value

    def has(self, field: str) -> bool:
        """Whether a field that may be left out, or be null, is there."""
        return self.value.get(field) is not None

    def child(self, field: str) -> Node:
        return Node(self.file, f"{self.path}{field}.", self._get(field, lambda v: isinstance(v, dict), "an object"))

    def children(self, field: str) -> list[Node]:
        items = self._get(field, lambda v: isinstance(v, list) and all(isinstance(i, dict) for i in v), "a list of objects")
        return [Node(self.file, f"{self.path}{field}[{at}].", item) for at, item in enumerate(items)]


def dump(value: Mapping[str, Any]) -> str:
    """The text of a file."""
    return json.dumps(value, indent=1) + "\n"


def read_root(file: str, text: str) -> Node:
    """The object that a file is. Raises FormatError: no JSON object, or another formatVersion."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FormatError(file, "the whole file", f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise FormatError(file, "the whole file", "is not a JSON object")
    node = Node(file, "", value)
    version = node.integer("formatVersion", 0)
    if version != FORMAT_VERSION:
        node.refuse("formatVersion", f"is {version}; this TableTune reads {FORMAT_VERSION}")
    return node
