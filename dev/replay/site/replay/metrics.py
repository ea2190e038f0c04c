"""`/metrics` with vLLM's names, as far as speculation and load need them."""

from __future__ import annotations

from vllm.v1.engine.core import EngineCore


def render_metrics(core: EngineCore, model: str) -> str:
    labels = f'engine="0",model_name="{model}"'
    scheduler, totals = core.scheduler, core.totals
    lines = [
        *_metric("num_requests_running", "gauge", labels, len(scheduler.running)),
        *_metric("num_requests_waiting", "gauge", labels, len(scheduler.waiting)),
        *_metric("prompt_tokens_total", "counter", labels, core.prompt_tokens),
        *_metric("generation_tokens_total", "counter", labels, core.generation_tokens),
    ]
    if totals.num_spec_tokens:
        lines += _metric("spec_decode_num_drafts_total", "counter", labels, totals.num_drafts)
        lines += _metric("spec_decode_num_draft_tokens_total", "counter", labels, totals.num_draft_tokens)
        lines += _metric("spec_decode_num_accepted_tokens_total", "counter", labels, totals.num_accepted_tokens)
        lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter")
        for position, accepted in enumerate(totals.num_accepted_tokens_per_pos):
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {float(accepted)}')
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, labels: str, value: int) -> list[str]:
    return [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {float(value)}"]
