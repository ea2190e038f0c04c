"""The webhook's server in a process of its own: a reconcile that computes takes the interpreter from every other thread.

The operator sends certificates and every change of its table over a pipe, and hears why pods were left as they are. The process ends with
the operator; if it ends before, the next look of the certificate keeper starts another one.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from tabletune_operator.admission_server import AdmissionServer
from tabletune_operator.injection import Injection, InjectionTable
from tabletune_operator.observation import ObjectRef

ANSWER_SECONDS = 60.0
"""It imports what it needs first, which takes seconds on a busy machine."""
END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Serve:
    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class _Served:
    port: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class _Refusal:
    draft_table: ObjectRef
    why: str


class AdmissionProcess:
    """As AdmissionServer, for the operator."""

    def __init__(self, table: InjectionTable, port: int, host: str | None = None) -> None:
        self._table = table
        self._host = host
        self._port = port
        self._process: SpawnProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._answers: queue.SimpleQueue[_Served] = queue.SimpleQueue()
        self._sending = threading.Lock()
        table.on_change = self._tell

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_serving(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def use(self, certificate: str, key: str) -> None:
        """Blocks until it is served with this certificate. Raises OSError: it cannot be."""
        if not self.is_serving:
            self._start()
        self._tell(_Serve(certificate, key))
        try:
            answer = self._answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            answer = _Served(self._port, "The webhook's process does not answer.")
        if answer.problem is not None:
            self.close()
            raise OSError(answer.problem)
        self._port = answer.port

    def close(self) -> None:
        with self._sending:
            pipe, self._pipe = self._pipe, None
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.send(None)
        if self._process is not None:
            self._process.join(END_SECONDS)
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a copy of the operator's memory would hold its locks as they are at that moment
        ours, theirs = context.Pipe()
        self._answers = queue.SimpleQueue()
        self._process = context.Process(target=_serve, args=(theirs, self._port, self._host), name="admission", daemon=True)
        self._process.start()
        theirs.close()
        with self._sending:
            for injection in self._table.by_workload.values():
                ours.send(injection)
            self._pipe = ours
        threading.Thread(target=self._listen, args=(ours, self._answers), name="admission-answers", daemon=True).start()

    def _tell(self, message: Injection | ObjectRef | _Serve) -> None:
        """One that has ended is told everything when it is started again."""
        with self._sending, contextlib.suppress(OSError):
            if self._pipe is not None:
                self._pipe.send(message)

    def _listen(self, pipe: Connection[Any, Any], answers: queue.SimpleQueue[_Served]) -> None:
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                answers.put(_Served(self._port, "The webhook's process ended."))
                return
            match message:
                case _Refusal(draft_table, why):
                    self._table.refuse(draft_table, why)
                case _Served():
                    answers.put(message)


class _TellingTable(InjectionTable):
    """Of the process: its refusals are the operator's to know."""

    def __init__(self, pipe: Connection[Any, Any], sending: threading.Lock) -> None:
        super().__init__()
        self._pipe = pipe
        self._sending = sending

    def refuse(self, draft_table: ObjectRef, why: str) -> None:
        with self._sending:
            self._pipe.send(_Refusal(draft_table, why))


def _serve(pipe: Connection[Any, Any], port: int, host: str | None) -> None:
    """The process: until the operator says so, or is gone."""
    logging.basicConfig(level=logging.WARNING)
    sending = threading.Lock()
    table = _TellingTable(pipe, sending)
    server = AdmissionServer(table, port, host)
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            break
        match message:
            case Injection():
                table.put(message)
            case ObjectRef():
                table.remove(message)
            case _Serve(certificate, key):
                problem: str | None = None
                try:
                    server.use(certificate, key)
                except (OSError, ValueError) as error:
                    problem = f"The webhook cannot be served on port {port}: {error}"
                with sending:
                    pipe.send(_Served(server.port, problem))
            case None:
                break
    server.close()
