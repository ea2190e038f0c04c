"""One Job at a time on a GPU pool, in the order of asking; nobody holds the others up; and what takes too long ends with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest
from world import IMAGE, NAMESPACE, NOW, PRODUCT, World, deployment, draft_table, node, serving
from world_gpus import GpuWorld, full, is_lent, job_pod, replicas

from tabletune_operator.observation import ObjectRef
from tabletune_operator.observe import Observer
from tabletune_operator.reconcile import Reconciler
from tabletune_operator.telemetry import Telemetry
from tabletune_operator.times import to_time

# By the alphabet the order would be the other one.
NAMES = ("zoe", "max", "ada")


def crowd(*names: str, **deployments: Any) -> World:
    """A DraftTable for each of these Deployments, all on one pool."""
    made = World(nodes=(node(),))
    for number, name in enumerate(names):
        made.put(deployment(f"decode-{name}", **deployments))
        # Of different fingerprints, or the second would use the first one's profile again.
        made.put(draft_table(name, target=f"decode-{name}", profile={"promptTokens": 32 + number}))
        made.roll(f"decode-{name}")
    return made


def queue(made: World, name: str) -> Any:
    return made.get("DraftTable", name)["status"]["profile"].get("queue")


def jobs(made: World) -> list[str]:
    return sorted(name.removesuffix("-profile") for kind, name in made.objects if kind == "Job")


async def look(made: World, *names: str) -> None:
    for name in names:
        await made.turn(name)


async def test_who_asked_first_is_first_and_the_place_is_told() -> None:
    made = crowd(*NAMES)
    await look(made, "zoe", "max", "ada")
    assert jobs(made) == ["zoe"]
    await look(made, "max", "ada")
    assert made.condition("Profiled", "max") == ("False", "Queued")
    assert f"Waits for llm/zoe's Job on {PRODUCT}; 1st of 2." in made.message("Profiled", "max")
    assert f"Waits for llm/zoe's Job on {PRODUCT}; 2nd of 2." in made.message("Profiled", "ada")
    assert (queue(made, "ada")["place"], queue(made, "ada")["pool"]) == ("2nd of 2", PRODUCT)
    for first, second in (("zoe", "max"), ("max", "ada")):
        made.finish_profile(first)
        # Whoever is looked at first, it is the next one's turn.
        await look(made, first, first, "ada", "max", "ada", "max")
        assert jobs(made) == [second]
    assert queue(made, "ada") is None
    made.finish_profile("ada")
    await look(made, "ada", "ada", "ada")
    assert jobs(made) == []
    assert {made.condition("Profiled", name)[1] for name in NAMES} == {"Measured"}


async def test_the_next_in_the_queue_is_waited_for_while_no_job_runs() -> None:
    made = crowd(*NAMES)
    await look(made, *NAMES)
    made.finish_profile("zoe")
    await look(made, "zoe", "zoe")
    await made.turn("ada")
    assert jobs(made) == []
    assert f"Waits for llm/max, which is first in the queue for {PRODUCT}; 2nd of 2." in made.message("Profiled", "ada")
    await made.turn("max")
    assert jobs(made) == ["max"]


@pytest.mark.parametrize("gone", ["silent", "deleted", "refused", "deleting"])
async def test_who_cannot_go_on_does_not_hold_the_others_up(gone: str) -> None:
    made = crowd(*NAMES)
    await look(made, *NAMES)
    made.finish_profile("zoe")
    await look(made, "zoe", "zoe")
    if gone == "silent":
        made.now += timedelta(minutes=4)
    elif gone == "deleted":
        del made.objects["DraftTable", "max"]
    elif gone == "deleting":
        made.get("DraftTable", "max")["metadata"]["deletionTimestamp"] = to_time(made.now)
    else:
        made.get("Deployment", "decode-max")["spec"]["template"]["spec"]["containers"][0]["args"] = ["model"]
        await made.turn("max")
        assert made.condition("Accepted", "max")[0] == "False"
    await made.turn("ada")
    assert jobs(made) == ["ada"]


async def test_who_still_waits_says_so_once_a_minute_and_writes_nothing_else() -> None:
    made = crowd("zoe", "max")
    await look(made, "zoe", "max")
    since, writes = queue(made, "max")["since"], made.status_writes
    for _ in range(20):
        await made.turn("max", seconds=10)
    assert made.status_writes - writes in {3, 4}
    assert queue(made, "max")["since"] == since, "its place does not move"


def elsewhere(product: str, *, running: bool) -> World:
    """A DraftTable of another namespace that runs its Job, or waits since before."""
    made = serving()
    other = draft_table("theirs", target="none")
    other["metadata"]["namespace"] = "other"
    waiting = {"queue": {"pool": product, "since": to_time(NOW - timedelta(hours=1)), "seenAt": to_time(NOW), "place": "1st of 1"}}
    made.put(other | {"status": {"profile": {} if running else waiting}})
    if running:
        labels = {"app.kubernetes.io/managed-by": "tabletune", "tabletune.io/drafttable": "theirs"}
        annotations = {"tabletune.io/gpu-product": product}
        made.put(
            {
                "kind": "Job",
                "metadata": {"name": "theirs-profile", "namespace": "other", "labels": labels, "annotations": annotations},
                "spec": {},
            }
        )
    return made


@pytest.mark.parametrize(
    ("running", "told"), [(True, "Waits for other/theirs's Job on"), (False, "Waits for other/theirs, which is first")]
)
async def test_a_pool_reaches_over_namespaces(running: bool, told: str) -> None:
    made = elsewhere(PRODUCT, running=running)
    await made.turn()
    assert made.condition("Profiled") == ("False", "Queued")
    assert told in made.message("Profiled")
    another = elsewhere("NVIDIA-L4", running=running)
    await another.turn()
    assert ("Job", "chat-profile") in another.objects


async def test_without_a_gpu_only_the_namespace_takes_turns() -> None:
    made = elsewhere("cpu", running=True)
    made.put(deployment(resources={}))
    made.roll()
    await made.turn()
    assert ("Job", "chat-profile") in made.objects


async def test_a_queue_that_cannot_be_read_is_no_obstacle() -> None:
    made = elsewhere(PRODUCT, running=False)
    made.get("DraftTable", "theirs")["status"]["profile"]["queue"]["since"] = "yesterday"
    await made.turn()
    assert ("Job", "chat-profile") in made.objects


async def test_two_that_look_at_once_start_one_job() -> None:
    """Of two namespaces, so that nothing else keeps them apart."""

    class Slow(World):
        async def list_all(self, kind: str, namespaces: tuple[str, ...], selector: str = "") -> tuple[dict[str, Any], ...]:
            found = await super().list_all(kind, namespaces, selector)
            await asyncio.sleep(0)
            return found

        async def create(self, body: Mapping[str, Any]) -> None:
            await asyncio.sleep(0.01)  # a call takes its time, and others look meanwhile
            await super().create(body)

    made = Slow(nodes=(node(),))
    for name in ("one", "two"):
        made.put(deployment(f"decode-{name}"))
        made.put(draft_table(name, target=f"decode-{name}"))
        made.roll(f"decode-{name}")
    async with httpx.AsyncClient(transport=httpx.MockTransport(made.answer), trust_env=False) as client:
        # Two turns side by side, as of two namespaces: the turns of one namespace would wait for each other.
        reconciler = Reconciler(made, Observer(made, client, IMAGE, lambda: made.now), Telemetry(made.now))  # type: ignore[arg-type]
        await asyncio.gather(*(reconciler._turn(ObjectRef(NAMESPACE, name)) for name in ("one", "two")))
    assert len(jobs(made)) == 1


async def test_a_job_that_finds_no_gpu_makes_room_when_others_wait_and_it_is_no_attempt() -> None:
    made = full(placement="Spare")
    made.put(deployment("decode2", replicas=0))
    made.put(draft_table("second", target="decode2", nodePool={"nodeSelector": {"nvidia.com/gpu.product": PRODUCT}}))
    await made.turn()
    made.now += timedelta(minutes=20)
    await made.turn()
    assert ("Job", "chat-profile") in made.objects, "nobody else waits, so it costs nobody anything"
    waiting = {"pool": PRODUCT, "since": to_time(made.now), "seenAt": to_time(made.now), "place": "1st of 1"}
    made.get("DraftTable", "second")["status"] = {"profile": {"queue": waiting}}
    await made.turn()
    assert made.condition("Profiled") == ("False", "Queued")
    assert "so llm/second on NVIDIA-H200 is next and this one 2nd of 2" in made.message("Profiled")
    assert made.get("DraftTable", "chat")["status"]["profile"]["attempts"] == 0
    await made.turn()
    assert jobs(made) == []
    assert made.condition("Profiled") == ("False", "Queued")


async def test_a_job_that_waits_too_long_for_a_gpu_is_stopped_as_a_failed_attempt() -> None:
    made = full(placement="Spare", waitTimeoutSeconds=3600)
    await made.turn()
    made.now += timedelta(seconds=3601)
    await made.turn()
    assert made.condition("Profiled") == ("False", "JobStopped")
    await made.turn()
    assert made.condition("Profiled") == ("False", "JobRetries")
    assert "found no place on NVIDIA-H200 within 60 min (spec.profile.waitTimeoutSeconds)" in made.message("Profiled")
    for _ in range(2):
        made.now += timedelta(minutes=6)
        await made.turns(2)
        made.now += timedelta(seconds=3601)
        await made.turns(2)
    assert made.condition("Profiled") == ("False", "JobFailed")
    assert "waitTimeoutSeconds" in made.message("Profiled")


async def test_a_job_that_has_its_node_is_not_stopped_for_waiting() -> None:
    made = serving(profile={"waitTimeoutSeconds": 60})
    await made.turn()
    made.now += timedelta(hours=2)
    await made.turn()
    assert made.condition("Profiled") == ("False", "Starting")


async def test_an_image_that_cannot_be_pulled_is_given_ten_minutes() -> None:
    made = serving()
    await made.turn()
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    job_pod(made)["status"]["containerStatuses"] = [{"name": "tuner", "restartCount": 0, **waiting}]
    await made.turn()
    assert made.condition("Profiled") == ("False", "PodDoesNotStart")
    made.now += timedelta(minutes=11)
    await made.turn()
    assert made.condition("Profiled") == ("False", "JobStopped")
    await made.turn()
    assert made.condition("Profiled") == ("False", "JobRetries")
    assert "did not start within 10 min: container tuner: ImagePullBackOff (not found)" in made.message("Profiled")
    assert made.get("Job", "chat-profile")["spec"]["activeDeadlineSeconds"] == 1


async def test_a_stopped_job_gives_a_borrowed_replica_back() -> None:
    made: GpuWorld = full()
    await made.turn()
    made.now += timedelta(seconds=31)
    await made.turns(2)
    assert is_lent(made)
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    job_pod(made)["status"]["containerStatuses"] = [{"name": "tuner", "restartCount": 0, **waiting}]
    made.now += timedelta(minutes=11)
    await made.turns(4)
    assert (replicas(made), is_lent(made)) == (3, False)
    assert made.condition("Profiled") == ("False", "JobRetries")
