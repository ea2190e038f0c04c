"""A request as the scheduler keeps it, reduced to what scheduling and the plugin read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    acceptance: tuple[float, ...]  # of this prompt, by position
    on_tokens: Callable[[int, bool], None]  # called with the number of new tokens and whether it was the last step
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_output_placeholders: int = 0
    is_prefill_chunk: bool = False
    spec_token_ids: list[int] = field(default_factory=list)
    aborted: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        return self.aborted or self.num_output_tokens >= self.max_tokens
