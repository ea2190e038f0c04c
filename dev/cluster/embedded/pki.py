"""Certificates and kubeconfigs: one authority, one certificate for each server and client, made once a cluster."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import run
from embedded.settings import API_PORT, CLUSTER_DOMAIN, SERVICE_ADDRESS, Node, Settings

DAYS = "3650"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
API_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}", "localhost")


@dataclass(frozen=True, slots=True)
class Identity:
    """A client or server of the cluster; names and addresses only where it serves."""

    file: str
    subject: str
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


def node_identity(node: Node) -> Identity:
    return Identity(node.name, f"/O=system:nodes/CN=system:node:{node.name}", (node.name,), (node.address,))


def identities(settings: Settings) -> tuple[Identity, ...]:
    first = settings.nodes[0].address
    return (
        Identity("apiserver", "/CN=kube-apiserver", API_NAMES, ("127.0.0.1", SERVICE_ADDRESS, first)),
        # The API server's own calls to kubelets (logs, exec).
        Identity("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        Identity("admin", "/O=system:masters/CN=admin"),
        Identity("controller-manager", "/CN=system:kube-controller-manager"),
        Identity("scheduler", "/CN=system:kube-scheduler"),
        Identity("proxy", "/CN=system:kube-proxy"),
        Identity("dns", "/O=system:masters/CN=coredns"),  # reads Services; a process beside the admin's own kubeconfig
        *(node_identity(node) for node in settings.nodes),
    )


def certificate(pki: Path, name: str) -> tuple[str, str]:
    """The files of an identity's certificate and key."""
    return str(pki / f"{name}.crt"), str(pki / f"{name}.key")


def kubeconfig(settings: Settings, name: str) -> Path:
    return settings.kubeconfig if name == "admin" else settings.pki / f"{name}.kubeconfig"


def _sign(pki: Path, identity: Identity) -> None:
    """Make the identity's certificate and key; the certificate comes last and whole, so that it says that both are there."""
    request, extensions, signed = pki / "request.csr", pki / "request.ext", pki / "signed.crt"
    crt, key = certificate(pki, identity.file)
    run(["openssl", "req", *NEW_KEY, "-keyout", key, "-out", str(request), "-subj", identity.subject])
    alternatives = [f"DNS:{name}" for name in identity.names] + [f"IP:{address}" for address in identity.addresses]
    extensions.write_text(
        "extendedKeyUsage=serverAuth,clientAuth\n" + (f"subjectAltName={','.join(alternatives)}\n" if alternatives else "")
    )
    authority = ["-CA", str(pki / "ca.crt"), "-CAkey", str(pki / "ca.key"), "-CAcreateserial"]
    terms = ["-days", DAYS, "-extfile", str(extensions)]
    run(["openssl", "x509", "-req", "-in", str(request), *authority, "-out", str(signed), *terms])
    signed.rename(crt)


def _make_authority(pki: Path) -> None:
    """The keys that everything else hangs on; the authority's certificate comes last, as above."""
    signed = pki / "signed.crt"
    run(["openssl", "genrsa", "-out", str(pki / "sa.key"), "2048"])
    run(["openssl", "rsa", "-in", str(pki / "sa.key"), "-pubout", "-out", str(pki / "sa.pub")])
    authority = ["-keyout", str(pki / "ca.key"), "-out", str(signed), "-subj", "/CN=tabletune-dev", "-days", DAYS]
    run(["openssl", "req", "-x509", *NEW_KEY, *authority])
    signed.rename(pki / "ca.crt")


def _write_kubeconfig(settings: Settings, name: str) -> None:
    def embedded(path: str | Path) -> str:
        return b64encode(Path(path).read_bytes()).decode()

    crt, key = certificate(settings.pki, name)
    cluster = {"server": f"https://127.0.0.1:{API_PORT}", "certificate-authority-data": embedded(settings.pki / "ca.crt")}
    user = {"client-certificate-data": embedded(crt), "client-key-data": embedded(key)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tabletune",
        "clusters": [{"name": "tabletune", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "tabletune", "context": {"cluster": "tabletune", "user": name}}],
    }
    path = kubeconfig(settings, name)
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    path.chmod(0o600)


def ensure(settings: Settings) -> None:
    """Make the certificates that are missing; those of a cluster that runs stay."""
    pki = settings.pki
    pki.mkdir(parents=True, exist_ok=True)
    pki.chmod(0o700)
    if not (pki / "ca.crt").exists():
        _make_authority(pki)
    for identity in identities(settings):
        if not Path(certificate(pki, identity.file)[0]).exists():
            _sign(pki, identity)
        if identity.file != "apiserver":
            _write_kubeconfig(settings, identity.file)
