"""Whether an engine honours its table, judged from counters."""

from __future__ import annotations

import pytest

from tabletune_sidecar.counters import Chosen, Counters
from tabletune_sidecar.honour import Honour, judge


@pytest.mark.parametrize(
    ("chosen", "violations", "lengths", "expected"),
    [
        pytest.param({}, 0, (1, 3), Honour.IN_FORCE, id="no step yet"),
        pytest.param({(8, 3): 900}, 0, (1, 3), Honour.IN_FORCE, id="only the longest: nobody can tell"),
        pytest.param({(8, 3): 900, (96, 1): 3}, 0, (1, 3), Honour.IN_FORCE, id="too few telling steps"),
        pytest.param({(96, 1): 4}, 0, (1, 3), Honour.PROVED, id="shorter steps, none carried more"),
        pytest.param({(96, 1): 400}, 2, (1, 3), Honour.PROVED, id="strays are no proof against it"),
        pytest.param({(1, 1): 5}, 4, (1, 3), Honour.NOT_HONOURED, id="one request that always drafts the longest"),
        pytest.param({(8, 3): 90_000, (96, 1): 10}, 700, (1, 3), Honour.NOT_HONOURED, id="rare telling steps, ignored"),
        pytest.param({(8, 3): 4}, 0, (3,), Honour.PROVED, id="one length: every step tells"),
        pytest.param({(4, 0): 8}, 0, (0, 1, 2), Honour.PROVED, id="length 0 is shorter too"),
    ],
)
def test_judges(chosen: Chosen, violations: int, lengths: tuple[int, ...], expected: Honour) -> None:
    assert judge(Counters(chosen=chosen, violations=violations), lengths).honour is expected
