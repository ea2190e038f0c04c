"""Mode ConfigFile: engines always find the file that they name, start again when they must, and keep it when the DraftTable goes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from world import Body, StoppedError, World, _merged, deployment, draft_table
from world_files import sidecar_state

from tabletune import formats
from tabletune.verdict import VerdictKind
from tabletune_operator.overlay import PATCH

CONFIG_FILE, MARK = {"mode": "ConfigFile"}, "tabletune.io/table-digest"
PRESENT = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}
SPECULATION = {"method": "eagle3", "model": "draft", "maxDraftLength": 3}
BARE = {**PRESENT, "num_speculative_tokens_per_batch_size": [[1, 128, 3]]}
MAP = ("ConfigMap", "chat-tabletune-config")
TRIED = 3  # turns in which nothing more may be written


def manifest(*args: str) -> Body:
    """A target whose engine reads our file, as the snippet says."""
    made = deployment(args=["model", "--max-num-seqs=128", "--config", "/etc/tabletune/vllm.yaml", *args])
    pod = made["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "tabletune-config", "configMap": {"name": "chat-tabletune-config"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "tabletune-config", "mountPath": "/etc/tabletune"}]
    return made


async def reading(**spec: Any) -> World:
    """Manifest and DraftTable in Git, applied at the same moment."""
    made = World(manifest(), draft_table(rollout=CONFIG_FILE, speculation=SPECULATION, **spec))
    made.roll()
    await made.turn()
    return made


async def verified(made: World, kind: VerdictKind = VerdictKind.TABLE, turns: int = 4) -> World:
    await made.turns(2)
    made.finish_profile(kind=kind)
    made.get("ConfigMap", "chat-tabletune")["data"][formats.VLLM_YAML] = yaml.safe_dump({"speculative-config": BARE})
    await made.turns(turns)
    return made


def with_parts(made: World) -> None:
    """Its user commits the whole overlay, once."""
    target = made.get("Deployment", "decode")
    target["spec"] = _merged(target["spec"], yaml.safe_load(made.get(*MAP)["data"][PATCH])["spec"])
    target["metadata"]["generation"] += 1
    made.roll()


def in_file(made: World) -> Any:
    return yaml.safe_load(made.get(*MAP)["data"]["vllm.yaml"]).get("speculative-config")


def mark(made: World) -> str | None:
    metadata = made.get("Deployment", "decode")["spec"]["template"]["metadata"]
    return (metadata.get("annotations") or {}).get(MARK)


def revision(made: World) -> str:
    return str(made.get("Deployment", "decode")["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


async def test_the_file_is_there_before_anything_is_known_of_the_target() -> None:
    made = World(draft_table(rollout=CONFIG_FILE, speculation=SPECULATION))
    await made.turn()
    assert in_file(made) == PRESENT
    assert made.condition("Accepted") == ("False", "TargetNotFound")


@pytest.mark.parametrize(
    ("speculation", "present"),
    [
        pytest.param(SPECULATION, PRESENT, id="what spec.speculation says"),
        pytest.param(None, None, id="none: then engines start without"),
        pytest.param({"maxDraftLength": 3}, None, id="no drafter named"),
    ],
)
async def test_manifest_and_drafttable_applied_at_once_start_with_what_git_says(
    speculation: dict[str, Any] | None, present: dict[str, Any] | None
) -> None:
    made = World(manifest(), draft_table(rollout=CONFIG_FILE, **({"speculation": speculation} if speculation else {})))
    made.roll()
    await made.turns(2)
    assert in_file(made) == present
    assert "ownerReferences" not in made.get(*MAP)["metadata"]
    if present is None:
        assert made.condition("Accepted")[0] == "False"  # nobody says what to measure, but serving starts
        assert mark(made) is None


async def test_a_target_with_flags_is_told_how_to_name_the_file_and_nothing_is_changed() -> None:
    made = World(deployment(), draft_table(rollout=CONFIG_FILE))
    made.roll()
    await made.turns(2)
    assert in_file(made) == PRESENT, "the same setting, ready to be named"
    assert "Add args --config, /etc/tabletune/vllm.yaml" in made.message("RolledOut")
    assert made.condition("RolledOut") == ("Unknown", "NotVerified")
    before = copy.deepcopy(made.get("Deployment", "decode")["spec"])
    await verified(made)
    assert made.condition("RolledOut") == ("False", "ConfigFileNotUsed")
    assert made.condition("Stalled")[0] == "True"
    assert made.get("Deployment", "decode")["spec"] == before
    assert in_file(made) == PRESENT


async def test_naming_the_file_beside_flags_says_which_win() -> None:
    made = World(manifest("--speculative-config", json.dumps(PRESENT)), draft_table(rollout=CONFIG_FILE))
    made.roll()
    await made.turns(2)
    await verified(made)
    assert made.condition("RolledOut") == ("False", "ConfigFileNotUsed")
    assert "Remove them" in made.message("RolledOut")
    assert mark(made) is None


async def test_without_plugin_the_bare_table_goes_into_the_file_then_replicas_start_again_once() -> None:
    made = await reading()
    before = revision(made)
    await verified(made, turns=1)
    for _ in range(TRIED):
        assert mark(made) is None or in_file(made) == BARE, "the file comes first"
        await made.turn()
    await made.turns(3)
    assert mark(made) is not None
    assert int(revision(made)) == int(before) + 1
    assert made.condition("RolledOut") == ("Unknown", "NotProvable")
    writes = len(made.writes)
    await made.turns(TRIED)
    assert len(made.writes) == writes
    assert made.get("Deployment", "decode")["spec"]["template"]["spec"] == manifest()["spec"]["template"]["spec"], "nothing else is written"


async def test_parts_that_come_by_git_ask_for_no_second_restart() -> None:
    made = await reading()
    await verified(made)
    made.get("ConfigMap", "chat-tabletune")["data"][formats.SPECULATIVE_CONFIG] = json.dumps(BARE)
    await made.turns(2)
    with_parts(made)
    before = revision(made)
    await made.turns(4)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert revision(made) == before


async def test_with_the_parts_in_git_the_table_is_proved_and_followed() -> None:
    made = await reading()
    await verified(made)
    with_parts(made)
    await made.turns(6)
    assert made.condition("RolledOut") == ("True", "Proved")
    assert made.condition("Tracking") == ("True", "Tracking")
    assert made.condition("Profiled") == ("True", "Measured"), "parts of ours are no change of the target"
    assert "num_speculative_tokens_per_batch_size" in in_file(made)
    assert in_file(made) != BARE
    writes = len(made.writes)
    await made.turns(TRIED)
    assert len(made.writes) == writes


async def test_another_table_of_the_same_lengths_restarts_nobody_who_has_a_sidecar() -> None:
    made = await reading()
    await verified(made)
    with_parts(made)
    await made.turns(6)
    before, other = revision(made), {**in_file(made), "num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 128, 1]]}
    made.get("ConfigMap", "chat-tabletune")["data"][formats.SPECULATIVE_CONFIG] = json.dumps(other)
    await made.turns(4)
    assert in_file(made) == other
    assert revision(made) == before
    assert made.condition("RolledOut") == ("True", "Proved")
    longer = {**other, "num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 128, 2]]}
    made.get("ConfigMap", "chat-tabletune")["data"][formats.SPECULATIVE_CONFIG] = json.dumps(longer)
    await made.turns(4)
    assert int(revision(made)) == int(before) + 1, "a length that the engine was not launched with"


async def test_off_takes_speculation_out_of_the_file_sidecar_or_not() -> None:
    made = await reading()
    await verified(made, VerdictKind.OFF)
    assert in_file(made) is None
    assert made.condition("RolledOut") == ("True", "SpeculationRemoved")
    with_parts(made)
    for pod in made.pods():
        made.states[pod["status"]["podIP"]] = sidecar_state("Unknown", active=False, inactiveReason="no speculation")
    await made.turns(3)
    assert made.condition("RolledOut") == ("True", "SpeculationRemoved")
    assert made.condition("Ready")[0] == "True"


async def test_present_setting_that_pays_stays_and_restarts_nobody() -> None:
    made = await reading()
    before = revision(made)
    await verified(made, VerdictKind.PRESENT)
    assert made.condition("RolledOut") == ("True", "PresentKept")
    assert in_file(made) == PRESENT
    assert mark(made) is None
    assert revision(made) == before


async def test_replicas_that_do_not_come_up_bring_the_old_file_back_once() -> None:
    made = await reading()
    await verified(made, turns=1)
    roll = made.roll
    made.roll = lambda name="decode", ready=False: roll(name, ready=ready)  # type: ignore[method-assign, assignment]
    made._controllers["Deployment"] = made.roll
    for _ in range(TRIED):
        if mark(made) is None:
            await made.turn()
    for pod in made.pods(current=True):
        pod["status"]["containerStatuses"][0] |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    await made.turn()
    assert made.condition("RolledOut") == ("False", "RolledBack")
    assert in_file(made) == PRESENT
    assert mark(made) is None
    made.remove_old_pods()
    for pod in made.pods():
        pod["status"]["conditions"][0]["status"] = "True"
        pod["status"]["containerStatuses"][0] = {"name": "modelserver", "imageID": "vllm/vllm-openai@sha256:aa11", "restartCount": 0}
    writes = len(made.writes)
    await made.turns(4)
    assert len(made.writes) == writes, "one try"
    assert made.condition("RolledOut") == ("False", "RolledBack")


async def test_a_mark_that_somebody_takes_away_is_not_fought_over() -> None:
    made = await reading()
    await verified(made)
    del made.get("Deployment", "decode")["spec"]["template"]["metadata"]["annotations"][MARK]
    made.roll()
    writes = len(made.writes)
    await made.turns(TRIED)
    assert len(made.writes) == writes
    assert made.condition("RolledOut") == ("Unknown", "NotProvable")


@pytest.mark.parametrize("damage", ["edited", "key removed", "deleted"])
async def test_a_damaged_file_is_written_again_and_what_was_before_is_still_known(damage: str) -> None:
    made = await reading()
    await verified(made)
    if damage == "edited":
        made.get(*MAP)["data"]["vllm.yaml"] = "speculative-config: {}\n"
    elif damage == "key removed":
        del made.get(*MAP)["data"]["vllm.yaml"]
    else:
        del made.objects[MAP]
    await made.turns(3)
    assert in_file(made) == BARE
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T14:40:00Z"
    await made.turns(4)
    assert in_file(made) == PRESENT


async def test_deletion_gives_the_old_setting_back_and_leaves_the_file_that_engines_name() -> None:
    made = await reading()
    await verified(made)
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T14:40:00Z"
    await made.turns(4)
    assert ("DraftTable", "chat") not in made.objects
    kept = made.get(*MAP)
    assert in_file(made) == PRESENT
    assert kept["data"].keys() == {"vllm.yaml"}
    assert not kept["metadata"].get("labels")
    assert mark(made) is None
    assert made.get("Deployment", "decode")["spec"]["template"]["spec"] == manifest()["spec"]["template"]["spec"]
    assert [event["reason"] for event in made.events].count("ConfigFileKept") == 1


async def test_a_drafttable_made_again_takes_the_kept_file_over() -> None:
    made = await reading()
    await verified(made)
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T14:40:00Z"
    await made.turns(4)
    made.put(draft_table(rollout=CONFIG_FILE, speculation={**SPECULATION, "maxDraftLength": 2}))
    await made.turns(2)
    assert in_file(made) == PRESENT, "what engines run now"
    await verified(made)
    assert in_file(made) == BARE
    assert made.get(*MAP)["metadata"]["labels"]["tabletune.io/drafttable"] == "chat"


@pytest.mark.parametrize("target", [deployment(), None], ids=["that does not name the file", "that is gone"])
async def test_deletion_takes_the_file_with_it_for_a_target(target: Body | None) -> None:
    made = World(*([target] if target is not None else []), draft_table(rollout=CONFIG_FILE, speculation=SPECULATION))
    if target is not None:
        made.roll()
    await made.turns(2)
    assert MAP in made.objects
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T14:40:00Z"
    await made.turns(3)
    assert ("DraftTable", "chat") not in made.objects
    assert MAP not in made.objects


async def test_another_mode_gives_the_old_setting_back_and_patch_does_not_write_beside_the_file() -> None:
    made = await reading()
    await verified(made)
    made.get("DraftTable", "chat")["spec"]["rollout"] = {"mode": "Patch"}
    await made.turns(4)
    assert in_file(made) == PRESENT
    assert mark(made) is None
    assert made.condition("RolledOut") == ("False", "CannotRollOut")
    assert "Remove --config" in made.message("RolledOut")


async def test_a_patched_target_is_given_back_before_the_file_is_offered() -> None:
    made = World(deployment(), draft_table())
    made.roll()
    await made.until_rolling_out()
    await made.turns(2)
    made.get("DraftTable", "chat")["spec"]["rollout"] = CONFIG_FILE
    await made.turns(4)
    assert made.get("Deployment", "decode")["spec"]["template"]["spec"] == deployment()["spec"]["template"]["spec"]
    assert in_file(made) == PRESENT
    assert made.condition("RolledOut") == ("False", "ConfigFileNotUsed")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(["--config", "/a.yaml", "--config", "/etc/tabletune/vllm.yaml"], "/a.yaml is no file of a ConfigMap", id="two files"),
        pytest.param(["--config=/etc/tabletune/vllm.yaml"], "as two", id="joined"),
        pytest.param(["--config", "/etc/tabletune/vllm.json"], "which is not there", id="no YAML by name"),
        pytest.param(["--config", "/mine/vllm.yaml"], "is no file of a ConfigMap", id="another place"),
    ],
)
async def test_a_file_named_wrongly_is_told(args: list[str], says: str) -> None:
    target = manifest()
    target["spec"]["template"]["spec"]["containers"][0]["args"] = ["model", "--max-num-seqs=128", *args]
    made = World(target, draft_table(rollout=CONFIG_FILE, speculation=SPECULATION))
    made.roll()
    await made.turns(2)
    assert says in made.message("Accepted") + made.message("RolledOut")
    assert mark(made) is None


@pytest.mark.parametrize("calls", range(24))
async def test_stopped_at_any_call_the_file_is_always_there_and_comes_before_the_mark(calls: int) -> None:
    made = World(manifest(), draft_table(rollout=CONFIG_FILE, speculation=SPECULATION))
    made.roll()
    made.fail_after = calls

    async def walk(turns: int) -> None:
        for _ in range(turns):
            try:
                await made.turn()
            except StoppedError:
                made.fail_after = None
            if ("Job", "chat-profile") in made.objects and ("ConfigMap", "chat-tabletune") not in made.objects:
                made.finish_profile()
                made.get("ConfigMap", "chat-tabletune")["data"][formats.VLLM_YAML] = yaml.safe_dump({"speculative-config": BARE})
            assert mark(made) is None or in_file(made) == BARE

    await walk(12)
    assert made.condition("RolledOut") == ("Unknown", "NotProvable")
    made.get("DraftTable", "chat")["metadata"]["deletionTimestamp"] = "2026-11-30T15:00:00Z"
    made.fail_after = made.calls + calls % 4
    for _ in range(5):
        try:
            await made.turn()
        except StoppedError:
            made.fail_after = None
    assert ("DraftTable", "chat") not in made.objects
    assert in_file(made) == PRESENT
    assert mark(made) is None


async def test_suspended_engines_find_their_file_and_none_is_started_again() -> None:
    made = await reading()
    await made.turns(2)
    made.finish_profile()
    made.get("ConfigMap", "chat-tabletune")["data"][formats.VLLM_YAML] = yaml.safe_dump({"speculative-config": BARE})
    made.get("DraftTable", "chat")["spec"]["state"] = "Suspended"
    await made.turns(4)
    assert in_file(made) == PRESENT
    assert mark(made) is None
    assert made.condition("RolledOut") == ("False", "Suspended")
    made.get("DraftTable", "chat")["spec"]["state"] = "Active"
    await made.turns(4)
    assert in_file(made) == BARE
    assert mark(made) is not None
