"""The scheduler, reduced: same class, methods and moments as vLLM's synchronous scheduling, without KV blocks and connectors.

As there, the length chosen at the end of `schedule()` is drafted in that step and verified in the next one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, SchedulerStats
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.spec_decode.metrics import SpecDecodingStats
from vllm.version import HAS_TABLES


class Scheduler:
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: Any, log_stats: bool = True) -> None:
        self.vllm_config = vllm_config
        self.scheduler_config = vllm_config.scheduler_config
        self.cache_config = vllm_config.cache_config
        self.kv_cache_config = kv_cache_config
        self.log_stats = log_stats
        self.max_num_running_reqs = self.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = self.scheduler_config.max_num_batched_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        self.use_v2_model_runner = vllm_config.use_v2_model_runner
        self.num_spec_tokens = vllm_config.num_speculative_tokens
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()
        if HAS_TABLES:
            self.dynamic_sd_lookup: list[int] | None = None
            speculative = vllm_config.speculative_config
            if speculative is not None and speculative.num_speculative_tokens_per_batch_size:
                self.dynamic_sd_lookup = build_dynamic_sd_schedule_lookup(
                    speculative.num_speculative_tokens_per_batch_size,
                    vllm_max_batch_size=self.scheduler_config.max_num_seqs,
                    vllm_num_speculative_tokens=self.num_spec_tokens,
                )

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def has_requests(self) -> bool:
        return bool(self.requests)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._drop_aborted()
        budget = self.max_num_scheduled_tokens
        num_scheduled_tokens: dict[str, int] = {}
        drafts: dict[str, list[int]] = {}
        new: list[NewRequestData] = []
        cached = CachedRequestData()
        for request in self.running:
            wanted = request.num_tokens + len(request.spec_token_ids) - request.num_computed_tokens
            tokens = min(wanted, budget, self.max_model_len - 1 - request.num_computed_tokens)
            if tokens <= 0:
                continue
            drafted = max(0, tokens + request.num_computed_tokens - request.num_tokens)
            if drafted:
                drafts[request.request_id] = request.spec_token_ids[:drafted]
            request.spec_token_ids = []
            cached.req_ids.append(request.request_id)
            cached.num_computed_tokens.append(request.num_computed_tokens)
            cached.num_output_tokens.append(request.num_output_tokens)
            num_scheduled_tokens[request.request_id] = tokens
            budget -= tokens
        while self.waiting and budget > 0 and len(self.running) < self.max_num_running_reqs and not throttle_prefills:
            request = self.waiting.popleft()
            self.running.append(request)
            tokens = min(request.num_tokens, budget)
            new.append(NewRequestData(request.request_id, list(request.prompt_token_ids), 0))
            num_scheduled_tokens[request.request_id] = tokens
            budget -= tokens

        num_spec_tokens_to_schedule = self.num_spec_tokens
        lookup = getattr(self, "dynamic_sd_lookup", None)
        if lookup is not None and num_scheduled_tokens:
            num_spec_tokens_to_schedule = lookup[len(num_scheduled_tokens)]
        output = SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=num_scheduled_tokens,
            total_num_scheduled_tokens=sum(num_scheduled_tokens.values()),
            scheduled_spec_decode_tokens=drafts,
            finished_req_ids=self.finished_req_ids,
            num_spec_tokens_to_schedule=num_spec_tokens_to_schedule,
        )
        self._update_after_schedule(output)
        return output

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        for req_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[req_id]
            request.num_computed_tokens += tokens
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        self.finished_req_ids = set()

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> dict[int, EngineCoreOutputs]:
        stats: SpecDecodingStats | None = None
        outputs: list[EngineCoreOutput] = []
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(req_id)
            if request is None or request.is_finished():
                continue
            generated = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[req_id]]
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(req_id)
            if drafts and generated:
                accepted = len(generated) - 1
                request.num_computed_tokens -= len(drafts) - accepted
                stats = self.make_spec_decoding_stats(
                    stats,
                    num_draft_tokens=len(drafts),
                    num_accepted_tokens=accepted,
                    num_invalid_spec_tokens=scheduler_output.num_invalid_spec_tokens,
                    request_id=req_id,
                )
            if not generated:
                continue  # a chunk of a prompt: no token yet
            new_token_ids = generated[: request.max_tokens - request.num_output_tokens]
            request.num_output_tokens += len(new_token_ids)
            finished = request.is_finished() or request.num_tokens >= self.max_model_len
            outputs.append(EngineCoreOutput(req_id, new_token_ids, "length" if finished else None))
            if finished:
                self._free(request)
            request.on_tokens(len(new_token_ids), finished)
        return {0: EngineCoreOutputs(outputs, SchedulerStats(len(self.running), len(self.waiting), stats))}

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        for req_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
            request = self.requests.get(req_id)
            if request is not None and not request.is_finished() and not request.is_prefill_chunk:
                request.spec_token_ids = tokens

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: SpecDecodingStats | None,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> SpecDecodingStats | None:
        if not self.log_stats or not num_draft_tokens:
            return None
        if spec_decoding_stats is None:
            spec_decoding_stats = SpecDecodingStats.new(self.num_spec_tokens)
        if num_invalid_spec_tokens:
            num_draft_tokens -= num_invalid_spec_tokens.get(request_id, 0)
        spec_decoding_stats.observe_draft(num_draft_tokens=num_draft_tokens, num_accepted_tokens=num_accepted_tokens)
        return spec_decoding_stats

    def _drop_aborted(self) -> None:
        for request in [r for r in self.requests.values() if r.aborted]:
            self._free(request)

    def _free(self, request: Request) -> None:
        del self.requests[request.request_id]
        self.finished_req_ids.add(request.request_id)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
