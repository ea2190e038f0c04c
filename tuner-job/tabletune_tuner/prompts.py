"""The prompts that acceptance is counted on: a shipped sample, or a user's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from tabletune_tuner.outcome import FailedError
from tabletune_tuner.texts import order_bits, repeated_share, split_units

SAMPLES = ("chat", "code", "mathematics")
MAX_FILE_BYTES = 16 << 20
MAX_PROMPT_CHARACTERS = 200_000
LEAST_ORDERED_UNITS = 600  # words; fewer say nothing about their order
LEAST_ORDER_BITS = 0.08  # written text of that length has 0.11 and more, random text 0.05 and less; both grow with the length
LEAST_REPEATING_UNITS = 50
REPEATED_GROUP = 5
MOST_REPEATED_SHARE = 0.5  # of groups of five words; prose and code have up to 0.2


@dataclass(frozen=True, slots=True)
class Prompts:
    """`kinds`: of each text. `warnings`: why acceptance on these texts may not be that of traffic."""

    texts: tuple[str, ...]
    kinds: tuple[str, ...]
    source: str
    warnings: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Twelve hex digits of the texts in their order."""
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()[:12]


def read_prompts(file: Path | None, count: int) -> Prompts:
    """The first `count` prompts of a file, or of the shipped sample (the kinds in turn). Raises FailedError."""
    source = "shipped sample" if file is None else file.name
    found = _read_sample() if file is None else [(source, text) for text in _read_file(file)]
    kinds, texts = zip(*found, strict=True)
    chosen = texts[:count]
    warnings = judge(chosen)
    if len(texts) < count:
        warnings = (*warnings, f"{source} has {len(texts)} prompts and {count} were asked for; all of them are used.")
    return Prompts(chosen, kinds[:count], source, warnings)


def judge(texts: Sequence[str]) -> tuple[str, ...]:
    """Warnings about prompts whose acceptance would mislead."""
    warnings: list[str] = []
    different = len(set(texts))
    if different * 2 < len(texts):
        warnings.append(
            f"Only {different} of {len(texts)} prompts are different: acceptance may be that of these few. Give prompts from real traffic."
        )
    units = split_units(list(dict.fromkeys(texts)))
    count = sum(map(len, units))
    if count >= LEAST_ORDERED_UNITS and order_bits(units) < LEAST_ORDER_BITS:
        warnings.append(
            "The prompts look random (their words follow each other as if drawn by lot): acceptance will be far below that of real text."
        )
    repeated = repeated_share(units, REPEATED_GROUP)
    if count >= LEAST_REPEATING_UNITS and repeated > MOST_REPEATED_SHARE:
        warnings.append(
            f"The prompts repeat the same text ({repeated * 100:.0f} % of their groups of {REPEATED_GROUP} words were there before): "
            "acceptance will be above that of real text. Right only if traffic is so too, as with one long system prompt."
        )
    return tuple(warnings)


def _read_sample() -> list[tuple[str, str]]:
    """Kind and text, the kinds in turn."""
    kinds = []
    for name in SAMPLES:
        text = files("tabletune_tuner").joinpath("samples", f"{name}.jsonl").read_text(encoding="utf-8")
        kinds.append([(name, json.loads(line)["prompt"]) for line in text.splitlines()])
    return [prompt for group in zip_longest(*kinds) for prompt in group if prompt is not None]


def _read_file(file: Path) -> list[str]:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise _refuse(file, f"has {size:,} bytes; at most {MAX_FILE_BYTES:,} are read", "Keep a sample of a few hundred prompts")
        raw = file.read_bytes()
    except OSError as error:
        raise _refuse(file, f"cannot be read ({error.strerror})", "Give a UTF-8 text file with one prompt a line") from error
    prompts: list[str] = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise _refuse(file, f"is not UTF-8 in line {number}", "Convert it, as with iconv -t UTF-8") from error
        if len(text) > MAX_PROMPT_CHARACTERS:
            raise _refuse(
                file, f"has {len(text):,} characters in line {number}; at most {MAX_PROMPT_CHARACTERS:,}", "Write one prompt a line"
            )
        if text:
            prompts.append(text)
    if not prompts:
        raise _refuse(file, "holds no prompt", "Write one prompt a line")
    return prompts


def _refuse(file: Path, problem: str, cure: str) -> FailedError:
    return FailedError("PromptsUnusable", f"The prompts file {file} {problem}. {cure}.")
