"""The stand-in's HTTP side: the few routes that TableTune, llm-d's probes and load generators ask."""

from __future__ import annotations

import itertools
import json
import queue
import select
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vllm import __version__
from vllm.config import VllmConfig
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from replay import BANNER
from replay.metrics import render_metrics
from replay.tokens import decode, encode, kind_of
from replay.traffic import rates_for

IDLE_SECONDS = 5  # vLLM's server closes idle connections after as long
CHECK_CLIENT_SECONDS = 0.25
MAX_BODY_BYTES = 16 << 20
DEFAULT_MAX_TOKENS = 16


class RefusedError(Exception):
    """The request cannot be served: HTTP 400 with this text."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], config: VllmConfig, core: EngineCore) -> None:
        super().__init__(address, Handler)
        self.config = config
        self.core = core
        self.numbers = itertools.count(1)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    # Small answers must not wait for an acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        model = self.server.config.model_config
        if path in ("/health", "/ping"):
            self._send(200, b"", "text/plain")
        elif path == "/version":
            self._send_json(200, {"version": __version__, "note": BANNER})
        elif path == "/v1/models":
            entry = {"id": model.served_model_name, "object": "model", "root": model.model, "max_model_len": model.max_model_len}
            self._send_json(200, {"object": "list", "data": [{**entry, "owned_by": BANNER}]})
        elif path == "/metrics":
            text = render_metrics(self.server.core, model.served_model_name)
            self._send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._send_json(404, _error(404, f"{path}: the stand-in has no such route"))

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        try:
            body = self._read_body()
            if path == "/tokenize":
                tokens = _prompt(body)
                limit = self.server.config.model_config.max_model_len
                self._send_json(200, {"count": len(tokens), "max_model_len": limit, "tokens": tokens})
            elif path == "/detokenize":
                self._send_json(200, {"prompt": decode(_prompt({"prompt": body.get("tokens")}))})
            elif path == "/v1/completions":
                self._complete(body)
            else:
                self._send_json(404, _error(404, f"{path}: the stand-in has no such route"))
        except RefusedError as error:
            self._send_json(400, _error(400, str(error)))

    def _complete(self, body: dict[str, Any]) -> None:
        config = self.server.config
        name = body.get("model", config.model_config.served_model_name)
        if name not in (config.model_config.served_model_name, config.model_config.model):
            self._send_json(404, _error(404, f"The model `{name}` does not exist."))
            return
        tokens = _prompt(body)
        max_tokens = body.get("max_tokens", DEFAULT_MAX_TOKENS)
        if type(max_tokens) is not int or max_tokens < 1:
            raise RefusedError(f"max_tokens must be at least 1, got {max_tokens!r}.")
        if len(tokens) + max_tokens > config.model_config.max_model_len:
            raise RefusedError(
                f"This model's maximum context length is {config.model_config.max_model_len} tokens. "
                f"However, you requested {max_tokens} output tokens and your prompt contains {len(tokens)} input tokens."
            )
        produced: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        stream = body.get("stream") is True
        request = Request(
            request_id=f"cmpl-replay-{next(self.server.numbers)}",
            prompt_token_ids=tokens,
            max_tokens=max_tokens,
            acceptance=rates_for(kind_of(decode(tokens)), config.num_speculative_tokens),
            on_tokens=lambda count, last: produced.put((count, last)),
        )
        self.server.core.add_request(request)
        answer = _Answer(request, config.model_config.served_model_name)
        if stream:
            self._stream(answer, produced, include_usage=bool((body.get("stream_options") or {}).get("include_usage")))
            return
        total = sum(self._until_last(produced, request))
        if not request.aborted:
            self._send_json(200, answer.whole(total))

    def _stream(self, answer: _Answer, produced: queue.SimpleQueue[tuple[int, bool]], include_usage: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        total = 0
        try:
            for count in self._until_last(produced, answer.request):
                self._event(answer.part(first=total == 0, count=count))
                total += count
            if include_usage:
                self._event(answer.usage_part(total))
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            answer.request.aborted = True

    def _until_last(self, produced: queue.SimpleQueue[tuple[int, bool]], request: Request) -> Iterator[int]:
        """Numbers of new tokens, step by step; a client that went away ends its request, as in vLLM."""
        last = False
        while not last:
            try:
                count, last = produced.get(timeout=CHECK_CLIENT_SECONDS)
            except queue.Empty:
                if self._client_left():
                    request.aborted = True
                    self.close_connection = True
                    return
                continue
            yield count

    def _client_left(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True

    def _event(self, part: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(part).encode() + b"\n\n")

    def _read_body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            raise RefusedError(f"The body has {length} bytes, more than {MAX_BODY_BYTES}.")
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError as error:
            raise RefusedError(f"The body is not JSON: {error}.") from error
        if not isinstance(body, dict):
            raise RefusedError("The body is not a JSON object.")
        return body

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """An engine under load would write a line for every request; errors are answered to the client."""


class _Answer:
    """The bodies of one completion."""

    def __init__(self, request: Request, model: str) -> None:
        self.request = request
        self._head = {"id": request.request_id, "object": "text_completion", "created": int(time.time()), "model": model}

    def whole(self, total: int) -> dict[str, Any]:
        choice = {"index": 0, "text": f"[{BANNER}]" + " ok" * total, "logprobs": None, "finish_reason": "length"}
        return {**self._head, "choices": [choice], "usage": self._usage(total)}

    def part(self, first: bool, count: int) -> dict[str, Any]:
        text = (f"[{BANNER}]" if first else "") + " ok" * count
        return {**self._head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]}

    def usage_part(self, total: int) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": self._usage(total)}

    def _usage(self, total: int) -> dict[str, int]:
        prompt = self.request.num_prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": total, "total_tokens": prompt + total}


def _prompt(body: dict[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompt = encode(prompt)
    if not isinstance(prompt, list) or not prompt or any(type(t) is not int or t < 0 for t in prompt):
        raise RefusedError("prompt must be one text or one list of token ids, and not empty.")
    return prompt


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError" if status == 400 else "NotFoundError", "code": status}}
