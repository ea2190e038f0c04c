"""The Go module of LeaderWorkerSet, at the version that dev/images/lws pins: its chart, and the definition that its API server serves."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

MODULE = "sigs.k8s.io/lws"
DEFINITION = "leaderworkersets.leaderworkerset.x-k8s.io"
SOURCE = Path(__file__).resolve().parents[2] / "dev" / "images" / "lws"


@cache
def folder() -> Path:
    """In Go's cache of modules."""
    done = subprocess.run(["go", "mod", "download", "-json", MODULE], cwd=SOURCE, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"go mod download {MODULE}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return Path(json.loads(done.stdout)["Dir"])


def chart() -> Path:
    return folder() / "charts" / "lws"


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    text = (chart() / "crds" / "leaderworkerset.x-k8s.io_leaderworkersets.yaml").read_text()
    body: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return body
