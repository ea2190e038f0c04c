"""What can be said of texts without a model: whether they are written or drawn by lot, and how much of them repeats. Pure.

A unit is a word; where a script writes no spaces, a character. Thresholds were set on translated messages in thirteen languages,
documentation and source code on one side, and on random letters, words and tokens in six scripts on the other.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import log2

JUDGED_CHARACTERS = 200_000
"""Of all texts together, each cut to an equal share: enough to judge, and quick."""
LONGEST_WORD = 15  # mean characters; above, these are no words (random letters, data), and characters are compared
_WITHOUT_SPACES = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # Thai to Khmer, kana, Han, Hangul
_UNIT = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W_{_WITHOUT_SPACES}]+")

Units = tuple[str, ...]


def split_units(texts: Sequence[str]) -> tuple[Units, ...]:
    """The units of each text, in lower case."""
    share = max(JUDGED_CHARACTERS // max(len(texts), 1), 1)
    shortened = [text[:share].lower() for text in texts]
    found = [tuple(_UNIT.findall(text)) for text in shortened]
    count = sum(map(len, found))
    if sum(len(unit) for units in found for unit in units) > LONGEST_WORD * count:
        return tuple(tuple(character for character in text if not character.isspace()) for text in shortened)
    return tuple(found)


def order_bits(texts: Sequence[Units]) -> float:
    """What a unit tells about the next one, in bits, beyond what it tells in the same units shuffled: about 0 in random text.

    It is the difference of two plug-in estimates of mutual information, which have the same bias; the units' own entropies
    are the same in both and cancel, so that the entropies of the pairs remain: `H(shuffled pairs) - H(pairs)`.
    """
    shuffled = [unit for units in texts for unit in units]
    random.Random(0).shuffle(shuffled)  # the same texts give the same answer
    rest = iter(shuffled)
    by_lot = [tuple(next(rest) for _ in units) for units in texts]
    return _pair_entropy(by_lot) - _pair_entropy(texts)


def repeated_share(texts: Iterable[Units], group: int) -> float:
    """Share of the groups of so many units that were there before, in this text or an earlier one; 0 without any."""
    seen: set[Units] = set()
    count = 0
    for units in texts:
        for found in zip(*(units[at:] for at in range(group)), strict=False):
            count += 1
            seen.add(found)
    return 1 - len(seen) / count if count else 0.0


def _pair_entropy(texts: Iterable[Units]) -> float:
    pairs = Counter(pair for units in texts for pair in pairwise(units))
    count = pairs.total()
    return -sum(n / count * log2(n / count) for n in pairs.values())
