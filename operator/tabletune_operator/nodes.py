"""Nodes: which GPU they have, which of them fit, and how many GPUs nobody uses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from tabletune_operator.observation import GpuPool, Product

PRODUCT_LABELS = ("nvidia.com/gpu.product", "gpu.nvidia.com/model", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
"""Where nodes say which GPU they have: GPU feature discovery, CoreWeave, GKE, AMD."""

CPU = Product("cpu", None)
"""When the target asks for no GPU."""

Body = Mapping[str, Any]


def product_of(node: Body) -> Product:
    labels = node["metadata"].get("labels") or {}
    for label in PRODUCT_LABELS:
        if label in labels:
            return Product(labels[label], label)
    return Product("", None)


def matching_nodes(nodes: Iterable[Body], node_selector: Mapping[str, str]) -> tuple[Body, ...]:
    """Nodes that the scheduler may choose and that have the labels."""
    return tuple(
        node
        for node in nodes
        if not (node.get("spec") or {}).get("unschedulable") and node_selector.items() <= (node["metadata"].get("labels") or {}).items()
    )


def gpu_pool(nodes: Iterable[Body], pods: Iterable[Body], product: Product, resource: str | None, target_nodes: Set[str]) -> GpuPool | None:
    """GPUs of these nodes, and how many of them no pod requests. None without a node.

    `target_nodes` are the names of those with replicas of the target.
    """
    totals = {node["metadata"]["name"]: _quantity((node.get("status") or {}).get("allocatable") or {}, resource) for node in nodes}
    if not totals:
        return None
    used = dict.fromkeys(totals, 0)
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node in used and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            used[node] += gpu_request(pod["spec"], resource)
    free = sum(max(0, total - used[name]) for name, total in totals.items())
    return GpuPool(product=product, nodes=len(totals), total=sum(totals.values()), free=free, holds_target=target_nodes <= totals.keys())


def gpu_request(pod_spec: Body, resource: str | None) -> int:
    """As the scheduler counts: containers and native sidecars side by side, or the largest other init container."""

    def of(container: Body) -> int:
        return _quantity((container.get("resources") or {}).get("limits") or {}, resource)

    inits = pod_spec.get("initContainers") or ()
    beside = sum(of(c) for c in inits if c.get("restartPolicy") == "Always")
    before = max((of(c) for c in inits if c.get("restartPolicy") != "Always"), default=0)
    return max(before, beside + sum(of(c) for c in pod_spec["containers"]))


def _quantity(amounts: Body, resource: str | None) -> int:
    # Extended resources are whole numbers: the API server refuses anything else.
    return int(amounts.get(resource, 0)) if resource is not None else 0
