"""A roll-out where no GPU is spare: it waits for its user twice, for the approval and for the leave to go without, and locks nothing up."""

from __future__ import annotations

import pytest
from place import Place
from workloads import A100, ALL_A100, draft_table, gpus_of, stand_in

SURGE_0 = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@pytest.mark.whole_pool
def test_full_cluster(place: Place) -> None:
    with ALL_A100:
        every = gpus_of(place.api, A100)
        place.create(stand_in(gpu_product=A100))
        place.wait_ready()
        place.create(draft_table(rollout={"approval": "Manual"}))
        place.wait("RolledOut", "AwaitingApproval", seconds=300, says="To approve: kubectl annotate --overwrite dt tuned -n")
        place.assert_untouched()

        # Now no GPU of the pool is free.
        place.scale("decode", every)
        place.wait_ready()
        digest = place.get("DraftTable", "tuned")["status"]["table"]["digest"]
        place.edit("DraftTable", "tuned", {"metadata": {"annotations": {"tabletune.io/approve": digest}}})
        place.wait(
            "RolledOut", "RolloutNeedsGPU", says="Nothing is changed. Free a GPU, or set its strategy to maxSurge 0, maxUnavailable 1."
        )
        place.assert_untouched()
        assert place.revision() == 1

        fewest = every
        place.edit("Deployment", "decode", {"spec": {"strategy": SURGE_0}})

        def proved() -> bool:
            nonlocal fewest
            fewest = min(fewest, place.get("Deployment", "decode")["status"].get("replicas", 0))
            return place.conditions().get("RolledOut", {}).get("reason") == "Proved"

        place.until(proved, "every replica proves the table", seconds=300)
        assert fewest >= every - 1, "no fewer than the strategy allows"
        assert place.revision() == 2
        assert place.jobs_started() == 1
        place.delete_and_wait()
        place.assert_untouched()
