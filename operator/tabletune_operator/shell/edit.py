"""Another speculative config in a shell script: one flag, and no other character of the script, its arguments or its variables changed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.argv import FLAG, speculative_items, spelled_value
from tabletune_operator.pods import literal
from tabletune_operator.shell.script import Call
from tabletune_operator.shell.text import Edit, NotEditableError, Root, Text, insert_after, remove, replace
from tabletune_operator.shell.words import ADDITIONAL_ARGS, Field, Stands

CONFIG_VARIABLE = "TABLETUNE_SPECULATIVE_CONFIG"
"""In the profiling pod: what the tuner asks for, see `with_hook`."""

_HOOK = f' ${{{CONFIG_VARIABLE}:+{FLAG} "${CONFIG_VARIABLE}"}}'


@dataclass(frozen=True, slots=True)
class Changes:
    """Edits of what stands in the container. `more` are items that take the place of one, by its number."""

    edits: tuple[Edit, ...]
    more: Mapping[str, tuple[str, ...]]
    added: Mapping[str, str]  # variables that were not there


def with_config(call: Call, config: Mapping[str, Any] | None, *, explicit_off: bool) -> Changes:
    """Exactly one `--speculative-config`, or none. Raises NotEditableError and ArgvError."""
    taken = tuple(call.fields[at] for at in speculative_items(call.values))
    flag = None if config is None and not explicit_off else f"{FLAG} {shlex.quote(spelled_value(config))}"
    if flag is None:
        return Changes(_taken_out(call, taken), {}, {})
    if not taken:
        return _added(call, flag)
    first = taken[0]
    if first.stands is Stands.ITEM:
        assert first.at is not None
        rest = _taken_out(call, taken[1:])
        return Changes(rest, {_root(first.at[0]).name: (FLAG, literal(spelled_value(config)))}, {})
    if first.stands is Stands.WORD or _takes_whole_word(call, first, taken):
        start, end = _word(call, first.word)
        kept = [field for field in taken if field.word != first.word]
        return Changes((*replace(call.script.text, start, end, flag), *_taken_out(call, kept)), {}, {})
    # What is split from a variable's value has no quotes, so the flag gets a word of its own behind it.
    _, end = _word(call, first.word)
    return Changes((*_taken_out(call, taken), *insert_after(call.script.text, end, f" {flag}")), {}, {})


def with_hook(call: Call) -> Changes:
    """No speculative flag but the one that the variable `CONFIG_VARIABLE` holds. Raises NotEditableError and ArgvError."""
    taken = tuple(call.fields[at] for at in speculative_items(call.values))
    _, end = _word(call, len(call.words) - 1)
    return Changes((*_taken_out(call, taken), *insert_after(call.script.text, end, _HOOK)), {}, {})


def prologue(positional: int, variables: Mapping[str, str]) -> str:
    """The beginning of a script with the hook: a flag behind its own arguments goes into the variable.

    The arguments of a script are its own matter (`$@` may be read twice by eval), so the flag is not left among them.
    """
    own = "".join(f' "${{{number}}}"' for number in range(1, positional + 1))
    given = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
    return (
        f"{given}{CONFIG_VARIABLE}=; if [ $# -gt {positional} ]; then "
        f'{CONFIG_VARIABLE}="${{{positional + 2}}}"; set --{own}; fi; export {CONFIG_VARIABLE}\n'
    )


def _added(call: Call, flag: str) -> Changes:
    outer = call.script.outer
    if outer is not None and re.search(rf"\$(?:\{{{ADDITIONAL_ARGS}\}}|{ADDITIONAL_ARGS}\b)", outer.text.value[call.script.outer_at :]):
        environment = call.script.environment
        value = environment.values.get(ADDITIONAL_ARGS)
        if value is None and environment.value(ADDITIONAL_ARGS) is not None:
            return Changes((), {}, {ADDITIONAL_ARGS: literal(flag)})
        if value is not None and ADDITIONAL_ARGS not in outer.assigned and value.value:
            return Changes(insert_after(value, len(value.value), f" {flag}"), {}, {})
    _, end = _word(call, len(call.words) - 1)
    return Changes(insert_after(call.script.text, end, f" {flag}"), {}, {})


def outer_start(call: Call) -> int:
    return call.script.outer_at


def _taken_out(call: Call, fields: Sequence[Field]) -> tuple[Edit, ...]:
    gone: dict[Text, set[int]] = {}
    for word in dict.fromkeys(field.word for field in fields):
        own = [field for field in fields if field.word == word]
        if own[0].stands is Stands.WORD or (own[0].stands is not Stands.ITEM and _takes_whole_word(call, own[0], fields)):
            start, end = _extent(call.script.text, *_word(call, word), continued=True)
            gone.setdefault(call.script.text, set()).update(range(start, end))
            continue
        for field in own:
            if field.at is None:
                raise NotEditableError(f"{field.value!r:.40} is put together from more than one variable")
            text, start, end = field.at
            start, end = (start, end) if field.stands is Stands.ITEM else _extent(text, start, end, continued=False)
            gone.setdefault(text, set()).update(range(start, end))
    return tuple(edit for text, numbers in gone.items() for start, end in _ranges(numbers) for edit in remove(text, start, end))


def _ranges(numbers: set[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(numbers)
    begin = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            yield ordered[begin], ordered[at - 1] + 1
            begin = at


def _extent(text: Text, start: int, end: int, *, continued: bool) -> tuple[int, int]:
    """With the space before it (and the ends of lines that are continued), else the space behind it, where that stands in the same text."""

    def home(at: int) -> object:
        if text.root is not None:
            return text.root
        origin = text.origins[at]
        return None if origin is None else origin.place.text

    blank = " \t" if continued else " \t\n"
    own, at = home(start), start
    while at and home(at - 1) is own:
        if text.value[at - 1] in blank:
            at -= 1
        elif continued and text.value[max(at - 2, 0) : at] == "\\\n":
            at -= 2
        else:
            break
    if at < start:
        return at, end
    while end < len(text.value) and text.value[end] in blank and home(end) is own:
        end += 1
    return start, end


def _word(call: Call, number: int) -> tuple[int, int]:
    return call.words[number].start, call.words[number].end


def _takes_whole_word(call: Call, field: Field, taken: Sequence[Field]) -> bool:
    """Does a variable that is used there hold nothing else? Then its use goes, and the variable stays as it is."""
    return all(other in taken for other in call.fields if other.word == field.word)


def _root(text: Text) -> Root:
    while text.root is None:
        origin = next((o for o in text.origins if o is not None), None)
        if origin is None:
            raise NotEditableError("it stands in no text of its own")
        text = origin.place.text
    return text.root
