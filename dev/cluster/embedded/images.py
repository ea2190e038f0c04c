"""Putting image archives on the nodes: no registry is involved."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embedded.errors import ClusterError, run
from embedded.nodes import ctr
from embedded.settings import Node

NAME_ANNOTATION = "org.opencontainers.image.ref.name"


def described(archive: Path) -> tuple[str, str]:
    """The name and digest of the image in an OCI archive."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile("index.json")
            manifest = json.load(member)["manifests"][0] if member else {}
            return manifest["annotations"][NAME_ANNOTATION], manifest["digest"]
    except (OSError, tarfile.TarError, KeyError, IndexError, ValueError) as error:
        raise ClusterError(
            f"{archive} is not an OCI image archive with a name. Make one with `buildah push NAME:TAG oci-archive:FILE:NAME:TAG`."
        ) from error


def _present(node: Node) -> set[tuple[str, str]]:
    """Name and digest of the images that the node has."""
    lines = run(ctr(node, "images", "ls")).splitlines()[1:]  # REF TYPE DIGEST SIZE ...
    return {(fields[0], fields[2]) for fields in map(str.split, lines) if len(fields) > 2}


def load(nodes: tuple[Node, ...], archives: list[Path], say: Callable[[str], None]) -> None:
    """Import each archive into each node that does not have the very same image."""
    wanted = [(archive, *described(archive)) for archive in archives]

    def load_into(node: Node) -> None:
        present = _present(node)
        for archive, name, digest in wanted:
            if (name, digest) in present:
                say(f"{node.name}: {name} is there")
                continue
            run(ctr(node, "images", "import", str(archive)))
            say(f"{node.name}: {name} imported")

    with ThreadPoolExecutor(len(nodes)) as together:
        list(together.map(load_into, nodes))  # raises what one of them raised
