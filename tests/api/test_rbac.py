"""What the chart's rights allow and refuse, by the word of a real API server (SubjectAccessReview)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_server import Api
from chart_rights import RBAC, Right, chart_rights, is_allowed, namespaces, path_of, wait_for_rights

RELEASE = "tabletune-rbac"
SERVED = "tabletune-rbac-served"
OTHER = "tabletune-rbac-other"
OPERATOR = f"system:serviceaccount:{RELEASE}:tabletune-operator"

# (group, resource, subresource, verbs): every right of docs/rbac.md in a served namespace.
NEEDED = (
    ("tabletune.io", "drafttables", "", "get list watch patch update"),
    ("tabletune.io", "drafttables", "status", "get patch update"),
    ("tabletune.io", "drafttables", "finalizers", "update"),
    ("apps", "deployments", "", "get list watch patch update"),
    ("apps", "statefulsets", "", "get list watch patch update"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "", "get patch update"),
    ("serving.kserve.io", "llminferenceservices", "", "get update"),
    ("apps", "replicasets", "", "get list watch"),
    ("", "pods", "", "get list watch"),
    ("", "services", "", "get list watch"),
    ("inference.networking.k8s.io", "inferencepools", "", "get list watch"),
    ("inference.networking.x-k8s.io", "inferencepools", "", "get list watch"),
    ("autoscaling", "horizontalpodautoscalers", "", "list"),
    ("keda.sh", "scaledobjects", "", "list"),
    ("policy", "poddisruptionbudgets", "", "list"),
    ("batch", "jobs", "", "get list watch create patch delete"),
    ("", "configmaps", "", "get list watch create update patch delete"),
    ("rbac.authorization.k8s.io", "roles", "", "get create patch delete"),
    ("rbac.authorization.k8s.io", "rolebindings", "", "get create patch delete"),
    ("", "events", "", "create patch"),
)
# What nothing of ours may do, not even where it serves.
REFUSED = (
    ("", "secrets", "", "get list watch create update patch delete"),
    ("", "pods", "exec", "get create"),
    ("", "pods", "attach", "get create"),
    ("", "pods", "portforward", "get create"),
    ("", "pods", "ephemeralcontainers", "update patch"),
    ("", "pods", "eviction", "create"),
    ("", "pods", "", "create update patch delete deletecollection"),
    ("", "services", "", "create update patch delete"),
    ("", "serviceaccounts", "", "get create update delete impersonate"),
    ("", "serviceaccounts", "token", "create"),
    ("", "configmaps", "", "deletecollection"),
    ("", "persistentvolumeclaims", "", "get create delete"),
    ("apps", "deployments", "", "create delete deletecollection"),
    ("apps", "deployments", "scale", "get update patch"),
    ("autoscaling", "horizontalpodautoscalers", "", "create update patch delete"),
    ("keda.sh", "scaledobjects", "", "create update patch delete"),
    ("policy", "poddisruptionbudgets", "", "create update patch delete"),
    ("apps", "statefulsets", "", "create delete deletecollection"),
    ("apps", "statefulsets", "scale", "get update patch"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "", "create delete deletecollection"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "scale", "get update patch"),
    ("serving.kserve.io", "llminferenceservices", "", "create patch delete deletecollection"),
    ("apps", "daemonsets", "", "get create patch"),
    ("batch", "jobs", "", "update deletecollection"),
    ("batch", "cronjobs", "", "get create patch"),
    ("tabletune.io", "drafttables", "", "create delete deletecollection"),
    ("rbac.authorization.k8s.io", "roles", "", "list watch update escalate bind"),
    ("rbac.authorization.k8s.io", "rolebindings", "", "list watch update"),
    ("inference.networking.k8s.io", "inferencepools", "", "create update patch delete"),
)
# Without a namespace, in either scope.
REFUSED_IN_CLUSTER = (
    ("", "nodes", "", "watch create update patch delete"),
    ("", "nodes", "proxy", "get create"),
    ("", "namespaces", "", "get list watch create update patch delete"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "", "create update patch delete"),
    ("rbac.authorization.k8s.io", "clusterroles", "", "get list create update patch delete bind escalate"),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "", "get list create update patch delete"),
    ("certificates.k8s.io", "certificatesigningrequests", "", "get create"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "get create patch"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "get list watch create update patch delete"),
    ("", "users", "", "impersonate"),
)


def _flatten(rights: tuple[Right, ...]) -> list[Right]:
    return [(group, resource, subresource, verb) for group, resource, subresource, verbs in rights for verb in verbs.split()]


def _name(right: Right) -> str:
    group, resource, subresource, verb = right
    return f"{verb} {resource}{'/' if subresource else ''}{subresource}{'.' if group else ''}{group}"


def _allowed(api: Api, rights: list[Right], namespace: str, user: str) -> set[Right]:
    """Those of the rights that the API server grants; an empty namespace is the cluster."""
    return {right for right in rights if is_allowed(api, right, namespace, user)}


@pytest.fixture(scope="module", autouse=True)
def all_namespaces(api: Api) -> Iterator[None]:
    with namespaces(api, RELEASE, SERVED, OTHER):
        yield


@pytest.fixture
def cluster_wide(api: Api) -> Iterator[str]:
    """The operator's user name."""
    with chart_rights(api, RELEASE):
        yield OPERATOR


@pytest.fixture
def namespaced(api: Api) -> Iterator[str]:
    """The operator's user name."""
    with chart_rights(api, RELEASE, "--set", "scope=Namespaced", "--set", f"watchNamespaces={{{SERVED}}}"):
        yield OPERATOR


def _refusals(api: Api, rights: list[Right], namespace: str, user: str) -> list[str]:
    allowed = _allowed(api, rights, namespace, user)
    return [_name(right) for right in rights if right not in allowed]


def _grants(api: Api, rights: list[Right], namespace: str, user: str) -> list[str]:
    return sorted(map(_name, _allowed(api, rights, namespace, user)))


def test_cluster_wide_it_may_do_its_work_everywhere(api: Api, cluster_wide: str) -> None:
    for namespace in (SERVED, OTHER, ""):
        assert _refusals(api, _flatten(NEEDED), namespace, cluster_wide) == []
    watched = _flatten(
        (
            ("", "nodes", "", "get list"),
            ("apiextensions.k8s.io", "customresourcedefinitions", "", "get list watch"),
        )
    )
    assert _refusals(api, watched, "", cluster_wide) == []


def test_cluster_wide_it_may_do_nothing_else(api: Api, cluster_wide: str) -> None:
    assert _grants(api, _flatten(REFUSED), SERVED, cluster_wide) == []
    assert _grants(api, _flatten(REFUSED), "kube-system", cluster_wide) == []
    assert _grants(api, _flatten(REFUSED_IN_CLUSTER), "", cluster_wide) == []


def test_namespaced_it_may_do_its_work_where_it_serves(api: Api, namespaced: str) -> None:
    assert _refusals(api, _flatten(NEEDED), SERVED, namespaced) == []
    assert _refusals(api, _flatten((("", "nodes", "", "get list"),)), "", namespaced) == []


def test_namespaced_it_may_do_nothing_else(api: Api, namespaced: str) -> None:
    assert _grants(api, _flatten(REFUSED), SERVED, namespaced) == []
    assert _grants(api, _flatten(REFUSED_IN_CLUSTER), "", namespaced) == []


@pytest.mark.parametrize("namespace", [OTHER, RELEASE, "kube-system", ""], ids=["another", "its own", "kube-system", "the cluster"])
def test_namespaced_it_may_do_nothing_elsewhere(api: Api, namespaced: str, namespace: str) -> None:
    assert _grants(api, _flatten(NEEDED), namespace, namespaced) == []
    assert _grants(api, _flatten(REFUSED), namespace, namespaced) == []


@pytest.fixture
def admitting(api: Api) -> Iterator[str]:
    """The operator's user name, with the rights of mode Admission."""
    with chart_rights(api, RELEASE, "--set", "admission.enabled=true"):
        yield OPERATOR


def test_mode_admission_adds_evictions_and_two_objects_by_name(api: Api, admitting: str) -> None:
    eviction = ("", "pods", "eviction", "create")
    assert _grants(api, _flatten(REFUSED), SERVED, admitting) == [_name(eviction)]
    assert _grants(api, _flatten(REFUSED_IN_CLUSTER), "", admitting) == []
    assert _refusals(api, _flatten(NEEDED), SERVED, admitting) == []
    for group, resource, namespace, name in (
        ("", "secrets", RELEASE, "tabletune-admission"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", f"tabletune.{RELEASE}"),
    ):
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
            right = (group, resource, "", verb)
            assert is_allowed(api, right, namespace, admitting, name) is (verb in {"get", "patch"}), right
            assert not is_allowed(api, right, namespace, admitting, "other"), right
            assert not is_allowed(api, right, namespace or SERVED, admitting), right


def test_hooks_hold_one_right_each(api: Api, namespaced: str) -> None:
    everything = sorted({*_flatten(NEEDED), *_flatten(REFUSED)})
    uninstall = f"system:serviceaccount:{RELEASE}:tabletune-uninstall"
    test = f"system:serviceaccount:{RELEASE}:tabletune-test"
    assert _grants(api, everything, SERVED, uninstall) == ["delete drafttables.tabletune.io", "list drafttables.tabletune.io"]
    assert _grants(api, everything, RELEASE, uninstall) == []
    assert _grants(api, everything, SERVED, test) == ["create drafttables.tabletune.io"]


VERBS = "get list watch create update patch delete deletecollection"


@pytest.mark.parametrize(
    ("role", "granted"),
    [
        pytest.param("view", "get list watch", id="view reads"),
        pytest.param("edit", VERBS, id="edit writes"),
        pytest.param("admin", VERBS, id="admin writes"),
    ],
)
def test_kubernetes_own_roles_take_drafttables_in(api: Api, cluster_wide: str, role: str, granted: str) -> None:
    """No controller fills aggregated roles in here (tests/chart sees one do it), so ours that match are bound by hand."""
    selectors = [selector["matchLabels"] for selector in api.get(f"{RBAC}/clusterroles/{role}")["aggregationRule"]["clusterRoleSelectors"]]
    user = f"a-{role}"
    for item in api.get(f"{RBAC}/clusterroles")["items"]:
        name, labels = item["metadata"]["name"], item["metadata"].get("labels", {})
        if name.startswith(f"{RELEASE}:") and any(selector.items() <= labels.items() for selector in selectors):
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{role}-{name.rpartition('-')[2]}", "namespace": OTHER},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            }
            api.apply(f"{path_of(binding)}/{binding['metadata']['name']}", binding, manager="tests")
    wait_for_rights(api, OTHER)
    rights = _flatten((("tabletune.io", "drafttables", "", VERBS), ("tabletune.io", "drafttables", "status", "get patch update")))
    assert _allowed(api, rights, OTHER, user) == {right for right in rights if not right[2] and right[3] in granted.split()}
    assert _allowed(api, rights, SERVED, user) == set()
