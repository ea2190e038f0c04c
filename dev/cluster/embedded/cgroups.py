"""The nodes' control groups: made before the kubelet wants them, and the surest list of what runs in pods."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from embedded.errors import ClusterError
from embedded.settings import Node

ROOT = Path("/sys/fs/cgroup")
KILL_SECONDS = 10


def _hierarchies() -> list[Path]:
    """The mounted hierarchies: the only one of cgroup v2, or each controller's of v1."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()]


def ensure(node: Node) -> None:
    """The node's group in every hierarchy, with what a new group does not inherit."""
    for hierarchy in _hierarchies():
        group = hierarchy / node.cgroup.lstrip("/")
        group.mkdir(parents=True, exist_ok=True)
        for parent in reversed(group.relative_to(hierarchy).parents):
            above = hierarchy / parent
            if (above / "cgroup.subtree_control").exists():
                wanted = " ".join(f"+{name}" for name in (above / "cgroup.controllers").read_text().split())
                (above / "cgroup.subtree_control").write_text(wanted)
        for value in ("cpuset.cpus", "cpuset.mems"):  # empty in a new v1 group, and then nothing may run in it
            for folder in (group.parent, group):
                if (hierarchy / value).exists() and not (folder / value).read_text().strip():
                    (folder / value).write_text((hierarchy / value).read_text())


def _groups(node: Node) -> list[Path]:
    """The node's groups and all below them, deepest first."""
    found = []
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / node.cgroup.lstrip("/"), topdown=False):
            found.append(Path(folder))
    return found


def _processes(node: Node) -> set[int]:
    pids: set[int] = set()
    for group in _groups(node):
        pids.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
    return pids


def remove(node: Node) -> None:
    """End whatever still runs in the node's pods, and remove its groups."""
    deadline = time.monotonic() + KILL_SECONDS
    while pids := _processes(node):
        if time.monotonic() > deadline:
            raise ClusterError(f"Processes of {node.name}'s pods do not end: {sorted(pids)}. See what they wait for, then try again.")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    for group in _groups(node):
        group.rmdir()
    for hierarchy in _hierarchies():
        parent = hierarchy / node.cgroup.lstrip("/").partition("/")[0]
        if parent.exists() and not any(child.is_dir() for child in parent.iterdir()):
            parent.rmdir()
