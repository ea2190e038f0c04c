"""What the chart makes of its values, and which values it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml
from live_cluster import CHART, ROOT, Cluster
from yamllint import linter
from yamllint.config import YamlLintConfig

MATRIX = (
    pytest.param((), id="defaults"),
    pytest.param(("--set", "scope=Namespaced"), id="the release's namespace"),
    pytest.param(("--set", "scope=Namespaced", "--set", "watchNamespaces={one,two}"), id="two namespaces"),
    pytest.param(("--set", "crds.install=Skip"), id="without the definition"),
    pytest.param(("--set", "crds.onUninstall=Delete"), id="the definition goes with the release"),
    pytest.param(("--set", "uninstall.drafttables=Keep,uninstall.timeoutSeconds=10"), id="DraftTables stay"),
    pytest.param(("--set", "admission.enabled=true"), id="mode Admission"),
    pytest.param(
        ("--set", "admission.enabled=true,admission.certificates=CertManager,scope=Namespaced"), id="mode Admission, cert-manager"
    ),
    pytest.param(
        (
            "--set",
            "imagePullSecrets[0].name=registry,priorityClassName=system-cluster-critical,nodeSelector.disk=ssd",
            "--set",
            "tolerations[0].key=infra,tolerations[0].operator=Exists,tolerations[0].effect=NoSchedule,image.tag=1.2.3",
        ),
        id="placement",
    ),
)

REFUSED = (
    pytest.param("scope=cluster", "scope", id="an enum in lower case"),
    pytest.param("scop=Cluster", "scop", id="a misspelt key"),
    pytest.param("image.name=x", "name", id="a misspelt key below image"),
    pytest.param("image.pullPolicy=Sometimes", "pullPolicy", id="an unknown pull policy"),
    pytest.param("image.repository=Bad Name", "repository", id="a repository that is no image name"),
    pytest.param("image.tag=a/b", "tag", id="a tag that is none"),
    pytest.param("imagePullSecrets[0].secret=x", "secret", id="a pull secret without a name"),
    pytest.param("crds.keep=true", "keep", id="an unknown key below crds"),
    pytest.param("crds.install=true", "install", id="a boolean for an enum"),
    pytest.param("crds.onUninstall=Retain", "onUninstall", id="an unknown policy for the definition"),
    pytest.param("uninstall.drafttables=Orphan", "drafttables", id="an unknown policy for DraftTables"),
    pytest.param("uninstall.timeoutSeconds=5", "timeoutSeconds", id="no time to uninstall"),
    pytest.param("uninstall.timeoutSeconds=4000", "timeoutSeconds", id="more than an hour to uninstall"),
    pytest.param("watchNamespaces={UPPER}", "watchNamespaces", id="a namespace that is none"),
    pytest.param("watchNamespaces={a,a}", "watchNamespaces", id="a namespace twice"),
    pytest.param("resources.requests.memory=much", "memory", id="a quantity that is none"),
    pytest.param("resources.limit.memory=1Gi", "limit", id="a misspelt key below resources"),
    pytest.param("tolerations[0].effect=Never", "effect", id="an unknown effect"),
    pytest.param("replicas=2", "replicas", id="more than one operator"),
    pytest.param("admission.enabled=yes", "enabled", id="no boolean"),
    pytest.param("admission.certificates=SelfSigned", "certificates", id="unknown certificates"),
    pytest.param("admission.failurePolicy=Fail", "failurePolicy", id="a failure policy: it is always Ignore"),
    pytest.param("admission.objectSelector.matchExpressions[0].key=a", "operator", id="an expression without an operator"),
    pytest.param("metrics.podMonitor.enable=true", "enable", id="a misspelt key below metrics"),
    pytest.param("metrics.podMonitor.interval=often", "interval", id="an interval that is none"),
    pytest.param("metrics.prometheusRule.docsUrl=docs", "docsUrl", id="a place that is no URL"),
    pytest.param("metrics.dashboard.labels.a=true", "labels", id="a label that is no text"),
)


def test_helm_lint_finds_nothing(cluster: Cluster) -> None:
    done = cluster.helm("lint", str(CHART), "--strict", "--quiet", "--kube-version", "1.34.0")
    assert "0 chart(s) failed" in done.out or not done.out.strip()


@pytest.mark.parametrize("arguments", MATRIX)
def test_rendered_yaml_is_well_formed(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    rendered = cluster.template(*arguments).out
    config = YamlLintConfig(file=str(ROOT / "dev" / "manifest-checks" / "yamllint.yaml"))
    problems = [f"{problem.line}: {problem.message}" for problem in linter.run(rendered, config)]
    assert problems == []


@pytest.mark.parametrize("arguments", MATRIX)
def test_no_object_is_rendered_twice(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    names = Counter((body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]) for body in cluster.render(*arguments))
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize(("value", "named"), REFUSED)
def test_refuses_values_outside_the_schema(cluster: Cluster, value: str, named: str) -> None:
    done = cluster.template("--set", value, check=False)
    assert done.code != 0
    assert "values don't meet the specifications of the schema" in done.err
    assert named in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--set", "watchNamespaces={a}"), "set scope=Namespaced or empty watchNamespaces", id="namespaces in cluster scope"),
        pytest.param(
            ("--set", "crds.onUninstall=Delete,uninstall.drafttables=Keep"),
            "set one of the two to the other's wish",
            id="DraftTables kept without their definition",
        ),
    ],
)
def test_refuses_values_that_contradict_each_other(cluster: Cluster, arguments: tuple[str, ...], message: str) -> None:
    done = cluster.template(*arguments, check=False)
    assert done.code != 0
    assert message in done.err


def test_every_default_is_described_by_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    assert set(schema["properties"]["image"]["properties"]) == set(values["image"])
    assert set(schema["properties"]["crds"]["properties"]) == set(values["crds"])
    assert set(schema["properties"]["uninstall"]["properties"]) == set(values["uninstall"])
    assert set(schema["properties"]["admission"]["properties"]) == set(values["admission"])
    for name, described in schema["properties"]["metrics"]["properties"].items():
        assert set(described["properties"]) == set(values["metrics"][name])
    assert set(schema["properties"]["metrics"]["properties"]) == set(values["metrics"])


def _names(bodies: tuple[dict[str, Any], ...], kind: str) -> list[tuple[str | None, str]]:
    return sorted((body["metadata"].get("namespace"), body["metadata"]["name"]) for body in bodies if body["kind"] == kind)


def test_namespaced_scope_has_rights_in_its_namespaces_only(cluster: Cluster) -> None:
    bodies = cluster.render("--set", "scope=Namespaced", "--set", "watchNamespaces={two,one}")
    assert _names(bodies, "Role") == [
        ("one", "tabletune-operator"),
        ("one", "tabletune-test-drafttables"),
        ("one", "tabletune-uninstall"),
        ("tabletune-system", "tabletune-test"),
        ("two", "tabletune-operator"),
        ("two", "tabletune-uninstall"),
    ]
    assert _names(bodies, "ClusterRoleBinding") == [(None, "tabletune-system:tabletune-nodes")]
    (nodes,) = (body for body in bodies if body["kind"] == "ClusterRole" and body["metadata"]["name"].endswith("-nodes"))
    assert nodes["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    environment = {item["name"]: item.get("value") for item in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["TABLETUNE_NAMESPACES"] == "one,two"


def test_both_scopes_have_the_same_rules_for_objects_of_a_namespace(cluster: Cluster) -> None:
    (role,) = (
        body
        for body in cluster.render("--set", "scope=Namespaced")
        if (body["kind"], body["metadata"]["name"]) == ("Role", "tabletune-operator")
    )
    (cluster_role,) = (
        body for body in cluster.render() if (body["kind"], body["metadata"]["name"]) == ("ClusterRole", "tabletune-system:tabletune")
    )
    assert cluster_role["rules"][: len(role["rules"])] == role["rules"]
    beyond = cluster_role["rules"][len(role["rules"]) :]
    assert [rule["resources"] for rule in beyond] == [["customresourcedefinitions"]]


def test_the_definition_is_the_generated_one_and_stays(cluster: Cluster) -> None:
    generated = yaml.safe_load((CHART / "files" / "drafttables.yaml").read_text())
    (kept,) = (body for body in cluster.render() if body["kind"] == "CustomResourceDefinition")
    assert kept["spec"] == generated["spec"]
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (going,) = (body for body in cluster.render("--set", "crds.onUninstall=Delete") if body["kind"] == "CustomResourceDefinition")
    assert "helm.sh/resource-policy" not in going["metadata"].get("annotations", {})
    skipped = cluster.render("--set", "crds.install=Skip")
    assert [body for body in skipped if body["kind"] == "CustomResourceDefinition"] == []


def test_jobs_and_sidecars_get_the_operators_image(cluster: Cluster) -> None:
    bodies = cluster.render("--set", "image.repository=example.com/tabletune,image.tag=1.2.3,image.pullPolicy=Always")
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {item["name"]: item.get("value") for item in operator["env"]}
    assert operator["image"] == environment["TABLETUNE_IMAGE"] == "example.com/tabletune:1.2.3"
    assert operator["imagePullPolicy"] == environment["TABLETUNE_IMAGE_PULL_POLICY"] == "Always"


def test_one_operator_at_a_time(cluster: Cluster) -> None:
    (deployment,) = (body for body in cluster.render() if body["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_keeping_drafttables_gives_the_hook_no_right_to_delete(cluster: Cluster) -> None:
    def verbs(*arguments: str) -> list[str]:
        (role,) = (
            body
            for body in cluster.render(*arguments)
            if (body["kind"], body["metadata"]["name"]) == ("ClusterRole", "tabletune-system:tabletune-uninstall")
        )
        return role["rules"][0]["verbs"]

    assert verbs() == ["list", "delete"]
    assert verbs("--set", "uninstall.drafttables=Keep") == ["list"]


ADMITTING = ("--set", "admission.enabled=true")


def _admission_objects(bodies: tuple[dict[str, Any], ...]) -> list[tuple[str, str]]:
    return sorted((body["kind"], body["metadata"]["name"]) for body in bodies if "admission" in body["metadata"]["name"]) + sorted(
        (body["kind"], body["metadata"]["name"]) for body in bodies if body["kind"] == "MutatingWebhookConfiguration"
    )


def test_nothing_of_mode_admission_is_there_by_default(cluster: Cluster) -> None:
    bodies = cluster.render()
    assert _admission_objects(bodies) == []
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    assert not [item for item in operator["env"] if "ADMISSION" in item["name"]]
    assert [port["name"] for port in operator["ports"]] == ["health", "metrics"]


@pytest.mark.parametrize("arguments", [ADMITTING, (*ADMITTING, "--set", "admission.certificates=CertManager")], ids=["own", "cert-manager"])
def test_the_webhook_can_never_stop_a_pod(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    (configuration,) = (body for body in cluster.render(*arguments) if body["kind"] == "MutatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 2, "None")
    assert webhook["rules"] == [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced"}
    ]


def test_the_webhook_is_reached_where_the_operator_serves(cluster: Cluster) -> None:
    bodies = cluster.render(*ADMITTING)
    (service,) = (body for body in bodies if body["kind"] == "Service")
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (operator,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in operator["ports"]}
    assert ports[service["spec"]["ports"][0]["targetPort"]] == 9443
    (configuration,) = (body for body in bodies if body["kind"] == "MutatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    client = webhook["clientConfig"]["service"]
    assert (client["name"], client["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
    environment = {item["name"]: item.get("value") for item in operator["env"]}
    assert environment["TABLETUNE_ADMISSION"] == configuration["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "expressions"),
    [
        pytest.param((), [("NotIn", ["kube-system", "tabletune-system"])], id="everywhere but in these"),
        pytest.param(("--set", "scope=Namespaced,watchNamespaces={b,a}"), [("In", ["a", "b"])], id="only where it serves"),
    ],
)
def test_it_is_asked_about_served_namespaces_only(
    cluster: Cluster, values: tuple[str, ...], expressions: list[tuple[str, list[str]]]
) -> None:
    (configuration,) = (body for body in cluster.render(*ADMITTING, *values) if body["kind"] == "MutatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    found = webhook["namespaceSelector"]["matchExpressions"]
    assert [(each["operator"], each["values"]) for each in found] == expressions
    assert {each["key"] for each in found} == {"kubernetes.io/metadata.name"}


def test_selectors_are_narrowed_by_values(cluster: Cluster) -> None:
    values = "admission.namespaceSelector.matchLabels.team=llm,admission.objectSelector.matchLabels.serving=yes"
    (configuration,) = (
        body for body in cluster.render(*ADMITTING, "--set-string", values) if body["kind"] == "MutatingWebhookConfiguration"
    )
    (webhook,) = configuration["webhooks"]
    assert webhook["namespaceSelector"]["matchLabels"] == {"team": "llm"}
    assert webhook["namespaceSelector"]["matchExpressions"]
    assert webhook["objectSelector"] == {"matchLabels": {"serving": "yes"}}


def test_with_cert_manager_the_operator_gets_no_right_to_a_secret(cluster: Cluster) -> None:
    bodies = cluster.render(*ADMITTING, "--set", "admission.certificates=CertManager")
    assert [kind for kind, _ in _admission_objects(bodies)] == ["Certificate", "Issuer", "Service", "MutatingWebhookConfiguration"]
    (configuration,) = (body for body in bodies if body["kind"] == "MutatingWebhookConfiguration")
    (certificate,) = (body for body in bodies if body["kind"] == "Certificate")
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == "tabletune-system/tabletune-admission"
    assert certificate["spec"]["dnsNames"][0] == "tabletune-admission.tabletune-system.svc"
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"] == {"secretName": certificate["spec"]["secretName"], "optional": True}


def test_with_its_own_certificates_it_gets_one_secret_and_one_configuration(cluster: Cluster) -> None:
    bodies = cluster.render(*ADMITTING)
    kinds = [kind for kind, _ in _admission_objects(bodies)]
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret", "Service", "MutatingWebhookConfiguration"]
    (secret,) = (body for body in bodies if body["kind"] == "Secret")
    assert "data" not in secret
    rules = [body["rules"] for body in bodies if body["kind"] in {"Role", "ClusterRole"} and "admission" in body["metadata"]["name"]]
    for (rule,) in rules:
        assert rule["verbs"] == ["get", "patch"]
        assert len(rule["resourceNames"]) == 1
