"""A stand-in tokenizer: three bytes a token, so that token ids give the text back, and with it what kind of text it is."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

BYTES_PER_TOKEN = 3
FILLER_TOKEN = int.from_bytes(b" ok", "big")

CODE_MARKS = re.compile(r"\bdef |\breturn\b|\bimport \w|\bclass \w+[:(]|\bfor \w+ in |[{};]\s*$|\w\(\w*\)|==|->|=>", re.MULTILINE)
CODE_MARKS_NEEDED = 2


class Kind(enum.Enum):
    """What a prompt is, which decides how well its continuation is guessed."""

    CODE = "code"
    PROSE = "prose"
    NUMBERS = "numbers"


def encode(text: str) -> list[int]:
    data = text.encode()
    return [int.from_bytes(data[at : at + BYTES_PER_TOKEN], "big") for at in range(0, len(data), BYTES_PER_TOKEN)]


def decode(tokens: Sequence[int]) -> str:
    """Never fails: ids that no text gave become replacement characters."""
    return b"".join(t.to_bytes(max(1, (t.bit_length() + 7) // 8), "big") for t in tokens if t >= 0).decode(errors="replace")


def kind_of(text: str) -> Kind:
    """Text without a letter is numbers."""
    if len(CODE_MARKS.findall(text)) >= CODE_MARKS_NEEDED:
        return Kind.CODE
    return Kind.PROSE if any(letter.isalpha() for letter in text) else Kind.NUMBERS
