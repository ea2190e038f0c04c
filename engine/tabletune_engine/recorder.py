"""Counts what the engine does, step by step (definitions: docs/protocol.md).

The engine's thread calls `scheduled`, `verified` and `updated`; other threads read. Nothing is locked: a
reader may see the middle of a step, and the order of its reads keeps what must not exceed below what it must not exceed.
A step costs no allocation that stays. In the steady state
no line of ours runs for each request, only built-in functions over all of them: at 256 requests that is the difference.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from operator import add
from statistics import median
from typing import Any, NamedTuple

from tabletune.regimes import BESIDE, DECODE, PREFILL, PROMPT_TOKENS, bucket_of, regime_before, regime_of

KEPT_SAMPLES = 512  # of a cell
MAX_CELLS = 4_000  # of one answer: below the protocol's 1 MiB
MAX_STEPS_IN_FLIGHT = 64  # steps that the engine dropped without an output must not pile up
NO_CELL = -1
# Kinds of a step: its regime, and where that is PREFILL with the bucket of prompt tokens added.
KINDS = PREFILL + len(PROMPT_TOKENS)
NOTHING: Mapping[str, int] = {}
NOBODY: frozenset[str] = frozenset()


class _Step(NamedTuple):
    """A scheduled step whose output is not there yet."""

    out: Any
    length: int  # in force for every decoding request, unless `lengths` says otherwise
    lengths: Mapping[str, int | None] | None
    prefilling: frozenset[str]
    padded: Mapping[str, int]  # drafts that nobody made, of prefilling requests

    def wanted_drafts(self, output: Any) -> bool:
        """Whether a request's output is that of a decoding request with a length above 0 in force."""
        if not output.new_token_ids or output.request_id in self.prefilling:
            return False
        return bool(self.length if self.lengths is None else self.lengths.get(output.request_id))


class _Samples:
    """The newest step times of one cell, in microseconds."""

    __slots__ = ("_next", "_values")

    def __init__(self) -> None:
        self._values = array("Q", bytes(8 * KEPT_SAMPLES))
        self._next = 0

    def add(self, micros: int) -> None:
        self._values[self._next % KEPT_SAMPLES] = micros
        self._next += 1

    def summary(self) -> tuple[int, int]:
        """Median and median absolute deviation."""
        values = self._values[: min(self._next, KEPT_SAMPLES)]
        middle = median(values)
        return round(middle), round(median(abs(value - middle) for value in values))


class Recorder:
    """Monotone counters of one engine start."""

    def __init__(self, max_batch_size: int, longest: int) -> None:
        self._max_batch_size = max_batch_size
        self._width = longest + 1
        self.steps = 0
        self.tokens = 0
        self.request_steps = 0
        self.violations = 0
        self._drafted, self._kept = [0] * longest, [0] * longest  # by position
        self._chosen = [0] * ((max_batch_size + 1) * self._width)
        self._cell_counts = [0] * (len(self._chosen) * KINDS)
        self._cell_micros = [0] * len(self._cell_counts)
        self._cell_prompt_tokens = [0] * len(self._cell_counts)
        self._samples: dict[int, _Samples] | None = None
        # The last step: (B, k), kind and prompt tokens, and when it was scheduled.
        self._place, self._kind, self._prompt_tokens, self._nanos = NO_CELL, DECODE, 0, 0
        self._settling = 0  # steps that are still beside the last prefill
        self._batch: Mapping[str, int] = NOTHING  # requests of the last step that had any
        self._length = 0  # chosen in it
        self._older: dict[str, int] = {}  # length chosen for requests that the last step left out
        self._in_flight: deque[_Step] = deque(maxlen=MAX_STEPS_IN_FLIGHT)
        self._verified: list[tuple[int, int, str]] = []  # of the requests of the step that is being updated

    # What the engine's thread calls

    def scheduled(self, out: Any, now_nanos: int) -> None:
        """After `schedule()`: `out` is vLLM's SchedulerOutput."""
        batch = out.num_scheduled_tokens
        if self._older:
            for request_id in out.finished_req_ids:
                self._older.pop(request_id, None)
        if not batch:
            self._place = NO_CELL  # the engine idles, and that is no step time
            return
        drafts = out.scheduled_spec_decode_tokens
        counts = list(map(len, drafts.values()))
        drafted = counts[0] if counts else 0
        is_uniform = counts.count(drafted) == len(counts)
        is_same = [*batch] == [*self._batch]
        # Requests that all decoded in the last step decode in this one, unless they are to compute more tokens than that takes.
        decode_only = is_same and self._kind < PREFILL and out.total_num_scheduled_tokens == len(batch) + sum(counts)
        prefilling = NOBODY if decode_only else _prefilling(out, sum(counts))
        padded = {request_id: len(drafts[request_id]) for request_id in drafts.keys() & prefilling} if prefilling else NOTHING
        lengths = None
        if not is_same:
            lengths = self._lengths_in_force(batch, out.finished_req_ids)
            self.violations += sum(
                len(tokens) > length
                for request_id, tokens in drafts.items()
                if request_id not in prefilling and (length := lengths[request_id]) is not None
            )
        elif drafted > self._length or not is_uniform:
            self.violations += sum(count > self._length for count in counts)
        self._in_flight.append(_Step(out, self._length, lengths, prefilling, padded))
        in_cell = is_uniform and (not counts or len(counts) == len(batch) - len(prefilling))
        place = len(batch) * self._width + drafted if in_cell else NO_CELL
        self._count(batch, place, prefilling, out.num_spec_tokens_to_schedule, now_nanos)

    def verified(self, drafts: int, kept: int, request_id: str) -> None:
        """Within `update_from_output()`, for each request with drafts, if the engine keeps no statistics that `updated` could read."""
        self._verified.append((drafts, kept, request_id))

    def updated(self, out: Any, outputs: Mapping[int, Any]) -> None:
        """After `update_from_output()` of the step that `out` began: `outputs` is what it returned."""
        step = None
        while self._in_flight and out.num_scheduled_tokens:
            step = self._in_flight.popleft()
            if step.out is out:
                break
            step = None
        verified, self._verified = self._verified, []
        if step is None:
            return
        tokens = request_steps = 0
        stats = None
        for group in outputs.values():
            made = [len(output.new_token_ids) for output in group.outputs]
            tokens += sum(made)
            if step.prefilling or step.lengths is not None:
                request_steps += sum(map(step.wanted_drafts, group.outputs))
            elif step.length:
                request_steps += len(made) - made.count(0)
            stats = group.scheduler_stats or stats  # of all groups, in one of them
        self.tokens += tokens
        self.request_steps += request_steps
        if stats is not None and (seen := stats.spec_decoding_stats) is not None:
            drafted = seen.num_draft_tokens_per_pos
            self._add(_without_padded(drafted, step.padded, outputs) if step.padded else drafted, seen.num_accepted_tokens_per_pos)
        elif verified:
            pairs = [pair for *pair, request_id in verified if request_id not in step.prefilling]
            self._add(*([sum(pair[which] > i for pair in pairs) for i in range(len(self._drafted))] for which in (0, 1)))

    def _add(self, drafted: Sequence[int], kept: Sequence[int]) -> None:
        """By position. What is kept comes last, as it must never look larger."""
        self._drafted = [*map(add, self._drafted, drafted)]
        self._kept = [*map(add, self._kept, kept)]

    # What other threads call

    @property
    def batch_size_last(self) -> int:
        """Requests in the last step that had any."""
        return len(self._batch)

    @property
    def draft_length_last(self) -> int:
        """The length chosen in that step."""
        return self._length

    def positions(self) -> tuple[int, list[int], list[int]]:
        """Request-steps with at least one draft; drafts and kept drafts by position."""
        kept = self._kept  # first, for both grow meanwhile
        drafted = self._drafted
        return (drafted[0] if drafted else 0), drafted, kept

    def chosen(self) -> list[list[int]]:
        """`[batch size, length chosen, steps]`, without those that never were."""
        return [[*divmod(i, self._width), steps] for i, steps in enumerate(self._chosen) if steps]

    def record(self, on: bool) -> None:
        """Keep samples from now on, beginning with none; or drop them."""
        self._samples = {} if on else None

    def cells(self) -> list[dict[str, Any]]:
        """Step times by batch size, draft length and regime; the most frequent cells, should there be too many."""
        samples = self._samples or {}
        seen = [i for i, count in enumerate(self._cell_counts) if count]
        if len(seen) > MAX_CELLS:
            seen = sorted(sorted(seen, key=self._cell_counts.__getitem__)[-MAX_CELLS:])
        return [self._cell_summary(i, samples.get(i)) for i in seen]

    def _cell_summary(self, index: int, samples: _Samples | None) -> dict[str, Any]:
        place, kind = divmod(index, KINDS)
        B, k = divmod(place, self._width)
        middle, spread = (None, None) if samples is None else samples.summary()
        summary: dict[str, Any] = {
            "batchSize": B,
            "draftLength": k,
            "regime": {DECODE: "decode", BESIDE: "beside"}.get(kind, "prefill"),
            "count": self._cell_counts[index],
            "totalMicros": self._cell_micros[index],
            "medianMicros": middle,
            "spreadMicros": spread,
        }
        if kind >= PREFILL:
            summary |= {"promptTokens": PROMPT_TOKENS[kind - PREFILL], "totalPromptTokens": self._cell_prompt_tokens[index]}
        return summary

    def _lengths_in_force(self, batch: Mapping[str, int], finished: Set[str]) -> dict[str, int | None]:
        """By request, the length that was chosen in the last step that had it; None if none did."""
        for request_id in self._batch.keys() - batch.keys() - finished:
            self._older[request_id] = self._length
        return {request_id: self._length if request_id in self._batch else self._older.pop(request_id, None) for request_id in batch}

    def _count(self, batch: Mapping[str, int], place: int, prefilling: frozenset[str], chosen: int, now_nanos: int) -> None:
        B = len(batch)
        self._time_last(place, bool(prefilling), now_nanos)
        self._place, self._nanos = place, now_nanos
        self._kind, self._settling = regime_of(bool(prefilling), self._settling)
        if prefilling:
            self._prompt_tokens = sum([batch[request_id] for request_id in prefilling])
            self._kind += bucket_of(self._prompt_tokens)
        self._chosen[B * self._width + chosen] += 1
        self.steps += 1
        self._batch, self._length = batch, chosen

    def _time_last(self, place: int, has_prefill: bool, now_nanos: int) -> None:
        """The time since the last step is that step's. A decode-only step has it only if the next one is of the same cell."""
        kind = regime_before(self._kind, has_prefill)
        if self._place == NO_CELL or (kind == DECODE and place != self._place):
            return
        cell, micros = self._place * KINDS + kind, (now_nanos - self._nanos) // 1000
        if (samples := self._samples) is not None:
            kept = samples.get(cell) or _Samples()
            kept.add(micros)
            samples[cell] = kept  # a step that is counted has a sample, whoever reads meanwhile
        if kind >= PREFILL:
            self._cell_prompt_tokens[cell] += self._prompt_tokens
        self._cell_micros[cell] += micros
        self._cell_counts[cell] += 1


def _without_padded(drafted: Sequence[int], padded: Mapping[str, int], outputs: Mapping[int, Any]) -> list[int]:
    """vLLM pads a request's first step with drafts that nobody made, when it has no table: they say nothing."""
    none = [padded.get(output.request_id, 0) for group in outputs.values() for output in group.outputs if output.new_token_ids]
    return [count - sum(drafts > i for drafts in none) for i, count in enumerate(drafted)]


def _prefilling(out: Any, drafts: int) -> frozenset[str]:
    """Requests that this step computes prompt tokens for, or computes again after a preemption."""
    batch, cached = out.num_scheduled_tokens, out.scheduled_cached_reqs
    steady = not out.scheduled_new_reqs and not cached.resumed_req_ids and all(cached.num_output_tokens)
    if steady and out.total_num_scheduled_tokens == len(batch) + drafts:
        return NOBODY
    return frozenset(_find_prefilling(out, cached))


def _find_prefilling(out: Any, cached: Any) -> Iterator[str]:
    for new in out.scheduled_new_reqs:
        yield new.req_id
    drafts, batch = out.scheduled_spec_decode_tokens, out.num_scheduled_tokens
    for request_id, output_tokens in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        decode_tokens = 1 + len(drafts.get(request_id, ()))
        if not output_tokens or request_id in cached.resumed_req_ids or batch[request_id] != decode_tokens:
            yield request_id
