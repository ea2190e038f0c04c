"""The roll-out and the way back: only our fields, one flag, and a template that is byte for byte what it was."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from deployments import llm_d, with_container
from hypothesis import given, settings
from hypothesis import strategies as st
from server_side_apply import apply

from tabletune.argv import fold_speculative_config
from tabletune_operator.crd import Controller
from tabletune_operator.pods import OwnImage
from tabletune_operator.restore import RecordError, is_intact, restore, restores_exactly, rolled_digest
from tabletune_operator.rollout import Rollout, RolloutRequest, build_rollout
from tabletune_operator.target import TargetError, parse_target

CONFIG = {
    "method": "eagle3",
    "model": "d",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 3], [65, 128, 1]],
}


def rollout(deployment: dict[str, Any], config: dict[str, Any] | None = CONFIG, *, python_path: str = "") -> Rollout:
    target = parse_target(restore(deployment), None)
    image = OwnImage("tabletune.local/tabletune:dev", "IfNotPresent")
    return build_rollout(RolloutRequest("chat", target, config, Controller(), image, python_path))


def roll(deployment: dict[str, Any], config: dict[str, Any] | None = CONFIG, *, python_path: str = "") -> dict[str, Any]:
    return apply(deployment, rollout(deployment, config, python_path=python_path).apply)


def engine(deployment: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return next(c for c in containers if c["name"] == "modelserver")


def variable(deployment: dict[str, Any], name: str) -> str | None:
    return next((e.get("value") for e in engine(deployment).get("env", []) if e["name"] == name), None)


def canonical(value: Any) -> str:
    return json.dumps(value)


def test_sends_only_our_fields() -> None:
    sent = rollout(llm_d()).apply
    assert sent["metadata"]["uid"] == "d-1"
    assert sent["spec"].keys() == {"template"}
    assert sent["spec"]["template"]["metadata"]["labels"] == {"tabletune.io/drafttable": "chat"}
    pod = sent["spec"]["template"]["spec"]
    assert pod.keys() == {"initContainers", "containers", "volumes"}
    (container,) = pod["containers"]
    assert container.keys() == {"name", "args", "env", "volumeMounts"}
    assert [c["name"] for c in pod["initContainers"]] == ["tabletune-plugin", "tabletune-sidecar"]
    assert [v["name"] for v in pod["volumes"]] == ["tabletune", "tabletune-run", "tabletune-files"]


def test_rolls_exactly_one_flag_the_plugin_and_the_sidecar() -> None:
    rolled = roll(llm_d())
    args = engine(rolled)["args"]
    assert args.count("--speculative-config") == 1
    assert fold_speculative_config(args).config == CONFIG
    assert args[:5] == engine(llm_d())["args"][:5]
    assert variable(rolled, "PYTHONPATH") == "/tabletune/engine"
    assert variable(rolled, "TABLETUNE_SOCKET") == "/tabletune/run/engine.sock"
    assert variable(rolled, "USER") == "llm-d"
    sidecar = rolled["spec"]["template"]["spec"]["initContainers"][1]
    assert sidecar["restartPolicy"] == "Always"
    assert not {"readinessProbe", "startupProbe"} & sidecar.keys()
    options = dict(zip(sidecar["args"][::2], sidecar["args"][1::2], strict=True))
    assert options == {
        "--socket": "/tabletune/run/engine.sock", "--files": "/tabletune/files", "--state-file": "/tabletune/run/sidecar.json",
        "--engine-url": "http://127.0.0.1:8000", "--mode": "Track", "--prior-weight": "2000", "--rebuild-every-steps": "500",
        "--explore-every-steps": "50", "--prior-decay": "Keep", "--hysteresis": "0", "--port": "9478",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("probe", "seconds"),
    [
        pytest.param({"periodSeconds": 10, "failureThreshold": 60}, "10", id="never more than this"),
        pytest.param({"initialDelaySeconds": 20, "periodSeconds": 10, "failureThreshold": 10}, "6", id="a twentieth of the start"),
        pytest.param({"periodSeconds": 1, "failureThreshold": 3}, "1", id="little time"),
        pytest.param(None, "10", id="no probe waits"),
    ],
)
def test_lengths_are_run_before_a_replica_is_ready_within_its_start_deadline(probe: dict[str, int] | None, seconds: str) -> None:
    deployment = with_container(startupProbe=probe)
    rolled = roll(deployment)
    assert variable(rolled, "TABLETUNE_WARM_UP_SECONDS") == seconds
    assert variable(restore(rolled), "TABLETUNE_WARM_UP_SECONDS") is None


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([{"name": "TABLETUNE_WARM_UP_SECONDS", "value": "0"}], id="none"),
        pytest.param([{"name": "TABLETUNE_WARM_UP_SECONDS"}], id="an empty value"),
        pytest.param(
            [{"name": "TABLETUNE_WARM_UP_SECONDS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}], id="a reference"
        ),
    ],
)
def test_a_warm_up_that_its_user_set_stays_before_and_after(env: list[dict[str, Any]]) -> None:
    deployment = with_container(env=env)
    rolled = roll(deployment)
    assert [e for e in engine(rolled)["env"] if e["name"] == "TABLETUNE_WARM_UP_SECONDS"] == env
    assert all(e["name"] != "TABLETUNE_WARM_UP_SECONDS" for e in engine(rollout(deployment).apply)["env"])
    assert is_intact(rolled)
    assert restore(rolled) == deployment
    assert restores_exactly(rolled)


def test_a_warm_up_that_its_user_sets_on_a_rolled_target_is_theirs_from_then_on() -> None:
    rolled = roll(llm_d())
    (ours,) = (e for e in engine(rolled)["env"] if e["name"] == "TABLETUNE_WARM_UP_SECONDS")
    ours["value"] = "0"
    assert not is_intact(rolled)
    theirs = restore(rolled)
    assert variable(theirs, "TABLETUNE_WARM_UP_SECONDS") == "0"
    again = roll(theirs)
    assert variable(again, "TABLETUNE_WARM_UP_SECONDS") == "0"
    assert restore(again) == theirs


@pytest.mark.parametrize(
    ("env", "seen", "merged"),
    [
        pytest.param(None, "", "/tabletune/engine", id="none"),
        pytest.param([{"name": "PYTHONPATH", "value": "/a:/b"}], "/a:/b", "/tabletune/engine:/a:/b", id="the pod's"),
        pytest.param(None, "/image/lib", "/tabletune/engine:/image/lib", id="the image's"),
        pytest.param([{"name": "PYTHONPATH"}], "", "/tabletune/engine", id="an empty one: an empty entry would be the working folder"),
        pytest.param(None, "/tabletune/engine:/image/lib", "/tabletune/engine:/image/lib", id="seen with our folder in it"),
    ],
)
def test_python_path_is_merged(env: list[dict[str, str]] | None, seen: str, merged: str) -> None:
    assert variable(roll(with_container(env=env), python_path=seen), "PYTHONPATH") == merged


@pytest.mark.parametrize(
    ("env", "merged"),
    [
        pytest.param(None, None, id="unset: vLLM loads every plugin"),
        pytest.param([{"name": "VLLM_PLUGINS", "value": "lora_resolver"}], "tabletune,lora_resolver", id="a list of some"),
        pytest.param([{"name": "VLLM_PLUGINS", "value": ""}], "tabletune", id="none of them"),
    ],
)
def test_names_our_plugin_where_plugins_are_named(env: list[dict[str, str]] | None, merged: str | None) -> None:
    deployment = with_container(env=env)
    rolled = roll(deployment)
    assert variable(rolled, "VLLM_PLUGINS") == merged
    assert restore(rolled)["spec"] == deployment["spec"]


def test_python_path_from_elsewhere_is_refused_unless_nothing_is_added() -> None:
    deployment = with_container(env=[{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}])
    with pytest.raises(TargetError) as refused:
        rollout(deployment)
    assert refused.value.reason == "EnvironmentNotMergeable"
    assert restore(roll(deployment, None)) == deployment


def test_flags_are_written_where_they_live() -> None:
    in_command = with_container(command=["vllm", "serve", "m", "--spec-method=ngram", "--spec-tokens=2"], args=None)
    assert "args" not in engine(roll(in_command))
    assert fold_speculative_config(engine(roll(in_command))["command"]).config == CONFIG
    in_both = with_container(command=["vllm", "serve", "m", "--spec-method=ngram"], args=["--spec-tokens=2"])
    assert engine(roll(in_both))["command"] == ["vllm", "serve", "m"]
    assert fold_speculative_config(engine(roll(in_both))["args"]).config == CONFIG
    for deployment in (in_command, in_both):
        assert restore(roll(deployment)) == deployment


def test_off_takes_the_flag_away_and_adds_nothing() -> None:
    sent = rollout(llm_d(), None).apply["spec"]["template"]["spec"]
    assert sent.keys() == {"containers"}
    rolled = roll(llm_d(), None)
    assert "tabletune.io/drafttable" not in rolled["spec"]["template"]["metadata"]["labels"]
    assert fold_speculative_config(engine(rolled)["args"]).config is None
    assert restore(rolled) == llm_d()


def test_digest_follows_what_is_rolled() -> None:
    assert rolled_digest(llm_d()) is None
    rolled = roll(llm_d())
    assert rolled_digest(rolled) == rollout(llm_d()).digest == rollout(rolled).digest
    assert rollout(llm_d(), {**CONFIG, "num_speculative_tokens": 2}).digest != rolled_digest(rolled)


def test_is_intact_until_somebody_changes_a_field_of_ours() -> None:
    rolled = roll(llm_d())
    assert is_intact(llm_d())
    assert is_intact(rolled)
    beside = copy.deepcopy(rolled)
    engine(beside)["env"].append({"name": "X", "value": "1"})
    beside["spec"]["template"]["spec"]["initContainers"][1]["terminationMessagePath"] = "/dev/termination-log"
    assert is_intact(beside)
    for damage in (
        lambda d: engine(d)["args"].append("--enforce-eager"),
        lambda d: d["spec"]["template"]["spec"]["initContainers"].pop(),
        lambda d: d["spec"]["template"]["spec"]["volumes"].pop(),
        lambda d: engine(d).update(env=[]),
    ):
        damaged = copy.deepcopy(rolled)
        damage(damaged)
        assert not is_intact(damaged)


def test_restores_what_the_user_wrote_meanwhile() -> None:
    rolled = roll(llm_d())
    engine(rolled)["args"].append("--enforce-eager")
    engine(rolled)["image"] = "vllm:new"
    engine(rolled)["env"].append({"name": "X", "value": "1"})
    rolled["spec"]["replicas"] = 5
    back = restore(rolled)
    assert not restores_exactly(rolled)
    assert fold_speculative_config(engine(back)["args"]).config == fold_speculative_config(engine(llm_d())["args"]).config
    assert "--enforce-eager" in engine(back)["args"]
    assert (engine(back)["image"], variable(back, "X"), variable(back, "PYTHONPATH")) == ("vllm:new", "1", None)
    assert back["spec"]["replicas"] == 5


def test_keeps_another_speculative_config_of_the_user() -> None:
    rolled = roll(llm_d())
    engine(rolled)["args"] = ["m", "--speculative-config.method=ngram"]
    assert engine(restore(rolled))["args"] == ["m", "--speculative-config.method=ngram"]


def test_takes_only_our_folder_out_of_a_python_path_that_was_changed() -> None:
    rolled = roll(llm_d())
    for entry in engine(rolled)["env"]:
        if entry["name"] == "PYTHONPATH":
            entry["value"] += ":/theirs"
    assert variable(restore(rolled), "PYTHONPATH") == "/theirs"


@pytest.mark.parametrize("record", ["{", "[]", '{"formatVersion": 1}', json.dumps({"formatVersion": 9, "container": "x"})])
def test_damaged_record_is_refused_and_named(record: str) -> None:
    rolled = roll(llm_d())
    rolled["metadata"]["annotations"]["tabletune.io/record"] = record
    for read in (restore, is_intact, restores_exactly):
        with pytest.raises(RecordError, match=r"tabletune.io/record of Deployment optimized-baseline"):
            read(rolled)


NAMES = st.sampled_from(["a", "b", "shm", "HF_TOKEN", "USER"])
VARIABLES = st.one_of(
    st.builds(lambda n, v: {"name": n, "value": v}, NAMES, st.text("ab:/$()", min_size=1)),
    st.builds(lambda n: {"name": n, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, NAMES),
    st.builds(lambda v: {"name": "PYTHONPATH", "value": v}, st.sampled_from(["/x", "/x:/y", "$(USER)/lib"])),
    st.builds(lambda v: {"name": "VLLM_PLUGINS", "value": v}, st.sampled_from(["a", "a,b", ""])),
)
SPECULATIVE = st.sampled_from([
    [], ["--speculative-config", '{"method":"ngram","num_speculative_tokens":2}'], ["--spec-method=ngram", "--spec-tokens", "2"],
    ["-sc.method", "ngram", "--speculative_config.num_speculative_tokens=4"], ["--speculative_config={}"],
])  # fmt: skip
OTHERS = st.lists(st.sampled_from(["--port=8000", "--enforce-eager", "--max-num-seqs=8", "--x=$(USER)"]), max_size=3)
MOUNTS = st.lists(st.builds(lambda n: {"name": n, "mountPath": f"/{n}"}, NAMES), max_size=2, unique_by=lambda m: m["mountPath"])


@st.composite
def deployments(draw: st.DrawFn) -> dict[str, Any]:
    """Many shapes of a pod template that the API server could hold: no empty list, no name twice."""
    args = [*draw(OTHERS), *draw(SPECULATIVE), *draw(OTHERS)]
    commands: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"command": ["vllm", "serve"], "args": ["m", *args]},
                {"command": ["vllm", "serve", "m", *args]},
                {"args": ["m", *args], "image": "vllm-openai"},
            ]
        )
    )
    container = {
        "name": "modelserver", "image": "i", **commands, "env": draw(st.lists(VARIABLES, max_size=5, unique_by=lambda e: e["name"])),
        "volumeMounts": draw(MOUNTS),
    }  # fmt: skip
    if any("valueFrom" in e and e["name"] == "USER" for e in container["env"]):
        container["env"] = []
    pod = {
        "initContainers": draw(st.lists(st.builds(lambda n: {"name": n}, NAMES), max_size=2, unique_by=lambda c: c["name"])),
        "containers": draw(st.sampled_from([[container], [{"name": "other"}, container], [container, {"name": "other"}]])),
        "volumes": draw(st.lists(st.builds(lambda n: {"name": n, "emptyDir": {}}, NAMES), max_size=2, unique_by=lambda v: v["name"])),
    }
    metadata = draw(st.sampled_from([{}, {"labels": {"a": "b"}}, {"annotations": {"x": "y"}}, {"creationTimestamp": None}]))
    annotations = draw(st.sampled_from([{}, {"annotations": {"deployment.kubernetes.io/revision": "3"}}]))
    for parent in (container, pod):
        for empty in [name for name, value in parent.items() if value == []]:
            del parent[empty]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n", "uid": "u", "resourceVersion": "1", **annotations},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": metadata, "spec": pod}},
    }


CONFIGS = st.sampled_from([CONFIG, {"method": "ngram", "num_speculative_tokens": 1}, None])


@settings(max_examples=60)
@given(deployments(), CONFIGS, st.sampled_from(["", "/image/lib"]))
def test_restore_undoes_a_rollout_byte_for_byte(deployment: dict[str, Any], config: dict[str, Any] | None, python_path: str) -> None:
    rolled = roll(deployment, config, python_path=python_path)
    assert is_intact(rolled)
    assert restores_exactly(rolled)
    assert canonical(restore(rolled)) == canonical(deployment)
    assert restore(deployment) == deployment


@settings(max_examples=60)
@given(deployments(), CONFIGS, CONFIGS)
def test_restore_undoes_a_second_rollout_too(
    deployment: dict[str, Any], first: dict[str, Any] | None, second: dict[str, Any] | None
) -> None:
    once = rollout(deployment, first)
    rolled = apply(deployment, once.apply)
    twice = rollout(rolled, second)
    assert twice.apply == rollout(deployment, second).apply
    rolled = apply(rolled, twice.apply, before=once.apply)
    assert is_intact(rolled)
    assert canonical(restore(rolled)) == canonical(deployment)
