"""What the cluster is built from: Debian packages, the programs of go/, the pause image.

Builds go to the cache under a key of their inputs; `bin` in the state folder holds links with plain names.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embedded.errors import ClusterError
from embedded.settings import Settings

HERE = Path(__file__).resolve().parent.parent
PACKAGES = (
    "containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "conntrack", "ethtool", "socat",
    "openssl", "gcc", "libc6-dev",
)  # fmt: skip
KUBERNETES = "1.34.4"  # as in go/go.mod
KUBE_LINKS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")


def _key(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _go(arguments: list[str], *, cwd: Path, environment: dict[str, str]) -> None:
    if shutil.which("go") is None:
        raise ClusterError("The cluster is built with Go, and there is no `go` on PATH. Install Go 1.26 from https://go.dev/dl.")
    if subprocess.run(["go", *arguments], cwd=cwd, env=os.environ | environment, check=False).returncode != 0:
        raise ClusterError(f"`go {' '.join(arguments)}` in {cwd} failed; its output is above.")


def _cached(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made by `make` if missing; a build that was cut short leaves nothing that looks finished, and two never meet."""
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder


def _sources_key(source: Path) -> str:
    return _key(*(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file()))


def _programs(settings: Settings, say: Callable[[str], None]) -> Path:
    """The folder with `kube` (all components in one binary), `coredns`, `helm` and `gpus`.

    One module for all: what they share, and that is most of it, is compiled once.
    """
    source = HERE / "go"

    def make(out: Path) -> None:
        say(f"building Kubernetes {KUBERNETES}, CoreDNS and helm from Go modules (8 minutes on 2 cores the first time)")
        version = "k8s.io/component-base/version"
        major, minor, _ = KUBERNETES.split(".")
        flags = f"-s -w -X {version}.gitVersion=v{KUBERNETES} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
        programs = ["./kube", "./gpus", "./coredns", "helm.sh/helm/v3/cmd/helm"]
        _build(source, out, flags, *programs)

    return _cached(settings.cache / f"kube-{_sources_key(source)}", make)


def program(settings: Settings, source: Path) -> Path:
    """The program of another Go module of this repository, in a file named as its folder.

    Without -trimpath, as all programs here: with it a package counts as another one where a module was replaced, so that nothing which
    the cluster is built from would be compiled once for both.
    """
    built = _cached(settings.cache / f"{source.name}-{_sources_key(source)}", lambda out: _build(source, out, "-s -w", "."))
    return built / source.name


@dataclass(frozen=True, slots=True)
class Published:
    """A program that others publish as part of a Go module, and the module's sources, which hold its manifests too."""

    program: Path
    source: Path


def published(settings: Settings, module: str, version: str, digest: str, package: str) -> Published:
    """Built in its own module, so that its own requirements and replacements count. `digest` is what go.sum would say of the module."""
    command = ["go", "mod", "download", "-json", f"{module}@{version}"]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stdout}")
    found = json.loads(done.stdout)
    if found["Sum"] != digest:
        raise ClusterError(f"{module}@{version} is {found['Sum']}, not {digest}: another module than the one that was tested is served.")
    source, name = Path(found["Dir"]), Path(package).name
    folder = settings.cache / f"{name}-{_key(digest.encode(), package.encode())}"
    return Published(_cached(folder, lambda out: _build(source, out, "-s -w", f"./{package}")) / name, source)


def _build(source: Path, out: Path, linking: str, *programs: str) -> None:
    _go(["build", "-mod=readonly", "-ldflags", linking, "-o", f"{out}/", *programs], cwd=source, environment={"CGO_ENABLED": "1"})


def packages() -> None:
    if subprocess.run([HERE / "packages", *PACKAGES], check=False).returncode != 0:
        raise ClusterError(f"Debian packages could not be installed: {', '.join(PACKAGES)}; apt's output is above.")


def pause_image() -> Path:
    """The archive of the pods' sandbox image: containerd must find it on the node, no registry has it."""
    build = HERE.parent / "images" / "build"
    done = subprocess.run([build, "pause"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{build} pause` failed; its output is above.")
    return Path(done.stdout.strip())


def binaries(settings: Settings, say: Callable[[str], None]) -> None:
    """Build what is missing, and point the plain names in `bin` to the present builds."""
    built = _programs(settings, say)
    targets = dict.fromkeys(KUBE_LINKS, built / "kube") | {name: built / name for name in ("coredns", "gpus", "helm")}
    settings.bin.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        new = settings.bin / f".{name}"
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.rename(settings.bin / name)
