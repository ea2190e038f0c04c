"""Where the cluster lives and what it is made of: paths, addresses and nodes, decided once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import ClusterError

SERVICE_CIDR = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # first of SERVICE_CIDR: the Service `kubernetes`
POD_CIDR = "10.244.0.0/16"
NODE_LINK = "tt0"  # a bridge without ports that carries the nodes' addresses: the kubelet refuses loopback ones
DNS_ADDRESS = "10.97.0.1"  # the first node's: CoreDNS is a process of the machine, not a pod
CLUSTER_DOMAIN = "cluster.local"
API_PORT = 6443

# Sockets lie up to 40 characters below the state folder, and the kernel takes 107 for a whole path.
LONGEST_STATE_PATH = 66


@dataclass(frozen=True, slots=True)
class Node:
    """One kubelet with its own containerd, bridge, pod range, cgroup and folders."""

    number: int  # from 1
    gpu_product: str
    gpu_count: int
    state: Path

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"10.97.0.{self.number}"

    @property
    def pod_cidr(self) -> str:
        return f"10.244.{self.number - 1}.0/24"

    @property
    def bridge(self) -> str:
        return f"ttbr{self.number}"

    @property
    def network(self) -> str:
        """The name of the CNI network: how this node's leftovers are told from another's."""
        return f"tabletune-{self.name}"

    @property
    def cgroup(self) -> str:
        return f"/tabletune/{self.name}"

    @property
    def socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def pod_logs(self) -> Path:
        return self.state / "pod-logs"

    @property
    def health_port(self) -> int:
        return 10270 + self.number


@dataclass(frozen=True, slots=True)
class Settings:
    cache: Path
    root: Path  # the state folder
    nodes: tuple[Node, ...]
    existing: bool  # use the cluster that KUBECONFIG names instead of making one
    user_kubeconfig: str

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdigit() or int(text) > 64:
        raise ClusterError(f"{name}={text!r}: give a number of GPUs from 0 to 64.")
    return int(text)


def read_settings(environment: Mapping[str, str], *, existing: bool) -> Settings:
    """The settings of this run; every environment variable that the command knows is read here."""
    cache = Path(
        environment.get("TABLETUNE_CACHE") or Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tabletune"
    ).absolute()
    root = cache / "cluster"
    if len(os.fsencode(root)) > LONGEST_STATE_PATH:
        raise ClusterError(
            f"{root} is too long for Unix sockets below it. Set TABLETUNE_CACHE to a folder of at most "
            f"{LONGEST_STATE_PATH - len('/cluster')} characters."
        )
    nodes = (
        Node(1, "NVIDIA-H200", _count(environment, "TABLETUNE_NODE1_GPUS", 4), root / "node1"),
        Node(2, "NVIDIA-A100-SXM4-80GB", _count(environment, "TABLETUNE_NODE2_GPUS", 2), root / "node2"),
    )
    existing = existing or environment.get("TABLETUNE_CLUSTER") == "existing"
    user_kubeconfig = environment.get("KUBECONFIG", "")
    if existing and not user_kubeconfig:
        raise ClusterError("An existing cluster was asked for, but KUBECONFIG is not set. Set it to the cluster's kubeconfig.")
    return Settings(cache, root, nodes, existing, user_kubeconfig)
