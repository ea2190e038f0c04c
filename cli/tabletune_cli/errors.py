"""How the command line refuses: one line on stderr, `error CODE: message`, or the same as JSON with `-o json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import typer.exceptions
from typer.core import TyperGroup

from tabletune.formats import FormatError

USAGE_CODE = "BadUsage"
INTERRUPTED_EXIT = 130


class CommandError(typer.exceptions.TyperException):
    """The command cannot be done. `code` is stable; the message names the field or file, and the cure."""

    exit_code = 2

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = dict(details or {})


def refuse(code: str, message: str) -> NoReturn:
    """Raise a CommandError without details."""
    raise CommandError(code, message)


class CommandGroup(TyperGroup):
    """Shows every error, typer's own included, in one style and in one place."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - typer's signature; this one always ends the process
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and leave the process with the exit code."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
        except CommandError as error:
            show_error(error.code, error.message, error.details, as_json=wants_json(words))
            code = error.exit_code
        except FormatError as error:
            show_error("FileDamaged", str(error), {"file": error.file, "field": error.field}, as_json=wants_json(words))
            code = CommandError.exit_code
        except typer.exceptions.TyperException as error:
            if message := error.format_message():  # empty after the help of a call without arguments
                show_error(USAGE_CODE, message, {}, as_json=wants_json(words))
            code = error.exit_code
        sys.exit(code if isinstance(code, int) else 0)


def wants_json(words: Sequence[str]) -> bool:
    """Was `-o json` asked for? Read from the words, for an error may come before they are parsed."""
    own = words[: words.index("--")] if "--" in words else words
    pairs = {"-ojson", "-o=json", "--output=json"}
    return any(w in pairs for w in own) or any(a in {"-o", "--output"} and b == "json" for a, b in pairwise(own))


def show_error(code: str, message: str, details: Mapping[str, Any], *, as_json: bool) -> None:
    """Write to stderr; stdout stays for results."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, **details}}), file=sys.stderr)
    else:
        print(f"error {code}: {message}", file=sys.stderr)
