"""`/metrics` of the operator: one collector that reads the last view (telemetry.py), served on a port of its own.

docs/metrics.md lists what is made here, and a test holds the two together; so names, labels and help texts change there too.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from tabletune import __version__
from tabletune_operator.conditions import REASONS
from tabletune_operator.observation import ObjectRef
from tabletune_operator.telemetry import SECONDS_EDGES, OperatorView, TableView

STATES = tuple(sorted({reason.state for reason in REASONS}))
"""Every word that `kubectl get dt` can show as state."""

OBJECT = ("namespace", "drafttable")

log = logging.getLogger(__name__)

Tables = Mapping[ObjectRef, TableView]


class OperatorCollector(Collector):
    """Makes every metric anew, so what is gone is not told any more, and ages are those of the moment."""

    def __init__(self, read_view: Callable[[], OperatorView], clock: Callable[[], datetime]) -> None:
        self._read_view = read_view
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        view, now = self._read_view(), self._clock()
        yield InfoMetricFamily("tabletune_operator_build", "Version of the operator; there while it runs.", value={"version": __version__})
        yield from _states(view.tables)
        yield from _profiling(view.tables, now)
        yield from _rollouts(view.tables)
        yield from _reconciles(view)


class MetricsServer:
    """Serves the page in a thread of its own. A port that is taken is told and no failure, for the work does not need one."""

    def __init__(self, port: int, read_view: Callable[[], OperatorView], clock: Callable[[], datetime]) -> None:
        """Port 0 takes a free one."""
        registry = CollectorRegistry()
        registry.register(OperatorCollector(read_view, clock))
        address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - Prometheus asks from another pod
        self._serving: tuple[WSGIServer, Thread] | None = None
        try:
            self._serving = start_http_server(port, addr=address, registry=registry)
            log.info("Metrics are served on port %d.", self.port)
        except OSError as error:
            log.warning("Metrics are not served on port %d: %s. All else works. Free it, or name another by --metrics-port.", port, error)

    @property
    def port(self) -> int | None:
        """None: not served."""
        return None if self._serving is None else int(self._serving[0].server_port)

    def stop(self) -> None:
        if self._serving is not None:
            server, thread = self._serving
            server.shutdown()
            server.server_close()
            thread.join()


def _states(tables: Tables) -> Iterator[Metric]:
    count = GaugeMetricFamily("tabletune_drafttables", "DraftTables by the state that kubectl get shows.", labels=["state"])
    states = Counter(table.state for table in tables.values())
    for state in STATES:
        count.add_metric([state], states[state])
    yield count
    info = GaugeMetricFamily(
        "tabletune_drafttable_info",
        "1 for each DraftTable; the labels say what it is about.",
        labels=[*OBJECT, "target", "gpu", "mode", "verdict"],
    )
    conditions = GaugeMetricFamily(
        "tabletune_drafttable_condition",
        "1 for each condition of a DraftTable as it is now (docs/conditions.md).",
        labels=[*OBJECT, "type", "status", "reason"],
    )
    for ref, table in tables.items():
        info.add_metric([*_of(ref), table.target, table.gpu, table.mode, table.verdict], 1)
        for each in table.conditions:
            conditions.add_metric([*_of(ref), each.type, each.status, each.reason], 1)
    yield info
    yield conditions


def _profiling(tables: Tables, now: datetime) -> Iterator[Metric]:
    age = _gauge("tabletune_profiling_job_age_seconds", "Age of the profiling Job, while one runs or waits for its GPU.")
    silence = _gauge("tabletune_profiling_silence_seconds", "Time since the profiling Job told of its progress, while it measures.")
    progress = _gauge("tabletune_profiling_progress_ratio", "Share of the profiling Job that is done, while it measures.")
    waits = _gauge("tabletune_waiting_for_gpu_seconds", "Time that a profile has waited for a GPU or for its turn; 0: it does not wait.")
    spent = _counter("tabletune_profiling_gpu_seconds", "GPU time that profiling Jobs took, since the operator started.")
    for ref, table in tables.items():
        if table.measuring is not None:
            age.add_metric(_of(ref), _seconds(table.measuring.created, now))
            if table.measuring.heard_at is not None:
                silence.add_metric(_of(ref), _seconds(table.measuring.heard_at, now))
            if table.measuring.progress is not None:
                progress.add_metric(_of(ref), table.measuring.progress)
        waits.add_metric(_of(ref), _seconds(table.waits_since, now) if table.waits_since is not None else 0)
        spent.add_metric(_of(ref), table.gpu_seconds)
    yield from (age, silence, progress, waits, spent)


def _rollouts(tables: Tables) -> Iterator[Metric]:
    rollouts = _counter(
        "tabletune_rollouts",
        "Roll-outs since the operator started. started; proved: every replica honours it; rolled_back: it did not work, so the old "
        "setting is back; given_back: the old setting is back, as asked for.",
        "result",
    )
    replicas = _gauge("tabletune_replicas", "Replicas with a sidecar by what they say of their table, as in status.fleet.", "proof")
    for ref, table in tables.items():
        for result, count in table.rollouts.items():
            rollouts.add_metric([*_of(ref), result], count)
        for proof, number in table.replicas.items():
            replicas.add_metric([*_of(ref), proof], number)
    yield rollouts
    yield replicas


def _reconciles(view: OperatorView) -> Iterator[Metric]:
    durations = HistogramMetricFamily("tabletune_reconcile_duration_seconds", "Time of one look at a DraftTable and what it led to.")
    buckets: list[tuple[str, float]] = []
    total = 0
    for edge, count in zip((*map(str, SECONDS_EDGES), "+Inf"), view.durations.counts, strict=True):
        total += count
        buckets.append((edge, float(total)))
    durations.add_metric([], buckets, view.durations.seconds)
    yield durations
    errors = CounterMetricFamily(
        "tabletune_reconcile_errors", "Looks at a DraftTable that failed and were tried again, by cause.", labels=["cause"]
    )
    for cause, number in view.errors.items():
        errors.add_metric([cause], number)
    yield errors


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[*OBJECT, *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=[*OBJECT, *labels])


def _of(ref: ObjectRef) -> list[str]:
    return [ref.namespace, ref.name]


def _seconds(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())
