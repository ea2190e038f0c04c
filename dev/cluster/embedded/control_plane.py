"""etcd, the API server, the controller manager and the scheduler as processes of this machine."""

from __future__ import annotations

from functools import partial

from embedded.daemons import Daemon, answers
from embedded.pki import certificate, kubeconfig
from embedded.settings import API_PORT, POD_CIDR, SERVICE_CIDR, Settings

ETCD = "127.0.0.1:2379"
ETCD_PEER = "127.0.0.1:2380"


def _etcd(settings: Settings) -> Daemon:
    argv = (
        str(settings.bin / "etcd"),
        f"--data-dir={settings.root / 'etcd'}",
        "--unsafe-no-fsync",  # a cluster that is thrown away needs no durability, and disks of test machines are slow
        f"--listen-client-urls=http://{ETCD}",
        f"--advertise-client-urls=http://{ETCD}",
        f"--listen-peer-urls=http://{ETCD_PEER}",
        f"--initial-advertise-peer-urls=http://{ETCD_PEER}",
        f"--initial-cluster=default=http://{ETCD_PEER}",
    )
    return Daemon("etcd", argv, partial(answers, f"http://{ETCD}/health"), listens=(ETCD, ETCD_PEER))


def _api_server(settings: Settings) -> Daemon:
    pki = settings.pki
    crt, key = certificate(pki, "apiserver")
    client_crt, client_key = certificate(pki, "kubelet-client")
    argv = (
        str(settings.bin / "kube-apiserver"),
        f"--etcd-servers=http://{ETCD}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={settings.nodes[0].address}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--tls-cert-file={crt}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        f"--kubelet-client-certificate={client_crt}",
        f"--kubelet-client-key={client_key}",
        "--kubelet-preferred-address-types=InternalIP",  # no DNS knows the nodes' names
    )
    ready = partial(answers, f"https://127.0.0.1:{API_PORT}/readyz")
    return Daemon("kube-apiserver", argv, ready, listens=(f"0.0.0.0:{API_PORT}",))


def _controller_manager(settings: Settings) -> Daemon:
    pki = settings.pki
    config = kubeconfig(settings, "controller-manager")
    argv = (
        str(settings.bin / "kube-controller-manager"),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--cluster-cidr={POD_CIDR}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )
    ready = partial(answers, "https://127.0.0.1:10257/healthz")
    return Daemon("kube-controller-manager", argv, ready, listens=("127.0.0.1:10257",))


def _scheduler(settings: Settings) -> Daemon:
    config = kubeconfig(settings, "scheduler")
    argv = (
        str(settings.bin / "kube-scheduler"),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )
    return Daemon("kube-scheduler", argv, partial(answers, "https://127.0.0.1:10259/readyz"), listens=("127.0.0.1:10259",))


def daemons(settings: Settings) -> tuple[Daemon, ...]:
    """In the order of starting: each needs the ones before it."""
    return _etcd(settings), _api_server(settings), _controller_manager(settings), _scheduler(settings)
