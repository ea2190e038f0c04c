"""Reads one ConfigMap by the user's kubeconfig; nothing is written."""

from __future__ import annotations

import os
from collections.abc import Mapping

import urllib3
from kubernetes import client, config

from tabletune_cli.errors import refuse

TIMEOUT_SECONDS = 15
IN_POD = "KUBERNETES_SERVICE_HOST"


def read_config_map(namespace: str | None, name: str) -> tuple[Mapping[str, str], str]:
    """Data of the ConfigMap `NAME-tabletune`, and its name for messages. Without a namespace, the context's."""
    settings = client.Configuration()
    settings.retries = False  # one clear answer instead of three log lines
    path = os.environ.get("KUBECONFIG")  # read now: the client library reads it when it is imported
    try:
        if IN_POD in os.environ:
            config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
            where = namespace or "default"
        else:
            config.load_kube_config(path, client_configuration=settings)  # type: ignore[no-untyped-call]
            where = namespace or _context_namespace(path)
    except (config.ConfigException, OSError) as error:
        refuse("NoCluster", f"No usable kubeconfig ({str(error).rstrip('.')}). Set KUBECONFIG, or read files with --dir.")
    config_map = f"{name}-tabletune"
    try:
        reader = client.CoreV1Api(client.ApiClient(settings))
        found = reader.read_namespaced_config_map(config_map, where, _request_timeout=TIMEOUT_SECONDS)
    except client.ApiException as error:
        if error.status == 404:
            refuse(
                "NotFound", f"ConfigMap {config_map} is not in namespace {where}. Is DraftTable {name} profiled? kubectl get dt -n {where}"
            )
        refuse(
            "ClusterRefused",
            f"The cluster refused to read ConfigMap {where}/{config_map}: {error.status} {error.reason}. Check your rights.",
        )
    except urllib3.exceptions.HTTPError as error:
        refuse(
            "ClusterUnreachable", f"The cluster of the kubeconfig does not answer ({type(error).__name__}). Check it with kubectl version."
        )
    return found.data or {}, f"ConfigMap {where}/{config_map}"


def _context_namespace(path: str | None) -> str:
    _, active = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    return str(active["context"].get("namespace") or "default")
