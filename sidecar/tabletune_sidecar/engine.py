"""Talks to the engine: the plugin's socket for counters and tables, and one small request over HTTP as a proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tabletune.channel import Channel
from tabletune.graphs import GraphCells
from tabletune.table import Table
from tabletune_sidecar.controller import EngineFacts, Push
from tabletune_sidecar.counters import Counters, StepCell, expect, expect_number, parse_counters
from tabletune_sidecar.exploration import to_message

SOCKET_TIMEOUT_SECONDS = 5.0
PROOF_TIMEOUT_SECONDS = 20.0
PROOF_PROMPT = "Count from one to ten: one, two, three,"
PROOF_TOKENS = 16


class AnswerError(Exception):
    """The engine answered something that the protocol does not know."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer to `counts`."""

    boot_id: str
    uptime_seconds: float
    counters: Counters
    batch_size_last: int
    draft_length_last: int


class Engine:
    """One engine, over all of its starts. Every method raises ChannelClosedError when nobody answers, ChannelError when it
    refuses, AnswerError when it says something else."""

    def __init__(self, socket_path: str) -> None:
        self._channel = Channel(socket_path, timeout=SOCKET_TIMEOUT_SECONDS)

    def facts(self) -> EngineFacts:
        answer = self._channel.ask("hello")
        with _understood("hello"):
            facts = answer["engine"]
            return EngineFacts(
                boot_id=expect(str, answer["bootId"]),
                active=expect(bool, answer["active"]),
                inactive_reason=answer["inactiveReason"],
                vllm=facts["vllm"],
                launch_lengths=tuple(expect(int, k) for k in facts["launchLengths"]),
                max_num_seqs=None if facts["maxNumSeqs"] is None else expect(int, facts["maxNumSeqs"]),
                graphs=GraphCells.of(facts),
                launch_table=_launch_table(facts["launchTable"]),
            )

    def counts(self) -> Reading:
        answer = self._channel.ask("counts")
        with _understood("counts"):
            return Reading(
                boot_id=expect(str, answer["bootId"]),
                uptime_seconds=expect_number(answer["uptimeSeconds"]),
                counters=parse_counters(answer),
                batch_size_last=expect(int, answer["batchSizeLast"]),
                draft_length_last=expect(int, answer["draftLengthLast"]),
            )

    def cells(self) -> tuple[str, tuple[StepCell, ...]]:
        """The boot id, and the steps since that start; those with a prefill in a cell for each bucket of prompt tokens."""
        answer = self._channel.ask("steps")
        with _understood("steps"):
            return expect(str, answer["bootId"]), tuple(
                StepCell(
                    batch_size=expect(int, c["batchSize"]),
                    draft_length=expect(int, c["draftLength"]),
                    regime=expect(str, c["regime"]),
                    count=expect(int, c["count"]),
                    total_micros=expect(int, c["totalMicros"]),
                    prompt_tokens=expect(int, c.get("totalPromptTokens", 0)),
                )
                for c in answer["cells"]
            )

    def push(self, push: Push) -> tuple[list[list[int]], int]:
        """Put a table in force: the ranges and the generation that the engine confirms."""
        answer = self._channel.ask(
            "table",
            ranges=push.table.to_vllm(),
            hysteresis=push.hysteresis,
            explore=to_message(push.explore) if push.explore else None,
        )
        with _understood("table"):
            return [list(row) for row in answer["inForce"]], expect(int, answer["generation"])

    def force(self, draft_length: int | None) -> None:
        """Use one length whatever the table says; None: follow the table."""
        self._channel.ask("force", draftLength=draft_length, reject=False)

    def close(self) -> None:
        self._channel.close()


def request_proof(engine_url: str) -> None:
    """Have the engine make a few tokens, so that there are steps to judge.

    Raises:
        httpx.HTTPError: it does not answer, or not with success.
        AnswerError: it names no model.
    """
    with httpx.Client(base_url=engine_url, timeout=PROOF_TIMEOUT_SECONDS) as client:
        models = client.get("/v1/models").raise_for_status()
        with _understood("/v1/models"):
            model = models.json()["data"][0]["id"]
        body = {"model": model, "prompt": PROOF_PROMPT, "max_tokens": PROOF_TOKENS, "temperature": 0, "ignore_eos": True}
        client.post("/v1/completions", json=body).raise_for_status()


def _launch_table(ranges: object) -> Table | None:
    """None: the engine does not say, or follows ranges that only it can read; the gain over them is then not known, and no more."""
    try:
        return None if ranges is None else Table.parse(ranges)
    except ValueError:
        return None


@contextmanager
def _understood(op: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise AnswerError(f"the engine's answer to {op} cannot be understood ({type(error).__name__}: {error})") from error
