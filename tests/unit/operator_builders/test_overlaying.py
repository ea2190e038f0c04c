"""Our fields laid over an object and taken out again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune_operator.overlaying import lay_over, take_out

OURS = {
    "annotations": {"tabletune.io/table-digest": "abc"},
    "template": {
        "initContainers": [{"name": "tabletune-sidecar", "image": "i"}],
        "containers": [{"name": "main", "args": ["a", "b"], "env": [{"name": "FLAGS", "value": "new"}]}],
        "volumes": [{"name": "tabletune", "emptyDir": {}}],
    },
}

NAMES = st.sampled_from(["main", "other", "tabletune-sidecar", "FLAGS", "tabletune"])
VALUES = st.sampled_from(["x", "y", "new"])
ENTRIES = st.lists(st.fixed_dictionaries({"name": NAMES, "value": VALUES}), unique_by=lambda e: e["name"], max_size=3)
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": NAMES}, optional={"args": st.lists(VALUES, max_size=3), "env": ENTRIES, "image": VALUES}),
    unique_by=lambda c: c["name"],
    max_size=3,
)
TEMPLATES = st.fixed_dictionaries({"containers": CONTAINERS}, optional={"initContainers": CONTAINERS, "volumes": ENTRIES})
SPECS = st.fixed_dictionaries(
    {"model": VALUES}, optional={"template": TEMPLATES, "annotations": st.dictionaries(NAMES, VALUES, max_size=2), "replicas": VALUES}
)


@given(SPECS)
def test_what_was_laid_over_can_be_taken_out_byte_for_byte(before: dict[str, Any]) -> None:
    assert take_out(lay_over(before, OURS), before, OURS) == before


@given(SPECS)
def test_laying_over_twice_is_laying_over_once(before: dict[str, Any]) -> None:
    once = lay_over(before, OURS)
    assert lay_over(once, OURS) == once


def test_nothing_is_left_of_what_was_not_there() -> None:
    assert take_out(lay_over(None, OURS), None, OURS) is None
    assert take_out(lay_over({"model": "m"}, OURS), {"model": "m"}, OURS) == {"model": "m"}


def changed(live: dict[str, Any]) -> dict[str, Any]:
    (main,) = live["template"]["containers"]
    main["image"] = "theirs"
    main["env"].append({"name": "ADDED", "value": "1"})
    live["replicas"] = 3
    return live


def test_what_a_defaulting_webhook_adds_to_ours_goes_with_it() -> None:
    """KServe's gives every container empty resources, also one that is only there because we wrote it."""
    live = copy.deepcopy(lay_over({"model": "m"}, OURS))
    for container in (*live["template"]["containers"], *live["template"]["initContainers"]):
        container["resources"] = {}
    assert take_out(live, {}, OURS) == {"model": "m"}
    live["template"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    assert take_out(live, {}, OURS)["template"] == {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]}


def test_what_others_wrote_meanwhile_stays() -> None:
    before = {"model": "m", "template": {"containers": [{"name": "main", "env": [{"name": "FLAGS", "value": "old"}]}]}}
    left = take_out(changed(lay_over(before, OURS)), before, OURS)
    env = [{"name": "FLAGS", "value": "old"}, {"name": "ADDED", "value": "1"}]
    assert left == {"model": "m", "replicas": 3, "template": {"containers": [{"name": "main", "image": "theirs", "env": env}]}}


@pytest.mark.parametrize("args", [["a", "b", "c"], []])
def test_a_list_that_others_wrote_since_is_theirs(args: list[str]) -> None:
    before = {"template": {"containers": [{"name": "main", "args": ["x"]}]}}
    live = lay_over(before, OURS)
    live["template"]["containers"][0]["args"] = args
    left = take_out(live, before, OURS)
    assert left["template"]["containers"] == [{"name": "main", "args": args}]
