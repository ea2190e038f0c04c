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
    every = tuple(nodes)
    if not every:
        return None
    total, free = sum(_gpus(node, resource) for node in every), free_by_node(every, pods, resource)
    return GpuPool(product=product, nodes=len(free), total=total, free=sum(free.values()), holds_target=target_nodes <= free.keys())


def free_by_node(nodes: Iterable[Body], pods: Iterable[Body], resource: str | None) -> dict[str, int]:
    """GPUs of each node that no pod requests."""
    free = {node["metadata"]["name"]: _gpus(node, resource) for node in nodes}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node in free and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            free[node] -= gpu_request(pod["spec"], resource)
    return {name: max(0, count) for name, count in free.items()}


def _gpus(node: Body, resource: str | None) -> int:
    return _quantity((node.get("status") or {}).get("allocatable") or {}, resource)


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
