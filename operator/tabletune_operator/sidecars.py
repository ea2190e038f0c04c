"""What replicas say for themselves: the engine's version and counters, and the sidecar's `/state` (docs/protocol.md).

Asked all at once with short time-outs: a pod that does not answer is an observed fact, not an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tabletune.acceptance import Counts
from tabletune.table import Table
from tabletune_operator.engine_counts import parse_served
from tabletune_operator.observation import Goodput, Served, SidecarState
from tabletune_operator.rollout import SIDECAR_PORT

FORMAT_VERSION = 1
TIMEOUT = httpx.Timeout(3.0, connect=1.0)


@dataclass(frozen=True, slots=True)
class Silence:
    """Why nothing usable was heard, in words for a message."""

    why: str


def build_client() -> httpx.AsyncClient:
    """Pod addresses are asked directly: no proxy of the environment may get in between."""
    return httpx.AsyncClient(timeout=TIMEOUT, trust_env=False)


async def read_engine_version(http: httpx.AsyncClient, ip: str, port: int) -> str | None:
    """vLLM's own word, from `/version`; None when it does not say."""
    answer = await _get(http, f"http://{_host(ip)}:{port}/version")
    if isinstance(answer, Silence):
        return None
    version = answer.get("version")
    return version if isinstance(version, str) else None


async def read_served(http: httpx.AsyncClient, ip: str, port: int) -> Served | None:
    """vLLM's own counters, from `/metrics`; None when it does not answer."""
    try:
        return parse_served((await http.get(f"http://{_host(ip)}:{port}/metrics")).raise_for_status().text)
    except (httpx.HTTPError, ValueError):
        return None


async def read_sidecar(http: httpx.AsyncClient, ip: str) -> SidecarState | Silence:
    answer = await _get(http, f"http://{_host(ip)}:{SIDECAR_PORT}/state")
    if isinstance(answer, Silence):
        return answer
    try:
        return parse_state(answer)
    except (KeyError, TypeError, ValueError) as error:
        return Silence(f"answered with a state that cannot be read ({error})")


def parse_state(state: dict[str, Any]) -> SidecarState:
    """Raises KeyError, TypeError or ValueError when it is not the format that docs/protocol.md gives."""
    if state["formatVersion"] != FORMAT_VERSION:
        raise ValueError(f"formatVersion {state['formatVersion']!r}, this operator reads {FORMAT_VERSION}")
    engine, table = state["engine"], state["table"]
    counts = state.get("counts") or {}
    acceptance = state.get("acceptance") or {}
    return SidecarState(
        reachable=bool(engine["reachable"]),
        active=bool(engine.get("active")),
        inactive_reason=engine.get("inactiveReason"),
        vllm=engine.get("vllm"),
        in_force=Table.parse(table["inForce"]) if table.get("inForce") else None,
        generation=int(table.get("generation") or 0),
        honoured=str(state["honoured"]),
        honoured_steps=int(state.get("honouredSteps") or 0),
        violations=int(state.get("violations") or 0),
        acceptance=tuple(float(a) for a in acceptance.get("used") or ()),
        drafted=tuple(int(n) for n in counts.get("drafted") or ()),
        kept=tuple(int(n) for n in counts.get("kept") or ()),
        evidence=_counts(acceptance.get("evidence")),
        goodput=_goodput(state.get("goodput")),
        files=(state.get("files") or {}).get("digest"),
        batch_size=_optional(state.get("batchSizeLast")),
        draft_length=_optional(counts.get("draftLengthLast")),
        slowdown=_share((state.get("stepTimes") or {}).get("common")),
        prompt_tokens=_share((state.get("requests") or {}).get("promptTokens")),
        tracks=bool(state["tracks"]),
        problems=tuple(f"{problem['code']}: {problem['message']}" for problem in state.get("problems") or ()),
    )


def _counts(evidence: dict[str, Any] | None) -> Counts | None:
    if evidence is None:
        return None
    drafted, kept = (tuple(int(n) for n in evidence[name]) for name in ("drafted", "kept"))
    return Counts(int(evidence["requestSteps"]), int(evidence["draftedSteps"]), drafted, kept)


def _goodput(told: dict[str, Any] | None) -> Goodput | None:
    return None if told is None else Goodput(int(told["steps"]), int(told["tokens"]), int(told["expectedTokens"]))


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


def _share(value: Any) -> float | None:
    return None if value is None else float(value)


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip


async def _get(http: httpx.AsyncClient, url: str) -> dict[str, Any] | Silence:
    try:
        response = await http.get(url)
        answer = response.raise_for_status().json()
    except httpx.TimeoutException:
        return Silence("does not answer in time")
    except httpx.HTTPStatusError as error:
        return Silence(f"answers with HTTP {error.response.status_code}")
    except httpx.HTTPError:
        return Silence("cannot be reached")
    except ValueError:
        return Silence("answers with something else than JSON")
    return answer if isinstance(answer, dict) else Silence("answers with something else than an object")
