"""`/metrics`: one collector that reads the loop's last view. Positions count from 1 (vLLM's own from 0).

docs/metrics.md lists what is made here, and a test holds the two together; so names, labels and help texts change there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from tabletune import __version__
from tabletune.table import Table
from tabletune_sidecar.counters import DECODE
from tabletune_sidecar.honour import Honour
from tabletune_sidecar.problem import CODES
from tabletune_sidecar.view import View

MICROS = 1e-6
PPM = 1_000_000


class ViewCollector(Collector):
    """Makes every metric anew from `read_view`, so that nothing is counted twice."""

    def __init__(self, read_view: Callable[[], View]) -> None:
        self._read_view = read_view

    def collect(self) -> Iterator[Metric]:
        view = self._read_view()
        yield _info("tabletune_build", "Version of the sidecar.", {"version": __version__, "mode": view.mode.value})
        yield from _health(view)
        yield from _table(view)
        yield from _gains(view)
        yield from _traffic(view)
        yield from _acceptance(view)
        yield from _step_times(view)


def _health(view: View) -> Iterator[Metric]:
    active = view.engine is not None and view.engine.active and view.reachable
    yield _gauge("tabletune_socket_up", "1 while the engine's socket answers.", view.reachable)
    yield _gauge("tabletune_engine_plugin_active", "1 while the plugin chooses draft lengths in the engine.", active)
    yield _gauge(
        "tabletune_table_honoured",
        "1 once the engine has proved that it drafts what the table says.",
        view.verdict.honour is Honour.PROVED,
    )
    yield _counter(
        "tabletune_table_violations", "Request-steps that carried more drafts than the length chosen for them.", view.state.total.violations
    )
    yield _gauge("tabletune_tracking", "1 while the engine's table follows its traffic; 0: it keeps the last one.", view.tracks)
    problems = GaugeMetricFamily("tabletune_problem", "1 while there is this problem; /state has it in words.", labels=["code"])
    present = {problem.code for problem in view.problems}
    for code in CODES:
        problems.add_metric([code], float(code in present))
    yield problems


def _table(view: View) -> Iterator[Metric]:
    lengths = GaugeMetricFamily("tabletune_table_draft_length", "Draft length in force at a measured batch size.", labels=["batch_size"])
    if view.in_force and view.files:
        table = Table.parse(view.in_force)
        for batch_size in sorted(view.files.profile.step_times()):
            lengths.add_metric([str(batch_size)], table.length_at(batch_size))
    yield lengths
    rebuilds = CounterMetricFamily("tabletune_table_rebuilds", "Tables built from live acceptance, by result.", labels=["result"])
    rebuilds.add_metric(["changed"], view.state.rebuilds_changed)
    rebuilds.add_metric(["unchanged"], view.state.rebuilds_unchanged)
    yield rebuilds
    yield _counter("tabletune_table_swaps", "Tables put in force that changed a draft length.", view.state.total.swaps)
    yield _counter("tabletune_traffic_switches", "Times that the traffic was found to be another one.", view.state.traffic_switches)


def _gains(view: View) -> Iterator[Metric]:
    gains = GaugeMetricFamily(
        "tabletune_estimated_gain_ratio",
        "Tokens a second of the table in force over what it is compared with, minus 1, at the batch sizes seen lately: predicted "
        "from profile and acceptance in use. off: no speculation; launch-table: the engine without the sidecar; fixed-k: always k.",
        labels=["baseline"],
    )
    for baseline, gain in view.gains.items():
        gains.add_metric([baseline], gain)
    yield gains
    verified = GaugeMetricFamily(
        "tabletune_verified_gain_ratio",
        "The same as measured live by the profiling Job, mean over its loads. present: the setting before; fixed: the best one length.",
        labels=["baseline"],
    )
    noise = GaugeMetricFamily("tabletune_noise_floor_ratio", "Gain that two equal settings stay below in 95 of 100 of these measurements.")
    if view.files:
        noise.add_metric([], view.files.table.noise_ppm / PPM)
        measured = view.files.table.gains
        if measured is not None:
            for baseline, gain in (("present", measured.present), ("fixed", measured.fixed), ("off", measured.off)):
                verified.add_metric([baseline], gain)
    yield verified
    yield noise


def _traffic(view: View) -> Iterator[Metric]:
    total = view.state.total
    edges = sorted(view.files.profile.step_times()) if view.files else []
    buckets = [(str(float(edge)), float(sum(n for (B, _), n in total.chosen.items() if edge >= B))) for edge in edges]
    steps = float(sum(total.chosen.values()))
    batch_sizes = HistogramMetricFamily("tabletune_step_batch_size", "Requests scheduled in a step, prefills included.")
    requests = float(sum(B * n for (B, _), n in total.chosen.items()))
    batch_sizes.add_metric([], [*buckets, ("+Inf", steps)], requests)
    yield batch_sizes
    yield _counter("tabletune_request_steps", "Decoding requests in steps whose length in force was above 0.", total.request_steps)
    yield _counter("tabletune_exploring_steps", "Steps at the longest length to see its acceptance.", total.exploring_steps)
    yield _counter("tabletune_output_tokens", "Tokens that the engine gave.", total.tokens)
    yield _counter(
        "tabletune_graph_mismatch_cured", "Steps kept from a drafter's graph that the target had not prepared.", total.graph_cures
    )


def _acceptance(view: View) -> Iterator[Metric]:
    total, belief = view.state.total, view.state.belief
    by_position = "by position; the first is 1 (vLLM's counters call it 0)."
    yield _positions("tabletune_drafted_tokens", f"Guesses offered for verification, {by_position}", total.drafted)
    yield _positions("tabletune_accepted_tokens", f"Guesses kept, {by_position}", total.kept)
    rates = GaugeMetricFamily(
        "tabletune_acceptance_ratio",
        "Probability that all guesses up to a position are kept; the first is 1. prior: before any was counted here; live: counted lately; "
        "used: what the table rests on.",
        labels=["position", "source"],
    )
    if belief:
        sources = {"prior": belief.prior.acceptance, "used": belief.used.acceptance}
        if belief.live.request_steps:
            sources["live"] = belief.live.rates
        for source, values in sources.items():
            for at, value in enumerate(values, start=1):
                rates.add_metric([str(at), source], value)
    yield rates
    errors = GaugeMetricFamily("tabletune_acceptance_standard_error", "Of the acceptance that is used, by position.", labels=["position"])
    for at, error in enumerate(belief.errors if belief else (), start=1):
        errors.add_metric([str(at)], error)
    yield errors


def _step_times(view: View) -> Iterator[Metric]:
    labels = ["draft_length", "regime"]
    steps = CounterMetricFamily("tabletune_steps", "Steps that were timed, since the engine started.", labels=labels)
    seconds = CounterMetricFamily("tabletune_step_time_seconds", "Time of these steps, since the engine started.", labels=labels)
    for key in sorted({(c.draft_length, c.regime) for c in view.cells}):
        cells = [c for c in view.cells if (c.draft_length, c.regime) == key]
        values = [str(key[0]), key[1]]
        steps.add_metric(values, sum(c.count for c in cells))
        seconds.add_metric(values, sum(c.total_micros for c in cells) * MICROS)
    yield steps
    yield seconds
    profile = GaugeMetricFamily(
        "tabletune_profile_step_time_seconds", "Step time as measured by the profile.", labels=["batch_size", "draft_length", "regime"]
    )
    ratio = GaugeMetricFamily(
        "tabletune_step_time_to_profile_ratio", "Live step time over the profile's, 1 = as measured.", labels=["regime"]
    )
    if view.files:
        times = view.files.profile.step_times()
        for batch_size, by_length in sorted(times.items()):
            for length, micros in sorted(by_length.items()):
                profile.add_metric([str(batch_size), str(length), DECODE], micros * MICROS)
        known = [
            (c, times[c.batch_size][c.draft_length])
            for c in view.cells
            if c.regime == DECODE and c.draft_length in times.get(c.batch_size, {})
        ]
        if known:
            ratio.add_metric([DECODE], sum(c.total_micros for c, _ in known) / sum(c.count * micros for c, micros in known))
    yield profile
    yield ratio


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=float(value))


def _info(name: str, text: str, labels: dict[str, str]) -> Metric:
    return InfoMetricFamily(name, text, value=labels)


def _positions(name: str, text: str, values: Iterable[int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["position"])
    for at, value in enumerate(values, start=1):
        family.add_metric([str(at)], value)
    return family
