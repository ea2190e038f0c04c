"""The worker's wrapper, where plugins hook the worker process, around the replaying runner."""

from __future__ import annotations

from replay.runner import ReplayRunner

from vllm.config import VllmConfig


class WorkerWrapperBase:
    def __init__(self, vllm_config: VllmConfig, runner: ReplayRunner) -> None:
        self.vllm_config = vllm_config
        self.worker = runner
        self.global_rank = 0

    def init_device(self) -> None:
        self.worker.init_device()
