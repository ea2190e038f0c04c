"""What our containers look like in other people's pods: names, mounts, security, requests. Used by the Job and by the roll-out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tabletune_operator.crd import GROUP, KIND, VERSION

DRAFT_TABLE_LABEL = f"{GROUP}/drafttable"
MANAGED_BY = {"app.kubernetes.io/managed-by": "tabletune"}

VOLUME = "tabletune"
RUN_VOLUME = "tabletune-run"
MOUNT_PATH = "/tabletune"
PLUGIN_PATH = "/tabletune/engine"
RUN_DIR = "/tabletune/run"
ENGINE_SOCKET = "/tabletune/run/engine.sock"
PLUGIN_CONTAINER = "tabletune-plugin"

USER = 65532  # of our image; given as a number because `runAsNonRoot` can only check numbers

LONGEST_NAME = 63  # of a Job, so that its pods' labels can hold it


@dataclass(frozen=True, slots=True)
class OwnImage:
    """The image with our entry points, as the operator itself was installed with."""

    name: str
    pull_policy: str


def shared_volumes() -> list[dict[str, Any]]:
    return [{"name": VOLUME, "emptyDir": {}}, {"name": RUN_VOLUME, "emptyDir": {}}]


def shared_mounts() -> list[dict[str, Any]]:
    """The plugin's folder, and the one for sockets: a volume of its own, because only a volume's root is open to every user of a pod."""
    return [{"name": VOLUME, "mountPath": MOUNT_PATH}, {"name": RUN_VOLUME, "mountPath": RUN_DIR}]


def config_map_name(draft_table: str) -> str:
    return f"{draft_table}-tabletune"


def job_name(draft_table: str) -> str:
    """`<name>-profile`; a name that is too long or holds dots is cut and gets a hash, so that two of them never meet."""
    wanted = f"{draft_table}-profile"
    if len(wanted) <= LONGEST_NAME and "." not in wanted:
        return wanted
    mark = hashlib.sha256(draft_table.encode()).hexdigest()[:8]
    kept = draft_table.replace(".", "-")[: LONGEST_NAME - len(f"-{mark}-profile")].rstrip("-")
    return f"{kept}-{mark}-profile"


def owner_reference(draft_table: str, uid: str) -> dict[str, Any]:
    """The DraftTable as owner: what we made goes when it goes."""
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "name": draft_table, "uid": uid, "controller": True}


def literal(argument: str) -> str:
    """An argument that the kubelet hands on as it is: it reads `$(NAME)` as a variable and `$$` as one dollar sign."""
    return argument.replace("$", "$$")


def own_container(
    name: str, image: OwnImage, command: list[str], *, cpu: str, memory: str, memory_limit: str, **more: Any
) -> dict[str, Any]:
    """A container of our image that a namespace under the restricted Pod Security Standard admits.

    No CPU limit: a throttled sidecar would answer its liveness probe too late. No extended resources: the GPU is the engine's.
    """
    return {
        "name": name,
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": command,
        **more,
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory_limit}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def plugin_container(image: OwnImage) -> dict[str, Any]:
    """Copies the engine plugin (and the supervisor) into the shared folder."""
    return own_container(
        PLUGIN_CONTAINER,
        image,
        ["python3", "-m", "tabletune_engine.install", PLUGIN_PATH],
        cpu="20m",
        memory="32Mi",
        memory_limit="128Mi",
        volumeMounts=[{"name": VOLUME, "mountPath": MOUNT_PATH}],
    )
