"""`up` and `down`: the whole cluster, from any state that an earlier run or a kill has left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from embedded import build, cgroups, control_plane, dns, images, network, nodes, pki
from embedded.daemons import Daemon, Daemons
from embedded.errors import ClusterError, run, succeeds
from embedded.settings import Node, Settings

GPU = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
NODE_SECONDS = 120
STOPPED_LAST = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
# Names the state folder of the machine's one cluster: addresses, bridges and control groups are the machine's, not the folder's.
OWNER = Path("/run/tabletune-cluster")
POD_LOG_LINKS = Path("/var/log/containers")  # the kubelet links each container's log there; the folder is not an option


def kubectl(settings: Settings, *arguments: str) -> str:
    return run([str(settings.bin / "kubectl"), f"--kubeconfig={settings.kubeconfig}", *arguments])


def _up_all(daemons: Daemons, wanted: tuple[Daemon, ...]) -> None:
    for daemon in wanted:
        daemons.start(daemon)
        daemons.wait_ready(daemon)


def _claim(settings: Settings) -> None:
    """Refuse to touch the machine's resources while they belong to the cluster of another state folder."""
    owner = Path(OWNER.read_text()) if OWNER.exists() else settings.root
    if owner != settings.root and owner.exists():
        raise ClusterError(
            f"This machine runs the cluster of {owner}, and there is room for one. Use that one, or end it: "
            f"TABLETUNE_CACHE={owner.parent} cluster down."
        )
    OWNER.write_text(str(settings.root))


def up(settings: Settings, daemons: Daemons, say: Callable[[str], None]) -> None:
    """Start what does not run, and wait until every node is ready with its GPUs."""
    _claim(settings)
    build.packages()
    if not daemons.names():
        shutil.rmtree(settings.logs, ignore_errors=True)  # those of the cluster before
    build.binaries(settings, say)
    pause = build.pause_image()
    pki.ensure(settings)
    network.up(settings)
    say("control plane")
    _up_all(daemons, control_plane.daemons(settings))
    for node in settings.nodes:
        say(node.name)
        cgroups.ensure(node)
        _up_all(daemons, (nodes.containerd(node),))
        images.load((node,), [pause], say=lambda _: None)
        _up_all(daemons, (nodes.kubelet(settings, node), nodes.gpus(settings, node)))
    _up_all(daemons, (nodes.proxy(settings), dns.daemon(settings)))
    for node in settings.nodes:
        _wait_node(settings, node)


def _wait_node(settings: Settings, node: Node) -> None:
    """Wait until the node is ready and offers its GPUs, and label it with their product."""
    deadline = time.monotonic() + NODE_SECONDS
    while True:
        found = json.loads(kubectl(settings, "get", "nodes", "--output=json"))["items"]
        seen = next((item for item in found if item["metadata"]["name"] == node.name), None)
        problem = _node_problem(node, seen)
        if problem is None:
            break
        if time.monotonic() > deadline:
            raise ClusterError(f"{node.name} {problem} after {NODE_SECONDS} s. See {settings.logs}/kubelet-{node.name}.log.")
        time.sleep(0.3)
    if seen and seen["metadata"]["labels"].get(PRODUCT_LABEL) != node.gpu_product:
        kubectl(settings, "label", "node", node.name, f"{PRODUCT_LABEL}={node.gpu_product}", "--overwrite")


def _node_problem(node: Node, seen: dict[str, object] | None) -> str | None:
    """What the node still lacks, as the end of a sentence."""
    if seen is None:
        return "is not registered"
    status: dict = seen["status"]  # type: ignore[assignment, type-arg]
    ready = next((c["status"] for c in status.get("conditions", ()) if c["type"] == "Ready"), "Unknown")
    if ready != "True":
        return f"has Ready={ready}"
    gpus = status.get("allocatable", {}).get(GPU, "0")
    return None if gpus == str(node.gpu_count) else f"offers {gpus} of {node.gpu_count} {GPU}"


def down(settings: Settings, daemons: Daemons, say: Callable[[str], None]) -> None:
    """End and remove everything but the logs and the cached builds."""
    _claim(settings)
    # The kubelets before the containers, which they would start again; each process before those that it talks to.
    names = [name for name in daemons.names() if not name.startswith("containerd-")]
    for name in sorted(names, key=lambda name: STOPPED_LAST.index(name) if name in STOPPED_LAST else -1):
        daemons.stop(name)
    for node in settings.nodes:
        say(f"{node.name}: ending its pods")
        if daemons.pid(f"containerd-{node.name}") is not None:
            _kill_containers(node)
        cgroups.remove(node)
        daemons.stop(f"containerd-{node.name}")
        _end_shims(node)
    network.down(settings, settings.bin / "kube-proxy")
    _unmount_below(settings.root)
    _remove_log_links(settings)
    for path in settings.root.iterdir():
        if path not in {settings.logs, settings.root / "lock"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    OWNER.unlink()


def _kill_containers(node: Node) -> None:
    """Kill through containerd, so that its shims end by themselves; where it is gone, the cgroups have to do."""
    listed = subprocess.run(nodes.ctr(node, "tasks", "ls", "--quiet"), capture_output=True, text=True, check=False)
    for container in listed.stdout.split():
        succeeds(nodes.ctr(node, "tasks", "kill", "--signal", "SIGKILL", "--all", container))
        succeeds(nodes.ctr(node, "tasks", "delete", "--force", container))


def _end_shims(node: Node) -> None:
    """Shims whose containerd was killed outlive it; those of this node name its socket in their arguments."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it ended meanwhile
            continue
        if Path(argv[0]).name.startswith("containerd-shim") and str(node.socket) in argv:
            succeeds(["kill", "-KILL", folder.name])


def _unmount_below(root: Path) -> None:
    """Volumes, root file systems and namespaces of pods, the innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(f"{root}/")), key=len, reverse=True):
        succeeds(["umount", "--lazy", point.replace("\\040", " ")])


def _remove_log_links(settings: Settings) -> None:
    if not POD_LOG_LINKS.is_dir():
        return
    for link in POD_LOG_LINKS.iterdir():
        if link.is_symlink() and str(link.readlink()).startswith(f"{settings.root}{os.sep}"):
            link.unlink()
