"""One run from start to end, whatever happens in it: the outcome, the deadline, and the engine stopped."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from tabletune.channel import ChannelClosedError, ChannelError
from tabletune_tuner.engine import Engine, EngineFailureError
from tabletune_tuner.options import Options
from tabletune_tuner.outcome import Outcome, Status, TunerError
from tabletune_tuner.progress import Event, Show, Tracker, finish, to_annotation
from tabletune_tuner.publish import Sink
from tabletune_tuner.stages import Stages


async def run(options: Options, sink: Sink, show: Show) -> Outcome:
    """Measure, decide, publish. Never raises for what can go wrong; the engine is stopped at the end in any case."""
    engine = Engine(options.run_dir, options.engine_url)

    def listen(event: Event) -> None:
        show(event)
        sink.note(to_annotation(event, gpu_seconds=engine.device_seconds))

    tracker = Tracker(listen)
    try:
        outcome = await _run_in_time(options, engine, tracker, sink)
    finally:
        await engine.close()
    last = Event("done", outcome.message, finish(tracker.progress), datetime.now(UTC))
    await sink.finish(to_annotation(last, gpu_seconds=engine.device_seconds, outcome=outcome.status.value, reason=outcome.reason))
    return outcome


async def _run_in_time(options: Options, engine: Engine, tracker: Tracker, sink: Sink) -> Outcome:
    try:
        async with asyncio.timeout(options.timeout_seconds):
            files, table = await Stages(options, engine, tracker).measure()
            tracker.enter("publish", "writing the files")
            await sink.publish(files)
            tracker.leave(f"{len(files)} files")
            return Outcome(Status.SUCCEEDED, table.verdict.reason, table.verdict.message, files)
    except TunerError as error:
        return Outcome(error.status, error.reason, error.message, {})
    except TimeoutError:
        p = tracker.progress
        return Outcome(
            Status.FAILED,
            "Timeout",
            f"The run took {options.timeout_seconds} s and was in stage {p.stage} with {p.cells_done} of {p.cells_total} cells. "
            "Raise spec.profile.timeoutSeconds, or lower maxBatchSize, repeats or outputTokens.",
            {},
        )
    except EngineFailureError as error:
        return Outcome(Status.FAILED, "EngineKeepsDying", f"The engine failed in stage {tracker.progress.stage}: {error}.", {})
    except ChannelError as error:
        return Outcome(Status.FAILED, error.code, f"The plugin refused in stage {tracker.progress.stage}: {error.message}", {})
    except ChannelClosedError as error:
        return Outcome(
            Status.FAILED, "SupervisorMissing", f"The engine's supervisor is gone in stage {tracker.progress.stage}: {error}", {}
        )
