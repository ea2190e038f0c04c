"""How many replicas more and fewer a roll-out makes, rounded as the controllers of Kubernetes round."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune_operator.strategy import Strategy, strategy_of


def deployment(replicas: int, **update: Any) -> dict[str, Any]:
    strategy = {"type": "RollingUpdate", "rollingUpdate": update} if update else {}
    return {"kind": "Deployment", "spec": {"replicas": replicas, "strategy": strategy}}


@pytest.mark.parametrize(
    ("given", "surge", "unavailable"),
    [
        pytest.param(deployment(1), 1, 0, id="defaults, 1 replica"),
        pytest.param(deployment(3), 1, 0, id="defaults, 3 replicas"),
        pytest.param(deployment(4), 1, 1, id="defaults, 4 replicas"),
        pytest.param(deployment(10), 3, 2, id="a surge is rounded up, the unavailable down"),
        pytest.param(deployment(2, maxSurge=0, maxUnavailable=1), 0, 1, id="numbers"),
        pytest.param(deployment(2, maxSurge="0%", maxUnavailable="10%"), 0, 1, id="both come to 0: 1 unavailable"),
        pytest.param(deployment(2, maxSurge=0, maxUnavailable="100%"), 0, 2, id="all at once"),
        pytest.param(deployment(2, maxSurge=0, maxUnavailable=5), 0, 2, id="no more than there are"),
        pytest.param({"kind": "Deployment", "spec": {"replicas": 3, "strategy": {"type": "Recreate"}}}, 0, 3, id="Recreate"),
        pytest.param({"kind": "StatefulSet", "spec": {"replicas": 3}}, 0, 1, id="StatefulSet"),
        pytest.param({"kind": "StatefulSet", "spec": {"updateStrategy": {"type": "OnDelete"}}}, 0, 0, id="OnDelete replaces none"),
        pytest.param(
            {"kind": "StatefulSet", "spec": {"replicas": 3, "updateStrategy": {"rollingUpdate": {"maxUnavailable": "40%"}}}},
            0,
            2,
            id="a StatefulSet rounds up",
        ),
        pytest.param({"kind": "LeaderWorkerSet", "spec": {"replicas": 3}}, 0, 1, id="LeaderWorkerSet"),
    ],
)
def test_surge_and_unavailable(given: dict[str, Any], surge: int, unavailable: int) -> None:
    assert strategy_of(given) == Strategy(surge, unavailable)
