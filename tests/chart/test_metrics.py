"""PodMonitor, alerts and dashboard as the chart renders them; tests/unit/metrics/test_dashboard_and_alerts.py checks what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from live_cluster import CHART, Cluster

from tabletune_operator.settings import DEFAULT_METRICS_PORT

ALL = (
    "--set",
    "metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true",
)
MONITORING = "monitoring.coreos.com/v1"


def only(bodies: tuple[dict[str, Any], ...], kind: str, name: str | None = None) -> dict[str, Any]:
    (found,) = (body for body in bodies if body["kind"] == kind and name in {None, body["metadata"]["name"]})
    return found


def test_nothing_of_it_is_there_by_default(cluster: Cluster) -> None:
    bodies = cluster.render()
    assert [body["kind"] for body in bodies if body["apiVersion"] == MONITORING or body["kind"] == "ConfigMap"] == []


@pytest.mark.parametrize(
    ("name", "selector", "source"),
    [
        ("tabletune-sidecars", {"matchExpressions": [{"key": "tabletune.io/drafttable", "operator": "Exists"}]}, "label"),
        ("tabletune-kserve", {"matchLabels": {"app.kubernetes.io/part-of": "llminferenceservice"}}, "annotation"),
    ],
)
def test_a_pod_monitor_finds_sidecars_in_every_namespace(cluster: Cluster, name: str, selector: dict[str, Any], source: str) -> None:
    monitor = only(cluster.render(*ALL), "PodMonitor", name)
    assert monitor["apiVersion"] == MONITORING
    assert monitor["metadata"]["namespace"] == "tabletune-system"
    meta = f"__meta_kubernetes_pod_{source}_tabletune_io_drafttable"
    assert monitor["spec"] == {
        "namespaceSelector": {"any": True},
        "selector": selector,
        "podMetricsEndpoints": [
            {"port": "tabletune", "path": "/metrics", "relabelings": [{"sourceLabels": [meta], "targetLabel": "drafttable"}]}
        ],
    }


def test_the_pod_monitor_looks_only_where_the_operator_serves(cluster: Cluster) -> None:
    placed = ("--set", "scope=Namespaced", "--set", "watchNamespaces={two,one}", "--set", "metrics.podMonitor.interval=15s")
    monitor = only(cluster.render(*ALL, *placed), "PodMonitor", "tabletune-sidecars")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["one", "two"]}
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"


@pytest.mark.parametrize("values", [(), ("--set", "scope=Namespaced", "--set", "watchNamespaces={two,one}")])
def test_the_operator_is_scraped_where_it_runs_and_its_labels_stay(cluster: Cluster, values: tuple[str, ...]) -> None:
    bodies = cluster.render(*ALL, "--set", "metrics.podMonitor.interval=15s", *values)
    monitor = only(bodies, "PodMonitor", "tabletune-operator")
    pods = only(bodies, "Deployment")["spec"]["template"]
    assert monitor["metadata"]["namespace"] == "tabletune-system"
    assert "namespaceSelector" not in monitor["spec"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "metrics", "path": "/metrics", "interval": "15s", "honorLabels": True}
    assert {"name": "metrics", "containerPort": DEFAULT_METRICS_PORT} in pods["spec"]["containers"][0]["ports"]


def test_alerts_are_those_of_the_file_each_with_its_runbook(cluster: Cluster) -> None:
    rule = only(cluster.render(*ALL, "--set", "metrics.prometheusRule.docsUrl=https://docs.example/tabletune/"), "PrometheusRule")
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    for group in written:
        for each in group["rules"]:
            each["annotations"]["runbook_url"] = f"https://docs.example/tabletune/docs/runbooks.md#{each['alert'].lower()}"
    assert (rule["apiVersion"], rule["spec"]) == (MONITORING, {"groups": written})


def test_the_dashboard_is_the_file(cluster: Cluster) -> None:
    config_map = only(cluster.render(*ALL), "ConfigMap")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config_map["data"].keys() == {"tabletune-overview.json"}
    assert json.loads(config_map["data"]["tabletune-overview.json"]) == json.loads(
        (CHART / "dashboards" / "tabletune-overview.json").read_text()
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("podMonitor", "PodMonitor/tabletune-sidecars"),
        ("podMonitor", "PodMonitor/tabletune-kserve"),
        ("podMonitor", "PodMonitor/tabletune-operator"),
        ("prometheusRule", "PrometheusRule/tabletune"),
        ("dashboard", "ConfigMap/tabletune-dashboard"),
    ],
)
def test_each_gets_the_labels_by_which_it_is_found(cluster: Cluster, value: str, kind: str) -> None:
    bodies = cluster.render(*ALL, "--set", f"metrics.{value}.labels.release=prometheus")
    labels = only(bodies, *kind.split("/"))["metadata"]["labels"]
    assert labels["release"] == "prometheus"
    assert labels["app.kubernetes.io/part-of"] == "tabletune"
