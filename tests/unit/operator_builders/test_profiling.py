"""The profiling Job: the engine as it is, out of reach of every selector, and nothing of ours that a restricted namespace refuses."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from deployments import leader_worker_set, llm_d, spec, with_container

from tabletune.profile import Fingerprint
from tabletune_operator.crd import DraftTableSpec
from tabletune_operator.pods import OwnImage, config_map_name, job_name
from tabletune_operator.profiling import JobRequest, build_job, build_job_access, find_matching_selectors
from tabletune_operator.target import parse_target, plan_speculation

SPECULATIVE = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
FINGERPRINT = Fingerprint.of({"gpuProduct": "NVIDIA-H200"})
POOL = {"metadata": {"name": "optimized-baseline"}, "spec": {"selector": {"matchLabels": {"llm-d.ai/guide": "optimized-baseline"}}}}


def request(
    deployment: dict[str, Any] | None = None, wanted: DraftTableSpec | None = None, *, services: tuple[dict[str, Any], ...] = ()
) -> JobRequest:
    target, wanted = parse_target(deployment or llm_d(), None), wanted or spec()
    return JobRequest(
        draft_table="chat",
        uid="t-1",
        spec=wanted,
        target=target,
        speculation=plan_speculation(target, wanted),
        fingerprint=FINGERPRINT,
        image=OwnImage("tabletune.local/tabletune:dev", "IfNotPresent"),
        node_label=("nvidia.com/gpu.product", "NVIDIA-H200"),
        services=services,
        pools=(POOL,),
    )


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in [*pod["initContainers"], *pod["containers"]] if c["name"] == name)


def test_engine_is_the_users_but_for_what_starts_and_probes_it() -> None:
    pod, users = pod_of(build_job(request())), llm_d()["spec"]["template"]["spec"]
    engine, (original,) = container(pod, "modelserver"), users["containers"]
    assert [c["name"] for c in pod["initContainers"]] == ["tabletune-plugin", "modelserver"]
    assert [c["name"] for c in pod["containers"]] == ["tuner"]
    assert engine["restartPolicy"] == "Always"
    assert engine["command"] == ["python3", "/tabletune/engine/tabletune_engine/supervise.py", "--run-dir", "/tabletune/run"]
    assert engine.keys() - original.keys() == {"restartPolicy"}
    assert original.keys() - engine.keys() == {"args", "ports", "lifecycle", "startupProbe", "readinessProbe", "livenessProbe"}
    assert {k: engine[k] for k in ("image", "env", "resources")} == {k: original[k] for k in ("image", "env", "resources")}
    assert engine["volumeMounts"][: len(original["volumeMounts"])] == original["volumeMounts"]
    assert pod["volumes"][: len(users["volumes"])] == users["volumes"]
    assert pod["serviceAccountName"] == users["serviceAccountName"]


def test_sidecars_go_and_the_users_own_preparation_stays() -> None:
    deployment = llm_d()
    pod = deployment["spec"]["template"]["spec"]
    pod["initContainers"] = [{"name": "routing-proxy", "restartPolicy": "Always"}, {"name": "download"}]
    pod["containers"].append({"name": "log-shipper", "image": "x"})
    built = pod_of(build_job(request(deployment)))
    assert [c["name"] for c in built["initContainers"]] == ["download", "tabletune-plugin", "modelserver"]
    assert [c["name"] for c in built["containers"]] == ["tuner"]


def test_a_pod_of_a_leader_worker_set_has_the_variables_that_its_controller_gives() -> None:
    workload = leader_worker_set()
    pod = workload["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    pod["initContainers"] = [{"name": "download", "image": "i"}]
    own = [{"name": "LWS_GROUP_SIZE", "value": "8"}, {"name": "HOME", "value": "/tmp"}]
    pod["containers"][0] |= {
        "env": own,
        "args": ["m", "--pipeline-parallel-size=$(LWS_GROUP_SIZE)", "--speculative-config", SPECULATIVE],
    }
    built = build_job(request(workload))
    engine, download = (container(pod_of(built), name) for name in ("modelserver", "download"))
    given = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}
    assert {entry["name"]: entry["value"] for entry in download["env"]} == given
    assert {entry["name"]: entry["value"] for entry in engine["env"]} == {**given, "HOME": "/tmp"}
    assert [entry["name"] for entry in engine["env"]][-1] == "HOME", "what is given may be used in the user's own"
    tuner = container(pod_of(built), "tuner")
    assert "--pipeline-parallel-size=1" in tuner["args"]
    assert pod["initContainers"] == [{"name": "download", "image": "i"}], "the target is as it was"
    assert pod["containers"][0]["env"] == own


def test_target_is_not_touched_by_building() -> None:
    deployment = llm_d()
    before = copy.deepcopy(deployment)
    build_job(request(deployment))
    assert deployment == before


def test_no_selector_reaches_the_pod() -> None:
    deployment = llm_d()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    labels |= {"team": "chat", "azure.workload.identity/use": "true", "app": "x", "app.kubernetes.io/part-of": "y"}
    deployment["spec"]["selector"]["matchExpressions"] = [{"key": "app", "operator": "Exists"}]
    service = {"metadata": {"name": "by-team"}, "spec": {"selector": {"team": "chat"}}}
    assert find_matching_selectors(labels, [service], [POOL]) == ("InferencePool optimized-baseline", "Service by-team")
    built = build_job(request(deployment, services=(service,)))
    assert built["spec"]["template"]["metadata"]["labels"] == {
        "azure.workload.identity/use": "true",
        "app.kubernetes.io/name": "tabletune-profile",
        "app.kubernetes.io/managed-by": "tabletune",
        "tabletune.io/drafttable": "chat",
    }
    assert find_matching_selectors(built["spec"]["template"]["metadata"]["labels"], [service], [POOL]) == ()


@pytest.mark.parametrize(
    ("services", "pools", "found"),
    [
        pytest.param([{"metadata": {"name": "s"}, "spec": {}}], [], (), id="a Service without a selector selects nothing"),
        pytest.param([{"metadata": {"name": "s"}, "spec": {"selector": {"a": "1"}}}], [], ("Service s",), id="all its labels match"),
        pytest.param([{"metadata": {"name": "s"}, "spec": {"selector": {"a": "1", "b": "2"}}}], [], (), id="one does not"),
        pytest.param([], [{"metadata": {"name": "p"}, "spec": {"selector": {"a": "1"}}}], ("InferencePool p",), id="v1alpha2 pool"),
        pytest.param([], [{"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {}}}}], ("InferencePool p",), id="takes all"),
    ],
)
def test_finds_selectors(services: list[dict[str, Any]], pools: list[dict[str, Any]], found: tuple[str, ...]) -> None:
    assert find_matching_selectors({"a": "1"}, services, pools) == found


def test_runs_on_the_targets_gpu_product() -> None:
    deployment = llm_d()
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    disk = {"key": "disk", "operator": "Exists"}
    deployment["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": [disk]}]
            }
        }
    }
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H200"]}
    affinity = pod_of(build_job(request(deployment)))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [zone, product]}, {"matchExpressions": [disk, product]}]


def test_node_pool_replaces_the_search_by_product() -> None:
    deployment = llm_d()
    deployment["spec"]["template"]["spec"] |= {"nodeSelector": {"pool": "serving"}, "tolerations": [{"key": "a", "operator": "Exists"}]}
    wanted = spec(nodePool={"nodeSelector": {"pool": "spare"}, "tolerations": [{"key": "spare", "value": "yes"}]})
    pod = pod_of(build_job(request(deployment, wanted)))
    assert pod["nodeSelector"] == {"pool": "spare"}
    assert "affinity" not in pod
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}, {"key": "spare", "operator": "Equal", "value": "yes"}]


def test_job_ends_once_and_its_clock_starts_on_the_node() -> None:
    job = build_job(request())
    pod = pod_of(job)
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"].keys() == {"backoffLimit", "template"}
    assert (pod["restartPolicy"], pod["activeDeadlineSeconds"]) == ("Never", 7200 + 300)
    assert "terminationGracePeriodSeconds" not in pod


def test_tuner_gets_the_spec_and_the_engines_command() -> None:
    wanted = spec(profile={"maxBatchSize": 64, "repeats": 5, "prompts": {"configMapRef": {"name": "mine", "key": "p"}}})
    pod = pod_of(build_job(request(wanted=wanted)))
    args = container(pod, "tuner")["args"]
    end = args.index("--")
    options = dict(zip(args[:end:2], args[1:end:2], strict=True))
    assert args[end + 1 : end + 4] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    assert json.loads(options.pop("--owner-json")) == {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "name": "chat",
        "uid": "t-1",
    }
    assert json.loads(options.pop("--fingerprint-json")) == {"gpuProduct": "NVIDIA-H200"}
    assert json.loads(options.pop("--present-json"))["num_speculative_tokens"] == 3
    assert options == {
        "--namespace": "llm-d-optimized-baseline", "--config-map": "chat-tabletune", "--job": "chat-profile", "--max-draft-length": "3",
        "--method": "eagle3", "--drafter": "RedHatAI/Qwen3-32B-speculator.eagle3", "--max-batch-size": "64", "--repeats": "5",
        "--prompt-tokens": "32", "--output-tokens": "64", "--prompt-count": "160", "--prompts-file": "/etc/tabletune/prompts/prompts.txt",
        "--temperature-milli": "700", "--timeout-seconds": "7200", "--run-dir": "/tabletune/run", "--engine-url": "http://127.0.0.1:8000",
    }  # fmt: skip
    volume = next(v for v in pod["volumes"] if v["name"] == "tabletune-prompts")
    assert volume["configMap"] == {"name": "mine", "items": [{"key": "p", "path": "prompts.txt"}]}


def test_the_tuner_gets_each_context_length() -> None:
    args = container(pod_of(build_job(request(wanted=spec(profile={"contextTokens": [1024, 8192]})))), "tuner")["args"]
    assert [args[at + 1] for at, arg in enumerate(args) if arg == "--context-tokens"] == ["1024", "8192"]


def test_dollar_signs_reach_the_tuner_as_they_are() -> None:
    deployment = with_container(args=["m", "--spec-method=ngram", "--spec-tokens=2", "--chat-template", "$$(x)"])
    assert container(pod_of(build_job(request(deployment))), "tuner")["args"][-1] == "$$(x)"


def test_only_the_tuner_gets_a_token_of_ours() -> None:
    deployment = llm_d()
    deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] = False
    pod = pod_of(build_job(request(deployment)))
    assert pod["automountServiceAccountToken"] is False
    holders = [c["name"] for c in [*pod["initContainers"], *pod["containers"]] if "tabletune-token" in str(c.get("volumeMounts"))]
    assert holders == ["tuner"]


def test_our_containers_are_restricted() -> None:
    pod = pod_of(build_job(request()))
    for name in ("tabletune-plugin", "tuner"):
        security = container(pod, name)["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 65532
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not security["allowPrivilegeEscalation"]
        assert security["readOnlyRootFilesystem"]
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_priority_is_the_drafttables() -> None:
    deployment = llm_d()
    deployment["spec"]["template"]["spec"] |= {"priorityClassName": "serving", "priority": 1000, "preemptionPolicy": "Never"}
    pod = pod_of(build_job(request(deployment, spec(profile={"podTemplate": {"priorityClassName": "low"}}))))
    assert pod["priorityClassName"] == "low"
    assert not {"priority", "preemptionPolicy"} & pod.keys()


def test_access_is_to_one_job_and_one_config_map() -> None:
    role, binding = build_job_access("chat", "t-1", parse_target(llm_d(), None))
    assert [(r["resources"], r.get("resourceNames"), r["verbs"]) for r in role["rules"]] == [
        (["jobs"], ["chat-profile"], ["get", "patch"]),
        (["configmaps"], ["chat-tabletune"], ["get", "patch"]),
        (["configmaps"], None, ["create"]),
    ]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "optimized-baseline-nvidia-gpu-vllm-sa", "namespace": "llm-d-optimized-baseline"}
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_names_fit_and_stay_apart() -> None:
    assert job_name("chat") == "chat-profile"
    assert config_map_name("chat") == "chat-tabletune"
    long = ["a" * 63, "a" * 62 + "b", "a.b", "a-b", "a" * 50 + ".b"]
    names = [job_name(name) for name in long]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and "." not in name and name.endswith("-profile") for name in names)
