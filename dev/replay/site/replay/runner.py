"""Stands for the model runner: takes as long as the recording says, keeps as many guesses as the rates say, and drafts."""

from __future__ import annotations

import random
import time

from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.version import V2_IGNORES_TABLES

from replay.faults import Faults
from replay.recording import Recording
from replay.tokens import FILLER_TOKEN
from replay.traffic import count_kept


class ReplayRunner:
    def __init__(self, vllm_config: VllmConfig, recording: Recording, faults: Faults) -> None:
        self._recording = recording
        self._faults = faults
        self._rng = random.Random(faults.seed)
        self._speculative = vllm_config.speculative_config
        self._v2 = vllm_config.use_v2_model_runner
        self._draft_always_all = faults.ignore_table or (V2_IGNORES_TABLES and self._v2)
        self._free_at = 0.0

    def init_device(self) -> None:
        """Loading a model takes a while; this is that while."""
        time.sleep(self._faults.start_seconds)
        if self._v2 and self._speculative is not None and self._speculative.num_speculative_tokens_per_batch_size == []:
            raise ValueError("num_speculative_tokens_per_batch_size must not be empty.")  # its graphs have no length to be made for
        if self._faults.fail_start:
            raise RuntimeError("Engine core initialization failed. REPLAY_FAIL_START asked for it.")

    def execute(self, output: SchedulerOutput, requests: dict[str, Request]) -> tuple[ModelRunnerOutput, DraftTokenIds]:
        """Run one step. The time that scheduling itself took is part of the step, as in an engine."""
        drafts = output.scheduled_spec_decode_tokens
        batch_size = len(output.num_scheduled_tokens)
        length = max((len(d) for d in drafts.values()), default=0)
        prefill = output.total_num_scheduled_tokens > batch_size + sum(len(d) for d in drafts.values())
        self._faults.strike(batch_size, length)
        seconds = self._recording.step_seconds(batch_size, length if self._speculative else None, prefill)
        self._occupy(seconds * self._faults.time_scale)
        req_ids = list(output.num_scheduled_tokens)
        sampled = [self._sample(requests[r], len(drafts.get(r, ()))) for r in req_ids]
        runner_output = ModelRunnerOutput(req_ids, {r: i for i, r in enumerate(req_ids)}, sampled)
        return runner_output, DraftTokenIds(req_ids, [self._draft(output) if tokens else [] for tokens in sampled])

    def _sample(self, request: Request, drafted: int) -> list[int]:
        if request.is_prefill_chunk:
            return []
        rates = request.acceptance
        if self._speculative is not None and self._speculative.synthetic_acceptance_rates is not None:
            rates = tuple(self._speculative.synthetic_acceptance_rates)
        return [FILLER_TOKEN] * (1 + count_kept(rates, drafted, self._rng))

    def _draft(self, output: SchedulerOutput) -> list[int]:
        if self._speculative is None:
            return []
        length = self._speculative.num_speculative_tokens if self._draft_always_all else output.num_spec_tokens_to_schedule
        return [FILLER_TOKEN] * length

    def _occupy(self, seconds: float) -> None:
        """Sleep to the end of the step. Steps follow each other without a gap, so that one late wake-up is not paid twice."""
        now = time.perf_counter()
        started = self._free_at if now - self._free_at < seconds else now
        self._free_at = started + seconds
        time.sleep(max(0.0, self._free_at - now))
