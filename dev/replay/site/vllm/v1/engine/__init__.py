"""What a step gives back to the front end."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.v1.spec_decode.metrics import SpecDecodingStats


@dataclass
class EngineCoreOutput:
    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class SchedulerStats:
    num_running_reqs: int
    num_waiting_reqs: int
    spec_decoding_stats: SpecDecodingStats | None


@dataclass
class EngineCoreOutputs:
    outputs: list[EngineCoreOutput] = field(default_factory=list)
    scheduler_stats: SchedulerStats | None = None
