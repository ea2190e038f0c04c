"""The machine's network as the cluster needs it, and its removal: the nodes' addresses, masquerading, bridges, rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from embedded.errors import run, succeeds
from embedded.settings import NODE_LINK, POD_CIDR, Node, Settings

MASQUERADE_CHAIN = "TABLETUNE-MASQ"
CNI_RESULTS = Path("/var/lib/cni/results")  # containerd 1.6 keeps what it attached there; the folder is not an option
NETNS = Path("/run/netns")


def up(settings: Settings) -> None:
    """The nodes' addresses and one rule that lets pods talk to the world; safe to repeat."""
    if not succeeds(["ip", "link", "show", NODE_LINK]):
        run(["ip", "link", "add", NODE_LINK, "type", "bridge"])
    for node in settings.nodes:
        run(["ip", "address", "replace", f"{node.address}/32", "dev", NODE_LINK])
    run(["ip", "link", "set", NODE_LINK, "up"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _iptables_ensure_masquerade()


def _nat(*arguments: str) -> list[str]:
    return ["iptables", "--wait", "--table", "nat", *arguments]


def _iptables_ensure_masquerade() -> None:
    rules = {
        MASQUERADE_CHAIN: ["--source", POD_CIDR, "!", "--destination", POD_CIDR, "--jump", "MASQUERADE"],
        "POSTROUTING": ["--jump", MASQUERADE_CHAIN],
    }
    if not succeeds(_nat("--list", MASQUERADE_CHAIN)):
        run(_nat("--new-chain", MASQUERADE_CHAIN))
    for chain, rule in rules.items():
        if not succeeds(_nat("--check", chain, *rule)):
            run(_nat("--append", chain, *rule))


def _remove_masquerade() -> None:
    if succeeds(_nat("--list", MASQUERADE_CHAIN)):
        succeeds(_nat("--delete", "POSTROUTING", "--jump", MASQUERADE_CHAIN))
        run(_nat("--flush", MASQUERADE_CHAIN))
        run(_nat("--delete-chain", MASQUERADE_CHAIN))


def _remove_empty_firewall() -> None:
    """The chain that kube-proxy's clean-up leaves; one with rules belongs to another kubelet."""
    chain = "KUBE-FIREWALL"
    filter_table = ["iptables", "--wait", "--table", "filter"]
    if succeeds([*filter_table, "--list", chain]) and "-A" not in run([*filter_table, "--list-rules", chain]):
        for hook in ("INPUT", "OUTPUT"):
            succeeds([*filter_table, "--delete", hook, "--jump", chain])
        succeeds([*filter_table, "--delete-chain", chain])


def _sandboxes(node: Node) -> dict[str, str]:
    """Container and network namespace of each pod that was attached to the node's bridge."""
    found = {}
    for path in CNI_RESULTS.glob(f"{node.network}-*"):
        try:
            cached = json.loads(path.read_text())
        except ValueError:  # cut short by a kill, before the pod was attached
            continue
        for interface in cached["result"]["interfaces"]:
            if interface.get("sandbox"):
                found[cached["containerId"]] = Path(interface["sandbox"]).name
    return found


def _remove_namespaces(node: Node) -> None:
    """The network namespaces of the node's pods, which also takes their ends of the bridge."""
    for container, name in _sandboxes(node).items():
        namespace = NETNS / name
        if namespace.exists():
            succeeds(["umount", str(namespace)])
            namespace.unlink()
        for path in CNI_RESULTS.glob(f"*-{container}-*"):  # of the bridge and of the loopback interface
            path.unlink()


def down(settings: Settings, kube_proxy: Path) -> None:
    """Remove what `up`, the nodes' pods and kube-proxy have left on the machine; safe to repeat."""
    if kube_proxy.exists():
        succeeds([str(kube_proxy), "--cleanup"])
    _remove_empty_firewall()
    _remove_masquerade()
    for node in settings.nodes:
        _remove_namespaces(node)
        succeeds(["ip", "link", "delete", node.bridge])
        shutil.rmtree(node.state / "addresses", ignore_errors=True)
    succeeds(["ip", "link", "delete", NODE_LINK])
