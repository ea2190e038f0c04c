"""helm and kubectl on a real cluster: the development cluster, or the one of $KUBECONFIG with TABLETUNE_CLUSTER=existing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tabletune"
CLUSTER_COMMAND = ROOT / "dev" / "cluster" / "cluster"
KUBERNETES = "1.34.0"
"""For rendering without a cluster: what helm assumes depends on how it was built."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class CommandError(AssertionError):
    """A command that a test needs has failed."""


@dataclass(frozen=True, slots=True)
class Cluster:
    environment: Mapping[str, str]

    def run(self, *command: str, stdin: str | None = None, check: bool = True, timeout_seconds: float = 300) -> Done:
        done = subprocess.run(
            command, input=stdin, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout_seconds
        )
        if check and done.returncode != 0:
            raise CommandError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return Done(done.returncode, done.stdout, done.stderr)

    def helm(self, *arguments: str, **options: Any) -> Done:
        return self.run("helm", *arguments, **options)

    def kubectl(self, *arguments: str, **options: Any) -> Done:
        return self.run("kubectl", *arguments, **options)

    def template(self, *arguments: str, namespace: str = "tabletune-system", check: bool = True) -> Done:
        return self.helm("template", "tt", str(CHART), "-n", namespace, "--kube-version", KUBERNETES, *arguments, check=check)

    def render(self, *arguments: str, namespace: str = "tabletune-system") -> tuple[dict[str, Any], ...]:
        # LibYAML's loader: the definition is long.
        return tuple(body for body in yaml.load_all(self.template(*arguments, namespace=namespace).out, yaml.CSafeLoader) if body)

    def apply(self, *bodies: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(bodies))

    def names(self, kind: str, *arguments: str) -> tuple[str, ...]:
        """The objects of a kind; none when the cluster does not know the kind."""
        done = self.kubectl("get", kind, "-o", "name", *arguments, check=False)
        if done.code != 0 and "the server doesn't have a resource type" not in done.err:
            raise CommandError(done.err)
        return tuple(done.out.split())


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """The cluster; stopped at the end if it was started here."""
    ran = subprocess.run([CLUSTER_COMMAND, "status"], check=False, capture_output=True).returncode == 0
    yield Cluster(read_environment())
    if not ran:
        subprocess.run([CLUSTER_COMMAND, "down"], check=True, capture_output=True)


def is_existing() -> bool:
    """Somebody's own cluster, which is only used."""
    return os.environ.get("TABLETUNE_CLUSTER") == "existing"


def load_images(*names: str) -> None:
    """Build images that are not built yet, and put them on every node."""
    built = subprocess.run([ROOT / "dev" / "images" / "build", "--load", *names], check=False, capture_output=True, text=True)
    if built.returncode != 0:
        raise CommandError(f"dev/images/build --load {' '.join(names)}: exit {built.returncode}\n{built.stderr}")


def read_environment() -> Mapping[str, str]:
    """The environment in which helm and kubectl reach the cluster, which is started if it does not run."""
    started = subprocess.run([CLUSTER_COMMAND, "up"], check=False, capture_output=True, text=True)
    if started.returncode != 0:
        raise CommandError(f"dev/cluster/cluster up: exit {started.returncode}\n{started.stderr}")
    exports = subprocess.run([CLUSTER_COMMAND, "env"], check=True, capture_output=True, text=True).stdout
    printed = subprocess.run(["bash", "-c", f"{exports}\nenv -0"], check=True, capture_output=True, text=True, env=os.environ).stdout
    environment = dict(item.split("=", 1) for item in printed.split("\0") if "=" in item)
    for tool in ("helm", "kubectl"):
        if shutil.which(tool, path=environment["PATH"]) is None:
            raise CommandError(f"{tool} is not on PATH: install it, or run the tests on the embedded cluster, which brings its own.")
    return environment


def eventually(check: Callable[[], bool], what: str, timeout_seconds: float = 60) -> None:
    """Poll until `check` holds."""
    deadline = time.monotonic() + timeout_seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_seconds} s: {what}"
        time.sleep(0.2)
