"""The few objects of vLLM's that the recorder reads, with the fields that it reads, and a scheduler of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    num_output_tokens: list[int] = field(default_factory=list)


@dataclass
class Output:
    """vLLM's SchedulerOutput."""

    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    scheduled_new_reqs: list[Any]
    scheduled_cached_reqs: Cached
    finished_req_ids: set[str]
    num_spec_tokens_to_schedule: int
    total_num_scheduled_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.total_num_scheduled_tokens = sum(self.num_scheduled_tokens.values())


def step(
    chosen: int,
    drafts: dict[str, int] | None = None,
    new: dict[str, int] | None = None,
    finished: tuple[str, ...] = (),
    resumed: dict[str, int] | None = None,
) -> Output:
    """One step: decoding requests with their number of drafts, new ones with their prompt tokens."""
    drafts, new, resumed = drafts or {}, new or {}, resumed or {}
    decoding = {request_id: 1 + count for request_id, count in drafts.items()}
    return Output(
        num_scheduled_tokens={**decoding, **new, **resumed},
        scheduled_spec_decode_tokens={request_id: [-1] * count for request_id, count in drafts.items() if count},
        scheduled_new_reqs=[SimpleNamespace(req_id=request_id) for request_id in new],
        scheduled_cached_reqs=Cached([*drafts, *resumed], set(resumed), [5] * (len(drafts) + len(resumed))),
        finished_req_ids=set(finished),
        num_spec_tokens_to_schedule=chosen,
    )


@dataclass
class SpecDecodingStats:
    """vLLM's, of one step."""

    num_draft_tokens_per_pos: list[int]
    num_accepted_tokens_per_pos: list[int]


def outputs(tokens: dict[str, int], statistics: SpecDecodingStats | None = None) -> dict[int, Any]:
    """What `update_from_output` returns: new tokens by request, in an engine that keeps statistics or does not."""
    made = [SimpleNamespace(request_id=request_id, new_token_ids=[7] * count) for request_id, count in tokens.items()]
    stats = None if statistics is None else SimpleNamespace(spec_decoding_stats=statistics)
    return {0: SimpleNamespace(outputs=made, scheduler_stats=stats)}


def add_up(verified: list[tuple[int, int]], longest: int) -> SpecDecodingStats:
    """As vLLM does it: drafts and how many of them were kept, of each request that had some."""
    return SpecDecodingStats(
        [sum(drafts > i for drafts, _ in verified) for i in range(longest)], [sum(kept > i for _, kept in verified) for i in range(longest)]
    )
