"""Runs in the engine's environment: vLLM's own AsyncScheduler with the plugin in it, and dice in the place of a model.

A CPU engine never schedules ahead and never uses runner V2. Their scheduler needs no GPU, though: two steps are kept in
flight, drafts are placeholders, and requests end while a step with them is under way. Prints, as JSON, what the plugin
counted and what was rolled. The scheduler is that of `benchmarks/plugin_cost`, whose folder PYTHONPATH names.
"""

import json
import os
import random
import sys
from collections import deque
from typing import Any

from async_scheduler import make_config, make_scheduler
from vllm import SamplingParams
from vllm.plugins import load_general_plugins
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tabletune.channel import Channel, ChannelClosedError

BLOCKS = 2048
TABLES = ([[1, 4, 3], [5, 8, 1], [9, 16, 0]], [[1, 16, 1]], [[1, 2, 0], [3, 16, 3]])


def connect(path: str) -> Channel:
    channel = Channel(path)
    while True:
        try:
            channel.ask("hello")
        except ChannelClosedError:
            continue
        return channel


class Dice:
    """Rolls what a worker would return, and keeps its own account of what the scheduler must take of it."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler
        self._random = random.Random(1)
        self.account: dict[str, Any] = {"draftedSteps": 0, "drafted": [0] * 3, "kept": [0] * 3}
        self.discarded = 0

    def roll(self, out: Any) -> ModelRunnerOutput:
        ids = list(out.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            drafts = len(out.scheduled_spec_decode_tokens.get(request_id, ()))
            kept = self._random.randint(0, drafts)
            sampled.append([7] * (kept + 1))
            request = self._scheduler.requests.get(request_id)
            if request is None or request.is_finished():
                self.discarded += 1
            elif drafts:
                self._add(drafts, kept)
        return ModelRunnerOutput(req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled)

    def _add(self, drafts: int, kept: int) -> None:
        self.account["draftedSteps"] += 1
        for i in range(3):
            self.account["drafted"][i] += drafts > i
            self.account["kept"][i] += kept > i


def main() -> None:
    load_general_plugins()
    scheduler = make_scheduler(make_config(sys.argv[1], TABLES[0], BLOCKS))
    plugin = connect(os.environ["TABLETUNE_SOCKET"])
    dice = Dice(scheduler)
    source = random.Random(2)
    in_flight: deque[Any] = deque()
    waiting = [(source.randrange(150), f"r{i}") for i in range(60)]
    tokens = turn = 0
    while waiting or scheduler.has_requests() or in_flight:
        turn += 1
        for due, name in [entry for entry in waiting if entry[0] <= turn]:
            waiting.remove((due, name))
            params = SamplingParams(max_tokens=source.randrange(1, 60), ignore_eos=True)
            scheduler.add_request(Request(name, [source.randrange(3, 1000) for _ in range(20)], params, None))
        if turn % 40 == 0:
            every = turn % 3 * 7
            explore = {"everySteps": every, "draftLength": 3, "ranges": [[1, 16]]} if every else None
            plugin.ask("table", ranges=TABLES[turn // 40 % len(TABLES)], explore=explore)
        if turn % 30 == 0 and scheduler.running:
            scheduler.finish_requests(scheduler.running[0].request_id, RequestStatus.FINISHED_ABORTED)
        if scheduler.has_requests():
            out = scheduler.schedule()
            in_flight.append(out)
            if len(in_flight) < 2 and out.total_num_scheduled_tokens:
                continue
        if in_flight:
            out = in_flight.popleft()
            for group in scheduler.update_from_output(out, dice.roll(out)).values():
                tokens += sum(len(output.new_token_ids) for output in group.outputs)
    print(
        json.dumps(
            {
                "hello": plugin.ask("hello"),
                "counts": plugin.ask("counts"),
                "rolled": dice.account | {"tokens": tokens},
                "discarded": dice.discarded,
                "runnerV2": scheduler.use_v2_model_runner,
            }
        )
    )


if __name__ == "__main__":
    main()
