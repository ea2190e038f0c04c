"""Targets whose manifests are in Git: the recommended overlay applied by its user, and the file that engines read at their start."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml
from following import QUICK, assert_follows
from place import Place, to_bytes
from workloads import DRAFT, SPECULATION, Body, draft_table, reading_a_file, service, stand_in

from tabletune_operator.launch_file import parse_setting

MARK = "tabletune.io/table-digest"
LABEL = "tabletune.io/drafttable=tuned"
OVERLAY = ("kustomization.yaml", "tabletune-patch.yaml")
PRESENT = yaml.safe_load(DRAFT)


def apply_overlay(place: Place, base: Body, files: Mapping[str, str]) -> None:
    """As its user does: the base and, beside it, the files as they are in the ConfigMap."""
    with tempfile.TemporaryDirectory() as checkout:
        folder = Path(checkout)
        (folder / "base").mkdir()
        (folder / "base" / "modelserver.yaml").write_text(yaml.safe_dump(base))
        (folder / "base" / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["modelserver.yaml"]}))
        (folder / "tuned").mkdir()
        for name in OVERLAY:
            (folder / "tuned" / name).write_text(files[name])
        place.cluster.kubectl("apply", "-n", place.namespace, "-k", str(folder / "tuned"))


def delete_and_wait(place: Place) -> None:
    """Pods of an overlay that is still in Git keep the DraftTable's label."""
    place.delete("DraftTable", "tuned")
    place.until(lambda: not place.list("DraftTable") and not place.list("ConfigMap", LABEL), "the DraftTable and its files are gone")


def test_a_recommended_overlay_that_its_user_applies_is_noticed_proved_and_kept(place: Place) -> None:
    place.create(stand_in())
    place.wait_ready()
    place.create(service())
    place.create(draft_table(rollout={"mode": "Recommend"}, controller=QUICK))
    place.wait("RolledOut", "Recommended", seconds=300)
    place.assert_untouched()
    apply_overlay(place, stand_in(), place.get("ConfigMap", "tuned-tabletune")["data"])
    applied = to_bytes(place.template())
    place.wait("RolledOut", "Applied", seconds=300)
    place.until(lambda: place.conditions()["Tracking"]["status"] == "True", "it is followed")
    place.wait_ready()
    assert_follows(place)
    assert place.jobs_started() == 1
    assert place.revision() == 2
    delete_and_wait(place)
    assert to_bytes(place.template()) == applied


def mark(place: Place) -> str | None:
    found: str | None = place.template()["metadata"].get("annotations", {}).get(MARK)
    return found


def test_an_engine_that_reads_the_file_starts_at_once_and_again_for_its_table(place: Place) -> None:
    # At the same moment, as a tool of Git does: the pod waits for the file, and starts with the setting that Git says.
    place.create(reading_a_file("tuned"))
    place.create(service())
    place.create(draft_table(rollout={"mode": "ConfigFile"}, speculation=SPECULATION, controller=QUICK))
    place.wait_ready()
    data = place.get("ConfigMap", "tuned-tabletune-config")["data"]
    assert parse_setting(data["vllm.yaml"]) == PRESENT
    place.wait("RolledOut", "NotProvable", seconds=300, says="tabletune-patch.yaml")
    place.wait_ready()
    assert mark(place) is not None
    assert place.revision() == 2
    data = place.get("ConfigMap", "tuned-tabletune-config")["data"]
    assert "num_speculative_tokens_per_batch_size" in (parse_setting(data["vllm.yaml"]) or {})

    # Plugin and sidecar come by Git, once. The operator still writes its annotation and nothing else.
    apply_overlay(place, reading_a_file("tuned"), data)
    place.wait_proved()
    place.wait_ready()
    assert_follows(place)
    assert place.jobs_started() == 1
    marked = place.template()
    delete_and_wait(place)
    assert mark(place) is None
    place.wait_ready()
    del marked["metadata"]["annotations"][MARK]
    if not marked["metadata"]["annotations"]:
        del marked["metadata"]["annotations"]
    assert to_bytes(place.template()) == to_bytes(marked)
    kept = place.get("ConfigMap", "tuned-tabletune-config")
    assert parse_setting(kept["data"]["vllm.yaml"]) == PRESENT, "its engine reads it at every start"
    assert place.leftovers() == []
