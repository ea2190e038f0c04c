"""The webhook's own process: what the operator tells it, what it tells the operator, and how it ends. Real processes, sockets and TLS."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from typing import Any

import pytest
from admissions import injection, pod_of, review_of
from deployments import llm_d, with_container

from tabletune_operator.admission_process import AdmissionProcess
from tabletune_operator.admission_server import PATH
from tabletune_operator.certificates import Certificates, renewed
from tabletune_operator.injection import InjectionTable

HOST = "127.0.0.1"
SECONDS = 60


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.05)


def certificates() -> Certificates:
    return renewed({}, (HOST,), datetime.now(UTC))


def ask(server: AdmissionProcess, made: Certificates, pod: Any, path: str = PATH, **request: Any) -> tuple[int, dict[str, Any]]:
    body = json.dumps(review_of(pod, llm_d()["metadata"]["namespace"], **request)) if pod is not None else "nonsense"
    context = ssl.create_default_context(cadata=made.authorities)
    connection = HTTPSConnection(HOST, server.port, context=context, timeout=SECONDS)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answered = connection.getresponse()
    text = answered.read()
    connection.close()
    return answered.status, json.loads(text)["response"] if answered.status == 200 else {}


@pytest.fixture
def table() -> InjectionTable:
    return InjectionTable()


@pytest.fixture
def server(table: InjectionTable) -> Iterator[AdmissionProcess]:
    made = AdmissionProcess(table, 0, HOST)
    yield made
    made.close()


def test_it_answers_from_the_table_as_it_is_now(table: InjectionTable, server: AdmissionProcess) -> None:
    made, pod = certificates(), pod_of(llm_d())
    table.put(injection())  # before it was started
    server.use(made.certificate, made.key)
    assert "patch" in ask(server, made, pod)[1]
    table.remove(injection().draft_table)
    until(lambda: "patch" not in ask(server, made, pod)[1], "an answer without our patch")
    table.put(injection(config=None))
    until(lambda: "patch" in ask(server, made, pod)[1], "an answer with our patch")


def test_why_a_pod_was_left_as_it_is_comes_back(table: InjectionTable, server: AdmissionProcess) -> None:
    made, other = certificates(), pod_of(with_container(image="docker.io/vllm/vllm-openai:v9"))
    table.put(injection())
    server.use(made.certificate, made.key)
    assert "warnings" in ask(server, made, other, dryRun=True)[1]
    assert table.refusal(injection().draft_table) is None
    assert "warnings" in ask(server, made, other)[1]
    until(lambda: "v9" in (table.refusal(injection().draft_table) or ""), "the refusal")


def test_what_is_no_review_is_refused_and_nothing_ends(table: InjectionTable, server: AdmissionProcess) -> None:
    made = certificates()
    server.use(made.certificate, made.key)
    assert ask(server, made, None)[0] == 400
    assert ask(server, made, pod_of(llm_d()), "/other")[0] == 404
    assert ask(server, made, pod_of(llm_d()))[0] == 200


def test_a_new_certificate_holds_for_new_connections(table: InjectionTable, server: AdmissionProcess) -> None:
    expired = renewed({}, (HOST,), datetime.now(UTC) - timedelta(days=200))
    server.use(expired.certificate, expired.key)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        ask(server, expired, pod_of(llm_d()))
    cured = renewed(expired.to_data(), (HOST,), datetime.now(UTC))
    server.use(cured.certificate, cured.key)
    assert ask(server, expired, pod_of(llm_d()))[0] == 200  # trusted as before


def test_one_that_was_killed_is_started_again_with_all_it_knew(table: InjectionTable, server: AdmissionProcess) -> None:
    made = certificates()
    table.put(injection())
    server.use(made.certificate, made.key)
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not server.is_serving, "it is seen to have ended")
    table.put(injection(config=None))  # nobody is there to hear it
    server.use(made.certificate, made.key)
    assert server.pid != pid
    assert "patch" in ask(server, made, pod_of(llm_d()))[1]


def test_a_port_that_is_taken_is_an_error_that_says_so(table: InjectionTable) -> None:
    made = certificates()
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        server = AdmissionProcess(table, taken.getsockname()[1], HOST)
        with pytest.raises(OSError, match=r"cannot be served on port \d+: .*in use"):
            server.use(made.certificate, made.key)
        assert not server.is_serving


def test_it_ends_when_it_is_closed(table: InjectionTable, server: AdmissionProcess) -> None:
    made = certificates()
    server.use(made.certificate, made.key)
    pid = server.pid
    assert pid is not None
    server.close()
    assert not server.is_serving
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, server.port), timeout=SECONDS)
