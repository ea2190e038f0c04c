"""Every way in which llm-d's vLLM is started: measured with the user's own start, rolled out, watched, and given back byte for byte."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from deployments import llm_d, spec
from server_side_apply import apply

from tabletune.argv import fold_speculative_config
from tabletune.profile import Fingerprint
from tabletune_operator.command import CommandError, read_command, with_written
from tabletune_operator.crd import Controller
from tabletune_operator.drift import as_applied, read_drift
from tabletune_operator.pods import OwnImage
from tabletune_operator.profiling import JobRequest, build_job
from tabletune_operator.restore import is_intact, restore, restores_exactly
from tabletune_operator.rollout import RolloutRequest, build_rollout
from tabletune_operator.target import config_map_of, parse_target, plan_speculation

Body = dict[str, Any]
EAGLE = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}
EAGLE_JSON = json.dumps(EAGLE, separators=(",", ":"))
CONFIG = {**EAGLE, "num_speculative_tokens_per_batch_size": [[1, 96, 3], [97, 128, 1]]}
IMAGE = OwnImage("tabletune.local/tabletune:dev", "IfNotPresent")
FILES = {"serve": {"vllm.yaml": f"max-num-seqs: 64\nspeculative_config: {EAGLE_JSON}\n"}}

WIDE_EP = f"""\
# --speculative-config is measured, see below
START_RANK=$(( ${{LWS_WORKER_INDEX:-0}} * 2 ))
export VLLM_LOGGING_LEVEL=INFO
if [ -n "$DEBUG" ]; then
  export VLLM_LOGGING_LEVEL=DEBUG
fi

exec vllm serve \\
  org/model \\
  --port 8000 \\
  --tensor-parallel-size $TP_SIZE \\
  --max-num-seqs 64 \\
  --speculative-config '{EAGLE_JSON}' \\
  --kv-transfer-config '{{"kv_connector":"NixlConnector",
                         "kv_role":"kv_both"}}' \\
  --enforce-eager
"""
BENCHMARK = """\
vllm serve $MODEL_NAME \\
--port $VLLM_PORT \\
--max-num-seqs 64 \\
--tensor-parallel-size $TP \\
--disable-log-requests {more}
"""
KSERVE = """\
ACCESS_LOG_ARGS="--disable-uvicorn-access-log"
if [ "$(vllm --version)" != "0.1" ]; then
  ACCESS_LOG_ARGS="--disable-access-log-for-endpoints /health"
fi
eval "exec vllm serve /mnt/models \\
  --served-model-name "qwen" \\
  --port 8000 --max-num-seqs 64 \\
  ${ACCESS_LOG_ARGS} \\
  ${VLLM_ADDITIONAL_ARGS} \\
  $@"
"""


def served(env: Mapping[str, str] | None = None, **fields: Any) -> Body:
    """The example, started in another way: `command` and `args` are these only."""
    deployment = llm_d()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for name in ("command", "args"):
        container.pop(name)
    container |= fields
    container["env"] += [{"name": name, "value": value} for name, value in (env or {}).items()]
    return deployment


def with_file(deployment: Body) -> Body:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["volumeMounts"].append({"name": "serve", "mountPath": "/etc/vllm"})
    deployment["spec"]["template"]["spec"]["volumes"].append({"name": "serve", "configMap": {"name": "serve"}})
    return deployment


SHAPES = [
    pytest.param(served(command=["vllm", "serve"], args=["m", "--max-num-seqs=64", "--speculative-config", EAGLE_JSON]), id="guide"),
    pytest.param(
        served(command=["vllm", "serve"], args=["m", "--port", "8000", "--max_num_seqs", "64", f"--speculative_config={EAGLE_JSON}"]),
        id="modelservice vllmServe",
    ),
    pytest.param(
        served(args=["--model", "m", "--port", "8000", "--max-num-seqs", "64", "-sc.method", "eagle3", "-sc.model=org/drafter",
                     "-sc.num_speculative_tokens", "3"]),
        id="modelservice imageDefault",
    ),
    pytest.param(
        served({"TP": "1", "VLLM_PORT": "8000"}, command=["/bin/sh", "-c"],
               args=[BENCHMARK.format(more=f"--speculative-config '{EAGLE_JSON}'")]),
        id="modelservice custom, llm-d-benchmark",
    ),
    pytest.param(
        served({"TP": "1", "VLLM_PORT": "8000", "SPEC": EAGLE_JSON}, command=["bash", "-c", BENCHMARK.format(more='-sc "$SPEC"')]),
        id="the script in command, the config in a variable",
    ),
    pytest.param(served(command=["/bin/bash", "-c"], args=[WIDE_EP]), id="wide EP"),
    pytest.param(served(command=["/bin/bash", "-c"], args=[WIDE_EP.replace("INFO\n", "INFO\r\n")]), id="with carriage returns"),
    pytest.param(
        served({"VLLM_ADDITIONAL_ARGS": f"--max-model-len 8192 --speculative-config '{EAGLE_JSON}'"},
               command=["/bin/bash", "-c", KSERVE, "--"]),
        id="KServe, in its variable",
    ),
    pytest.param(
        served(command=["/bin/bash", "-c", KSERVE, "--"], args=["--speculative-config", f"'{EAGLE_JSON}'", "--x"]),
        id="KServe, in its arguments",
    ),
    pytest.param(with_file(served(command=["vllm", "serve"], args=["m", "--config", "/etc/vllm/vllm.yaml"])), id="a file"),
    pytest.param(
        with_file(served(command=["/bin/bash", "-c"], args=["vllm serve m --config /etc/vllm/vllm.yaml"])), id="a file and a script"
    ),
]  # fmt: skip


def engine(deployment: Body) -> Body:
    return next(c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == "modelserver")


def target_of(deployment: Body) -> Any:
    return parse_target(deployment, None, FILES)


def roll(deployment: Body, config: Mapping[str, Any] | None) -> Body:
    request = RolloutRequest("chat", target_of(restore(deployment)), config, Controller(), IMAGE, "")
    return apply(deployment, build_rollout(request).apply)


def flag_of(deployment: Body) -> Any:
    """What the rolled command line itself says."""
    return read_command(engine(deployment)).speculation


@pytest.mark.parametrize("deployment", SHAPES)
def test_the_present_setting_is_read(deployment: Body) -> None:
    target = target_of(deployment)
    assert target.speculation == EAGLE
    assert target.max_num_seqs == 64
    assert target.port == 8000


@pytest.mark.parametrize("config", [CONFIG, None], ids=["table", "off"])
@pytest.mark.parametrize("deployment", SHAPES)
def test_rolled_and_given_back_byte_for_byte(deployment: Body, config: Mapping[str, Any] | None) -> None:
    rolled = roll(copy.deepcopy(deployment), config)
    assert is_intact(rolled)
    assert flag_of(rolled) == config
    assert target_of(rolled).speculation == config
    assert read_drift(rolled).foreign is None
    assert restores_exactly(rolled)
    assert json.dumps(restore(rolled)["spec"]) == json.dumps(deployment["spec"])


@pytest.mark.parametrize("deployment", SHAPES)
def test_a_table_then_another_then_back(deployment: Body) -> None:
    rolled = copy.deepcopy(deployment)
    for config in (CONFIG, {"method": "ngram", "num_speculative_tokens": 2}, CONFIG):
        rolled = roll(rolled, config)
        assert flag_of(rolled) == config
    assert json.dumps(restore(rolled)["spec"]) == json.dumps(deployment["spec"])


@pytest.mark.parametrize("deployment", SHAPES)
def test_an_edit_of_the_user_is_kept_when_ours_goes(deployment: Body) -> None:
    rolled = roll(copy.deepcopy(deployment), CONFIG)
    for field in ("command", "args"):
        if field in engine(rolled):
            engine(rolled)[field] = [item.replace("64", "32").replace("max-model-len", "max-len") for item in engine(rolled)[field]]
    assert read_drift(rolled).foreign is None
    restored = restore(rolled)
    before = read_command(engine(deployment))
    after = read_command(engine(restored))
    assert after.speculation == before.speculation
    assert list(after.argv) == [word.replace("64", "32") for word in before.argv]


@pytest.mark.parametrize("deployment", SHAPES)
def test_another_speculative_config_of_the_user_is_drift_and_stays(deployment: Body) -> None:
    rolled = roll(copy.deepcopy(deployment), CONFIG)
    theirs = {"method": "mtp", "num_speculative_tokens": 1}
    written = with_written(engine(rolled), read_command(engine(rolled)).write(theirs))
    engine(rolled).update(written)
    assert read_drift(rolled).foreign == f"--speculative-config {json.dumps(theirs)}"
    assert flag_of(dict(as_applied(rolled))) == CONFIG
    assert flag_of(restore(rolled)) == theirs


@pytest.mark.parametrize("deployment", SHAPES)
def test_the_profiling_job_starts_what_the_user_starts(deployment: Body) -> None:
    target, wanted = target_of(deployment), spec()
    request = JobRequest(
        draft_table="chat", uid="u", spec=wanted, target=target, speculation=plan_speculation(target, wanted),
        fingerprint=Fingerprint.of({}), image=IMAGE, node_label=None, services=(), pools=(),
    )  # fmt: skip
    (tuner,) = build_job(request)["spec"]["template"]["spec"]["containers"]
    args = [arg.replace("$$", "$") for arg in tuner["args"]]
    start = args[args.index("--") + 1 :]
    shown = json.loads(args[args.index("--engine-args-json") + 1]) if "--engine-args-json" in args else start
    assert "--max-num-seqs" in " ".join(shown).replace("_", "-")
    assert fold_speculative_config(start).config is None
    assert ("--explicit-off" in args) == ("serve" in (config_map_of(deployment, None) or ""))
    assert args[args.index("--present-json") + 1] == json.dumps(EAGLE)


def test_a_file_stays_as_it_is_and_off_is_said() -> None:
    deployment = with_file(served(command=["vllm", "serve"], args=["m", "--config", "/etc/vllm/vllm.yaml"]))
    assert config_map_of(deployment, None) == "serve"
    assert engine(roll(copy.deepcopy(deployment), None))["args"] == ["m", "--config", "/etc/vllm/vllm.yaml", "--speculative-config", "None"]


def test_fields_that_no_setting_touches_are_not_sent() -> None:
    deployment = served({"VLLM_ADDITIONAL_ARGS": "--x"}, command=["/bin/bash", "-c", KSERVE, "--"])
    sent = build_rollout(RolloutRequest("chat", target_of(deployment), CONFIG, Controller(), IMAGE, "")).apply
    (container,) = sent["spec"]["template"]["spec"]["containers"]
    assert {"command", "args"}.isdisjoint(container)
    assert {
        "name": "VLLM_ADDITIONAL_ARGS",
        "value": f"--x --speculative-config '{json.dumps(CONFIG, separators=(',', ':'))}'",
    } in container["env"]


def test_a_script_that_is_damaged_later_is_said_to_be_foreign() -> None:
    rolled = roll(copy.deepcopy(served(command=["/bin/bash", "-c"], args=[WIDE_EP])), CONFIG)
    engine(rolled)["args"] = ["vllm serve a & vllm serve b"]
    with pytest.raises(CommandError):
        read_command(engine(rolled))
    assert "in 2 places" in (read_drift(rolled).foreign or "")
    assert engine(restore(rolled))["args"] == ["vllm serve a & vllm serve b"]
