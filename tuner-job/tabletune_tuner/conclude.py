"""From all that a run measured to the decision and the files of its result. Pure, but for the time of day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from tabletune.findings import find_matching_sizes
from tabletune.formats import (
    ACCEPTANCE,
    PROFILE,
    REPORT,
    SPECULATIVE_CONFIG,
    TABLE,
    VLLM_YAML,
    Capacity,
    TableFile,
    to_acceptance,
    to_profile,
    to_table,
)
from tabletune.profile import Fingerprint, Measurement, Profile, largest_graph
from tabletune.speculative_config import TABLE_FIELD
from tabletune.verdict import VerdictKind
from tabletune_tuner import build as building
from tabletune_tuner.engine import Hello
from tabletune_tuner.noise import live_noise
from tabletune_tuner.options import Options
from tabletune_tuner.preflight import build_base_config
from tabletune_tuner.report import to_report
from tabletune_tuner.results import Measured
from tabletune_tuner.sweep_plan import find_ceilings, noise_ppm


@dataclass(frozen=True, slots=True)
class Said:
    """What the run says of itself: warnings, seconds by stage and on the device, and the PYTHONPATH of the engine's image."""

    warnings: tuple[str, ...]
    stage_seconds: Mapping[str, float]
    gpu_seconds: int
    python_path: str | None


def conclude(options: Options, measured: Measured, said: Said) -> tuple[Mapping[str, str], TableFile]:
    """The files by name, and the decision in them."""
    decided, compared, acceptance = measured.decided, measured.compared, measured.acceptance
    profile = build_profile(options, measured, said)
    predicted = building.predict_arms(profile, acceptance.estimate, compared.candidates)
    loads = compared.comparison.loads(compared.settings, compared.here, predicted)
    table = building.decide(
        decided.built,
        building.predict_off(compared.baseline.cells, profile.baseline_prefills()),
        loads,
        live_noise(loads, measured.frame.windows, measured.swept.noise),
        decided.kept,
        present_speculates=options.present is not None,
        capacity=_capacity(measured.hello, compared.off),
    )
    config, bare_config = _configs(options, table, measured.hello.facts, measured.frame.largest)
    return {
        PROFILE: to_profile(profile),
        ACCEPTANCE: to_acceptance(acceptance),
        TABLE: to_table(table),
        SPECULATIVE_CONFIG: building.to_speculative_config(config),
        VLLM_YAML: building.to_vllm_yaml(bare_config, find_matching_sizes(profile, table.launch_lengths)),
        REPORT: to_report(profile, acceptance, table, said.stage_seconds),
    }, table


def build_profile(options: Options, measured: Measured, said: Said) -> Profile:
    """What was measured of the engine, without what was decided."""
    facts, swept, baseline = measured.hello.facts, measured.swept, measured.compared.baseline
    fields: Mapping[str, object] = options.fingerprint or {
        **{name: value for name, value in facts.items() if name not in ("launchTable", "kvCacheTokens", "graphCells")},
        "profileMaxBatchSize": options.max_batch_size,
        "profilePromptTokens": options.prompt_tokens,
        "profileOutputTokens": options.output_tokens,
    }
    cells = swept.result.cells
    return Profile(
        fingerprint=Fingerprint.of(fields),
        engine={**facts, "pythonPath": said.python_path},
        measurement=Measurement(
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            repeats=options.repeats,
            reject_by=measured.frame.reject_by,
            measured_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            gpu_seconds=said.gpu_seconds,
            tuner_version=version("tabletune"),
        ),
        cells=cells,
        baseline=baseline.cells,
        skipped=swept.result.skipped,
        noise_ppm=noise_ppm(cells),
        warnings=said.warnings,
        prefill=swept.result.prefill,
        baseline_prefill=baseline.prefill,
        requests=swept.requests,
        ceilings=find_ceilings(cells, largest_graph(facts)),
        transitions=measured.decided.transitions,
    )


def _configs(options: Options, table: TableFile, engine: Mapping[str, Any], largest: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What an engine with the plugin gets, and what one without it."""
    if table.verdict.kind is VerdictKind.PRESENT:
        return options.present or {}, options.present or {}
    base, lengths = build_base_config(options), table.launch_lengths
    config = building.build_speculative_config(base, table.table, lengths, engine, engine.get("maxNumSeqs") or largest)
    bare = building.bare_table(table.table, lengths, engine) if table.table else None
    return config, config if bare == table.table or bare is None else {**base, TABLE_FIELD: bare.to_vllm()}


def _capacity(speculation: Hello, off: Hello) -> Capacity | None:
    with_drafter, without = (hello.facts.get("kvCacheTokens") for hello in (speculation, off))
    return Capacity(with_drafter, without) if with_drafter and without else None
