"""Applies manifests as kubectl, Helm, Flux and Argo CD do: the program of tests/e2e/gitops, and how to build and run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "e2e" / "gitops"

_building = threading.Lock()


@dataclass(frozen=True, slots=True)
class Round:
    """What a tool did to one object, in one of its rounds.

    `before` and `after` are generations, 0 when there was no such object. They count edits of a Deployment's annotations too;
    `changed` tells whether the pod template changed, which restarts pods.
    """

    round: int
    object: str
    before: int
    after: int
    changed: bool
    did: str
    error: str


@dataclass(frozen=True, slots=True)
class Repeating:
    """A tool that goes on in the background."""

    log: Path

    def rounds(self) -> tuple[Round, ...]:
        """Those that are done, from the first one on."""
        text = self.log.read_text()
        return _parse(text[: text.rfind("\n") + 1])


@dataclass(frozen=True, slots=True)
class GitOps:
    """`environment` reaches the cluster, and finds kubectl and helm."""

    environment: Mapping[str, str]

    def apply(self, tool: str, namespace: str, folder: Path, *bodies: Mapping[str, Any], options: Sequence[str] = ()) -> tuple[Round, ...]:
        """Once. What fails stands in the round."""
        command = self._command(tool, namespace, folder, bodies, options)
        done = subprocess.run(command, env=dict(self.environment), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}"
        return _parse(done.stdout)

    @contextmanager
    def repeating(
        self, tool: str, namespace: str, folder: Path, *bodies: Mapping[str, Any], every: str, options: Sequence[str] = ()
    ) -> Iterator[Repeating]:
        """Every so often, from now until the end of the block."""
        command = self._command(tool, namespace, folder, bodies, ("--every", every, "--for", "1h", *options))
        log, complaints = folder / "rounds.log", folder / "errors.log"
        with log.open("w") as out, complaints.open("w") as err:
            process = subprocess.Popen(command, env=dict(self.environment), stdout=out, stderr=err)
            try:
                yield Repeating(log)
                ended = process.poll()
            finally:
                process.terminate()
                process.wait()
        assert ended is None, f"{' '.join(command)} ended by itself: exit {ended}\n{complaints.read_text()}"

    def _command(self, tool: str, namespace: str, folder: Path, bodies: Sequence[Mapping[str, Any]], options: Sequence[str]) -> list[str]:
        manifest = folder / "manifest.yaml"
        manifest.write_text(yaml.safe_dump_all(bodies))
        return [str(program()), "apply", "--as", tool, "--namespace", namespace, *options, str(manifest)]


def program() -> Path:
    """Built when it is first needed, then in the cache."""
    with _building:
        return _program()


@cache
def _program() -> Path:
    sys.path.insert(0, str(ROOT / "dev" / "cluster"))
    from embedded import build
    from embedded.settings import read_settings

    return build.program(read_settings(os.environ, existing=False), SOURCE)


def _parse(text: str) -> tuple[Round, ...]:
    fields = ("round", "object", "generationBefore", "generationAfter", "templateChanged", "did")
    lines = (json.loads(line) for line in text.splitlines())
    return tuple(Round(*(line[name] for name in fields), line.get("error", "")) for line in lines)
