"""One level-triggered reconcile for each DraftTable: observe, decide, act. Who calls it, and why, does not matter.

DraftTables of one namespace share targets, so their reconciles take turns: no two write one target. GPU pools are shared by all, so
no two start a profiling Job from the same sight of one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict

from tabletune_operator.act import act
from tabletune_operator.cluster import Cluster
from tabletune_operator.decide import decide
from tabletune_operator.observation import ObjectRef, Observation
from tabletune_operator.observe import Observer
from tabletune_operator.plan import EnsureJob, Inject, Plan, StopInjecting
from tabletune_operator.telemetry import Telemetry
from tabletune_operator.webhook import Webhook

log = logging.getLogger(__name__)


class Reconciler:
    def __init__(self, cluster: Cluster, observer: Observer, telemetry: Telemetry, webhook: Webhook | None = None) -> None:
        self._cluster = cluster
        self._observer = observer
        self._telemetry = telemetry
        self._webhook = webhook
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._starting = asyncio.Lock()
        self._queued: set[ObjectRef] = set()
        self._due: dict[ObjectRef, float] = {}

    async def reconcile(self, ref: ObjectRef) -> bool:
        """True: nothing of the object is left to undo, so a deleted one may go. Raises ClusterError.

        A call that finds another one waiting returns at once: the waiting one will see what this one would.
        """
        if ref in self._queued:
            return False
        self._queued.add(ref)
        try:
            async with self._turns[ref.namespace]:
                self._queued.discard(ref)
                return await self._timed_turn(ref)
        finally:
            self._queued.discard(ref)

    async def reconcile_when_due(self, ref: ObjectRef) -> None:
        """For a short timer: the plan before said when to look again."""
        if time.monotonic() >= self._due.get(ref, 0.0):
            await self.reconcile(ref)

    async def _timed_turn(self, ref: ObjectRef) -> bool:
        began = time.monotonic()
        try:
            return await self._turn(ref)
        except Exception as error:
            self._telemetry.failed(error)
            raise
        finally:
            self._telemetry.took(time.monotonic() - began)

    async def _turn(self, ref: ObjectRef) -> bool:
        seen = await self._observer.observe(ref)
        if seen is None:
            self._due.pop(ref, None)
            self._tell_webhook(StopInjecting(), ref)
            self._telemetry.gone(ref)
            return True
        plan = decide(seen)
        if not any(isinstance(action, EnsureJob) for action in plan.actions):
            return await self._carry_out(ref, seen, plan)
        # A pool reaches over namespaces: whoever starts a Job there looks again, alone.
        async with self._starting:
            seen = await self._observer.observe(ref)
            if seen is None:
                return True
            return await self._carry_out(ref, seen, decide(seen))

    async def _carry_out(self, ref: ObjectRef, seen: Observation, plan: Plan) -> bool:
        for action in plan.actions:
            log.info("%s/%s: %s", ref.namespace, ref.name, type(action).__name__)
        self._tell_webhook(plan.webhook, ref)  # before pods are made anew, which they are to be with it
        await act(plan, seen.draft, seen.now, self._cluster)
        self._telemetry.acted(seen, plan)
        for event in plan.events:
            log.info("%s/%s: %s: %s", ref.namespace, ref.name, event.reason, event.message)
        self._due[ref] = time.monotonic() + plan.requeue_seconds
        return plan.finished

    def _tell_webhook(self, decided: Inject | StopInjecting | None, ref: ObjectRef) -> None:
        if self._webhook is not None:
            self._webhook.take(decided, ref)
