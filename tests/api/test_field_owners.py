"""Who wrote the engine's arguments, by the field managers of a real API server, and which fields a roll-out makes ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from api_server import Api
from test_workloads import CONFIG, example, path, roll

from tabletune_operator.drift import read_drift
from tabletune_operator.loan import FIELD_MANAGER
from tabletune_operator.owners import find_owner, find_writer
from tabletune_operator.restore import restore

ENGINE = "modelserver"
ARGO = "argocd-controller"


def one(body: dict[str, Any]) -> str:
    return f"{path(body['metadata']['namespace'])}/{body['metadata']['name']}"


def applied(api: Api, namespace: str, manager: str) -> dict[str, Any]:
    wanted = example(namespace)
    return api.apply(f"{path(namespace)}/{wanted['metadata']['name']}", wanted, manager=manager)


def test_a_manifest_that_is_applied_again_is_a_put_back_of_its_manager(api: Api, namespace: str) -> None:
    rolled = roll(api, applied(api, namespace, ARGO), CONFIG)
    assert (read_drift(rolled).put_back, read_drift(rolled).launched) == (False, CONFIG)
    back = applied(api, namespace, ARGO)
    writer = find_writer(back, ENGINE, read_drift(back).arguments)
    assert writer is not None and writer.at is not None
    assert (writer.manager, read_drift(back).put_back) == (ARGO, True)
    assert read_drift(back).foreign is not None
    again = roll(api, back, CONFIG)
    assert (read_drift(again).put_back, read_drift(again).foreign) == (False, None)


def test_an_update_of_the_arguments_is_its_managers(api: Api, namespace: str) -> None:
    rolled = roll(api, applied(api, namespace, ARGO), CONFIG)
    (engine,) = rolled["spec"]["template"]["spec"]["containers"]
    engine["args"] = [*engine["args"][:-2], "--speculative-config", '{"method":"ngram","num_speculative_tokens":5}']
    edited = api.update(one(rolled), rolled, manager="kubectl-edit")
    writer = find_writer(edited, ENGINE, read_drift(edited).arguments)
    assert writer is not None
    assert (writer.manager, read_drift(edited).put_back) == ("kubectl-edit", False)


def test_what_we_give_back_ourselves_is_nobodys(api: Api, namespace: str) -> None:
    rolled = roll(api, applied(api, namespace, ARGO), CONFIG)
    assert find_writer(api.update(one(rolled), restore(rolled), manager=FIELD_MANAGER), ENGINE) is None


def test_argo_cd_is_known_by_its_label_and_its_manager_together(api: Api, namespace: str) -> None:
    wanted = example(namespace)
    wanted["metadata"].setdefault("labels", {})["app.kubernetes.io/instance"] = "serving"
    target = f"{path(namespace)}/{wanted['metadata']['name']}"
    assert find_owner(api.apply(target, wanted, manager="kubectl")) is None
    found = find_owner(api.apply(target, wanted, manager=ARGO))
    assert found is not None
    assert found.name == "Argo CD application serving"


@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
def test_one_manager_and_only_the_fields_that_are_needed(api: Api, namespace: str, config: dict[str, Any] | None) -> None:
    rolled = roll(api, applied(api, namespace, ARGO), config)
    (ours,) = (entry for entry in rolled["metadata"]["managedFields"] if entry["manager"] == FIELD_MANAGER)
    fields = set(leaves(ours["fieldsV1"]))
    taken = {leaf for leaf in fields if any(word in leaf for word in ("replicas", "strategy", "selector"))}
    assert taken == set()
    of_engine = {leaf.partition(f'k:{{"name":"{ENGINE}"}}/')[2].split("/")[0] for leaf in fields if f'k:{{"name":"{ENGINE}"}}/' in leaf}
    assert of_engine <= {"f:name", "f:args", "f:command", "f:env", "f:volumeMounts"}


def leaves(fields: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for key, below in fields.items():
        if key == ".":
            continue
        if below:
            yield from leaves(below, f"{at}/{key}")
        else:
            yield f"{at}/{key}"
