"""The plugin inside a real engine, with a drafter that runs a model.

The tests share one engine; the last one kills it.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_engine import (
    DRAFT_MODEL,
    LAUNCH_TABLE,
    NGRAM,
    WORKER_PROCESS,
    Account,
    Launcher,
    LiveEngine,
    Reply,
    eventually,
    is_refused,
    prompts,
)

from tabletune.channel import Channel, ChannelError


@pytest.fixture
def engine(launcher: Launcher) -> LiveEngine:
    return launcher.use(DRAFT_MODEL)


def assert_counted(change: dict[str, object], replies: list[object]) -> None:
    account = Account.of(replies)  # type: ignore[arg-type]
    assert {name: change[name] for name in vars(account)} == vars(account)
    assert change["violations"] == 0


def test_installs_itself_and_knows_the_engine(engine: LiveEngine) -> None:
    hello = engine.plugin.ask("hello")
    assert (hello["active"], hello["inactiveReason"], hello["rejectBy"]) == (True, None, "plugin")
    facts = hello["engine"]
    unknown = {name for name, value in facts.items() if value is None}
    assert unknown <= {"revision", "drafterRevision", "drafterTrainedLength", "quantization"}
    wanted = {
        "runner": "v1",
        "device": "cpu",
        "model": engine.model,
        "dtype": "bfloat16",
        "method": "draft_model",
        "numSpeculativeTokens": 3,
        "launchTable": LAUNCH_TABLE,
        "launchLengths": [0, 1, 2, 3],
        "maxNumSeqs": 16,
        "maxModelLen": 1024,
        "dataParallelSize": 1,
        "enforceEager": True,
        "asyncScheduling": False,
    }
    assert {name: facts[name] for name in wanted} == wanted


def test_counts_what_vllm_counts_for_each_request(engine: LiveEngine) -> None:
    change, replies = engine.counted(
        lambda: [reply for count in (1, 3, 7, 12) for reply in engine.complete_together(prompts(count, seed=count))]
    )
    assert_counted(change, replies)
    assert change["tokens"] == 48 * 23
    # A drafter that runs a model drafts in every step that asks for it.
    assert change["requestSteps"] == change["draftedSteps"] > 0
    assert sum(change["chosen"].values()) == change["steps"]
    assert all(k == {1: 3, 2: 1, 3: 0, 4: 0}[(B + 3) // 4] for B, k in change["chosen"])


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_a_forced_length_is_obeyed(engine: LiveEngine, k: int) -> None:
    engine.plugin.ask("force", draftLength=k)
    change, replies = engine.counted(lambda: engine.complete_together(prompts(4, seed=40)))
    assert_counted(change, replies)
    assert {chosen for _, chosen in change["chosen"]} == {k}
    assert {drafted for reply in replies for drafted in reply.drafted[:-1]} <= ({k} if k else set())


def test_rejecting_gives_one_token_a_step_and_the_same_text(engine: LiveEngine) -> None:
    asked = prompts(4, seed=50)
    free = engine.complete_together(asked)
    engine.plugin.ask("record", on=True)
    assert engine.plugin.ask("force", draftLength=3, reject=True) == {"draftLength": 3, "reject": True}
    change, replies = engine.counted(lambda: engine.complete_together(asked))
    cells = engine.plugin.ask("steps")["cells"]
    assert change["kept"] == [0, 0, 0]
    assert change["draftedSteps"] == change["drafted"][2] == 4 * 47
    assert [reply.text for reply in replies] == [reply.text for reply in free]
    # On a busy machine the four may not run at the same time: whatever ran is timed.
    timed = [c for c in cells if (c["draftLength"], c["regime"]) == (3, "decode") and c["medianMicros"] is not None]
    assert timed
    assert all(0 <= c["spreadMicros"] < c["medianMicros"] < 10_000_000 and c["totalMicros"] >= c["count"] for c in timed)
    engine.plugin.ask("force", draftLength=None, reject=False)
    change, _ = engine.counted(lambda: engine.complete_together(asked))
    assert change["kept"][0] > 0


def test_a_table_swapped_under_load_holds_from_the_next_step_and_fails_no_request(engine: LiveEngine) -> None:
    tables = [[[1, 16, k]] for k in (1, 3, 0, 2)]
    mixed: list[tuple[int, int]] = []
    done = threading.Event()

    def swap() -> None:
        with Channel(engine.plugin_path) as plugin:
            generation = plugin.ask("table", ranges=tables[0])["generation"]
            while not done.wait(0.05):
                generation += 1
                wanted = tables[generation % 4]
                before = plugin.ask("counts")["chosen"]
                answer = plugin.ask("table", ranges=wanted)
                assert answer == {"inForce": wanted, "generation": generation}
                time.sleep(0.15)
                after = plugin.ask("counts")["chosen"]
                grown = {k for B, k, steps in after if [B, k, steps] not in before}
                # The step that was scheduled while the table was on its way may still show the old length.
                mixed.append((len(grown - {wanted[0][2]}), len(grown)))

    def load() -> list[Reply]:
        """However quick the engine is: while each table is in force three times."""
        replies = []
        while swapper.is_alive() and len(mixed) < 3 * len(tables):
            replies += engine.complete_together(prompts(8, seed=60), max_tokens=128)
        return replies

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        change, replies = engine.counted(load)
    finally:
        done.set()
        swapper.join()
    assert_counted(change, replies)
    assert all(reply.tokens == 128 for reply in replies)
    assert change["swaps"] >= 5
    assert {k for _, k in change["chosen"]} == {0, 1, 2, 3}
    assert mixed
    assert all(others <= 1 for others, _ in mixed)


def test_explores_with_the_length_that_was_asked_for(engine: LiveEngine) -> None:
    explore = {"everySteps": 8, "draftLength": 2, "ranges": [[1, 4]]}
    engine.plugin.ask("table", ranges=[[1, 16, 1]], explore=explore)
    change, replies = engine.counted(lambda: [engine.complete(prompts(1, seed=70)[0], max_tokens=100)])
    assert_counted(change, replies)
    assert change["exploringSteps"] == change["chosen"][1, 2]
    assert change["exploringSteps"] - change["steps"] // 8 in {0, 1}  # steps before these may count towards the first one
    assert {k for _, k in change["chosen"]} == {1, 2}
    engine.plugin.ask("table", ranges=[[1, 16, 1]], explore=explore | {"ranges": [[2, 16]]})
    change, _ = engine.counted(lambda: [engine.complete(prompts(1, seed=71)[0], max_tokens=100)])
    assert change["exploringSteps"] == 0


def test_a_table_that_the_launch_set_does_not_hold_leaves_the_engine_as_it_was(engine: LiveEngine) -> None:
    for ranges, code in (([[1, 16, 4]], "LengthNotInLaunchSet"), ([[2, 16, 1]], "BadTable")):
        with pytest.raises(ChannelError) as refused:
            engine.plugin.ask("table", ranges=ranges)
        assert refused.value.code == code
    change, _ = engine.counted(lambda: engine.complete_together(prompts(2, seed=80)))
    assert {k for _, k in change["chosen"]} == {3}


def test_broken_clients_and_messages_change_nothing(engine: LiveEngine) -> None:
    path = engine.plugin_path
    asked = prompts(4, seed=90)
    quiet = [reply.text for reply in engine.complete_together(asked)]
    done = threading.Event()

    def misbehave() -> None:
        bad = [b"nonsense\n", b'{"v": 9, "id": 1, "op": "force"}\n', b'{"v":1,"id":1,"op":"table","ranges":7}\n']
        bad += [b"\xff" * 100_000, b'{"v":1,"id":1,"op":"force","draftLength":', b"x" * (2 << 20) + b"\n"]
        while not done.wait(0.01):
            for message in bad:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)
                    client.sendall(message)

    client = threading.Thread(target=misbehave)
    client.start()
    try:
        change, replies = engine.counted(lambda: engine.complete_together(asked))
    finally:
        done.set()
        client.join()
    assert_counted(change, replies)
    assert [reply.text for reply in replies] == quiet
    assert change["swaps"] == 0
    assert {k for _, k in change["chosen"]} == {3}


def test_a_socket_file_that_is_taken_away_comes_back(engine: LiveEngine) -> None:
    boot_id = engine.plugin.ask("hello")["bootId"]
    Path(engine.plugin_path).unlink()
    engine.plugin.close()
    eventually(lambda: not is_refused(engine.plugin), 60, "the plugin listens again")
    assert engine.plugin.ask("hello")["bootId"] == boot_id


def test_an_engine_killed_under_load_is_reported_and_the_next_one_starts(engine: LiveEngine, launcher: Launcher) -> None:
    before = engine.supervisor.ask("status")
    boot_id = engine.plugin.ask("hello")["bootId"]
    load = threading.Thread(target=_ignore_failure, args=(lambda: engine.complete(prompts(1, seed=99)[0], 900),))
    load.start()
    eventually(lambda: engine.plugin.ask("counts")["batchSizeLast"] == 1, 60, "the request runs")
    said = engine.supervisor.ask("log", lines=1)["lines"]
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: engine.supervisor.ask("status")["state"] == "exited", 60, "the supervisor saw it")
    load.join()
    status = engine.supervisor.ask("status")
    assert (status["exitCode"], status["signal"], status["pid"]) == (None, 9, None)
    assert said
    assert said[0] in engine.supervisor.ask("log")["lines"]
    again = launcher.use(NGRAM, WORKER_PROCESS)  # another one than the tests above, so that the next file finds it running
    assert again.supervisor.ask("status")["starts"] == before["starts"] + 1
    assert again.plugin.ask("hello")["bootId"] != boot_id
    change, replies = again.counted(lambda: again.complete_together(prompts(2, seed=100)))
    assert_counted(change, replies)


def _ignore_failure(work: Callable[[], object]) -> None:
    try:
        work()
    except OSError:
        return
