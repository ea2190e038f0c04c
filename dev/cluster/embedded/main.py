"""The command line: which action, on which cluster, one at a time."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from embedded import existing, images, lifecycle
from embedded.daemons import Daemons
from embedded.errors import ClusterError
from embedded.settings import Settings, read_settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="Kubernetes 1.34 with two nodes on this machine.")
    parser.add_argument("--existing", action="store_true", help="use the cluster of $KUBECONFIG instead (also TABLETUNE_CLUSTER=existing)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start what does not run, and wait until all of it is ready")
    up.add_argument(
        "--existing", action="store_true", help="only check the cluster of $KUBECONFIG (as all do with TABLETUNE_CLUSTER=existing)"
    )
    commands.add_parser("down", help="end and remove everything that `up` has made, except builds and logs")
    commands.add_parser("status", help="show the processes and the nodes")
    commands.add_parser("load", help="put image archives on the nodes").add_argument("archives", nargs="+", type=Path)
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    commands.add_parser("env", help='print shell commands for kubectl and helm: eval "$(cluster env)"')
    return parser


def _sayer() -> Callable[[str], None]:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"cluster: {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    return say


def _status(settings: Settings, daemons: Daemons) -> int:
    names = daemons.names()
    if not names:
        print(f"There is no cluster in {settings.root}. Start one with `cluster up`.")
        return 1
    dead = [name for name in names if daemons.pid(name) is None]
    for name in names:
        print(f"{name:26} {daemons.pid(name) or 'dead: `cluster up` starts it again'}")
    print(f"logs in {settings.logs}\n")
    if dead:
        return 1
    print(lifecycle.kubectl(settings, "get", "nodes", "--label-columns=nvidia.com/gpu.product"), end="")
    return 0


def _act(arguments: argparse.Namespace, settings: Settings) -> int:
    say = _sayer()
    daemons = Daemons(settings.root, settings.logs, say)
    match arguments.command:
        case "kubeconfig":
            print(settings.kubeconfig)
            return 0
        case "env":
            print(f"export KUBECONFIG={settings.kubeconfig} PATH={settings.bin}:$PATH")
            return 0
        case "status":
            return _status(settings, daemons)
    if os.geteuid() != 0:
        raise ClusterError("The cluster makes bridges, mounts and control groups: run this as root.")
    settings.root.mkdir(parents=True, exist_ok=True)
    with closing(os.fdopen(os.open(settings.root / "lock", os.O_CREAT | os.O_RDWR), "w")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another `cluster` command is running, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        match arguments.command:
            case "up":
                lifecycle.up(settings, daemons, say)
                say(f"ready; kubeconfig {settings.kubeconfig}")
            case "down":
                lifecycle.down(settings, daemons, say)
                say("gone; builds and logs stay in the cache")
            case "load":
                images.load(settings.nodes, arguments.archives, say)
    return 0


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    try:
        settings = read_settings(os.environ, existing=getattr(arguments, "existing", False))
        if settings.existing:
            return existing.act(arguments, settings)
        return _act(arguments, settings)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
