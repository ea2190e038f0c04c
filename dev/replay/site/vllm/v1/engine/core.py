"""The engine's inner loop: plugins first, then the worker, then the scheduler, then steps in real time."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace

from replay.faults import Faults
from replay.recording import Recording
from replay.runner import ReplayRunner

from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request
from vllm.v1.spec_decode.metrics import SpecDecodingStats
from vllm.v1.worker.worker_base import WorkerWrapperBase


class EngineCore:
    def __init__(self, vllm_config: VllmConfig, recording: Recording, faults: Faults) -> None:
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        self._runner = ReplayRunner(vllm_config, recording, faults)
        WorkerWrapperBase(vllm_config, self._runner).init_device()
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=vllm_config.cache_config.block_size))
        kv_cache_config = SimpleNamespace(num_blocks=vllm_config.cache_config.num_gpu_blocks, kv_cache_groups=[group])
        self.scheduler = Scheduler(vllm_config, kv_cache_config)
        self.totals = SpecDecodingStats.new(vllm_config.num_speculative_tokens)
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self._arrived: deque[Request] = deque()
        self._wake = threading.Condition()

    def add_request(self, request: Request) -> None:
        """Called by the front end's threads."""
        with self._wake:
            self._arrived.append(request)
            self._wake.notify()

    def run_busy_loop(self) -> None:
        while True:
            with self._wake:
                while not self._arrived and not self.scheduler.has_requests():
                    self._wake.wait()
                while self._arrived:
                    request = self._arrived.popleft()
                    self.prompt_tokens += request.num_prompt_tokens
                    self.scheduler.add_request(request)
            self.step()

    def step(self) -> None:
        output = self.scheduler.schedule()
        if not output.num_scheduled_tokens:
            return
        model_output, drafts = self._runner.execute(output, self.scheduler.requests)
        outputs = self.scheduler.update_from_output(output, model_output)
        self.scheduler.update_draft_token_ids(drafts)
        for client in outputs.values():
            self._count(client)

    def _count(self, outputs: EngineCoreOutputs) -> None:
        self.generation_tokens += sum(len(o.new_token_ids) for o in outputs.outputs)
        step = outputs.scheduler_stats.spec_decoding_stats if outputs.scheduler_stats else None
        if step is None:
            return
        self.totals.num_drafts += step.num_drafts
        self.totals.num_draft_tokens += step.num_draft_tokens
        self.totals.num_accepted_tokens += step.num_accepted_tokens
        for i in range(step.num_spec_tokens):
            self.totals.num_accepted_tokens_per_pos[i] += step.num_accepted_tokens_per_pos[i]
            self.totals.num_draft_tokens_per_pos[i] += step.num_draft_tokens_per_pos[i]
