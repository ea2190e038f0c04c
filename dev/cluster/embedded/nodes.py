"""A node: containerd, its CNI network, the kubelet and the device plugin that offers GPUs; and kube-proxy for all."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from embedded.daemons import Daemon, answers
from embedded.errors import succeeds
from embedded.pki import certificate, kubeconfig
from embedded.settings import CLUSTER_DOMAIN, DNS_ADDRESS, POD_CIDR, Node, Settings

PAUSE_IMAGE = "tabletune.local/pause:1"
KUBELET_PORT = 10250
PROXY_HEALTH = "127.0.0.1:10256"
CNI_PLUGINS = "/usr/lib/cni"


def ctr(node: Node, *arguments: str) -> list[str]:
    """A containerd client's command line for the pods' namespace of the node."""
    return ["ctr", "--address", str(node.socket), "--namespace", "k8s.io", *arguments]


def _cni_network(node: Node) -> dict[str, object]:
    return {
        "cniVersion": "0.4.0",
        "name": node.network,
        "plugins": [
            {
                "type": "bridge",
                "bridge": node.bridge,
                "isGateway": True,
                "hairpinMode": True,  # a pod must reach itself through its Service
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.state / "addresses"),
                    "ranges": [[{"subnet": node.pod_cidr}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def _containerd_config(node: Node) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE (sandboxed machines) runc may not lower the score and dies.
    return f"""\
version = 2
root = "{node.state}/containerd/root"
state = "{node.state}/containerd/state"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{node.state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{node.state}/runc"
"""


def _kubelet_config(settings: Settings, node: Node) -> dict[str, object]:
    crt, key = certificate(settings.pki, node.name)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "address": node.address,
        "port": KUBELET_PORT,
        "healthzPort": node.health_port,
        "tlsCertFile": crt,
        "tlsPrivateKeyFile": key,
        "cgroupDriver": "cgroupfs",  # no systemd is asked for
        "cgroupRoot": node.cgroup,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": "",
        # Two kubelets must not share a log folder: each removes what it does not know.
        "podLogsDir": str(node.pod_logs),
        "makeIPTablesUtilChains": False,  # they would outlive the kubelet
        "volumePluginDir": str(node.state / "volume-plugins"),
        # Images come from archives: one that is collected or evicted could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "evictionHard": {"memory.available": "0%"},
        "shutdownGracePeriod": "0s",
        "maxPods": 200,
        "nodeStatusUpdateFrequency": "2s",  # how soon a GPU that the device plugin offers is seen
    }


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def containerd(node: Node) -> Daemon:
    network = _write(node.state / "cni" / "10-tabletune.conflist", json.dumps(_cni_network(node), indent=2))
    config = _write(node.state / "containerd.toml", _containerd_config(node))
    return Daemon(
        f"containerd-{node.name}",
        ("/usr/bin/containerd", "--config", str(config)),
        partial(succeeds, ["ctr", "--address", str(node.socket), "version"]),
        configs=(config, network),
    )


def kubelet(settings: Settings, node: Node) -> Daemon:
    config = _write(node.state / "kubelet.json", json.dumps(_kubelet_config(settings, node), indent=2))
    argv = (
        str(settings.bin / "kubelet"),
        f"--config={config}",
        f"--kubeconfig={kubeconfig(settings, node.name)}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.state / 'kubelet'}",
    )
    ready = partial(answers, f"http://127.0.0.1:{node.health_port}/healthz")
    listens = (f"{node.address}:{KUBELET_PORT}", f"127.0.0.1:{node.health_port}")
    return Daemon(f"kubelet-{node.name}", argv, ready, configs=(config,), listens=listens)


def gpus(settings: Settings, node: Node) -> Daemon:
    socket = node.state / "kubelet" / "plugins_registry" / "gpus.sock"
    argv = (str(settings.bin / "gpus"), f"--socket={socket}", f"--count={node.gpu_count}")
    return Daemon(f"gpus-{node.name}", argv, socket.exists)


def proxy(settings: Settings) -> Daemon:
    """One for all nodes: they share the machine's network namespace, so its rules serve the pods of each."""
    argv = (
        str(settings.bin / "kube-proxy"),
        f"--kubeconfig={kubeconfig(settings, 'proxy')}",
        f"--hostname-override={settings.nodes[0].name}",
        f"--cluster-cidr={POD_CIDR}",
        "--proxy-mode=iptables",
        "--iptables-localhost-nodeports=false",  # would need a firewall rule that its own clean-up leaves behind
        "--conntrack-max-per-core=0",  # the machine's own limit stays
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    )
    return Daemon("kube-proxy", argv, partial(answers, f"http://{PROXY_HEALTH}/healthz"), listens=(PROXY_HEALTH,))
