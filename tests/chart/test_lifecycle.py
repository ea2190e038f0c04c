"""Install, test, upgrade and uninstall on the real cluster, in namespaces that refuse pods that are not restricted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from live_cluster import CHART, Cluster, eventually

from tabletune_operator.status import NEVER_OBSERVED

pytestmark = pytest.mark.usefixtures("no_other_operator")

FINALIZER_DOMAIN = "tabletune.io"
DEFINITION = "drafttables.tabletune.io"
# What a release makes, by kind; `events` and the namespace's own objects are not the release's.
KINDS = "deployments,jobs,pods,serviceaccounts,roles,rolebindings,configmaps,secrets"
CLUSTER_KINDS = "clusterroles,clusterrolebindings"


def install(cluster: Cluster, namespace: str, image: tuple[str, ...], *values: str) -> None:
    cluster.helm("install", "tt", str(CHART), "-n", namespace, "--wait", "--timeout", "3m", *image, *values)


def uninstall(cluster: Cluster, namespace: str) -> str:
    done = cluster.helm("uninstall", "tt", "-n", namespace, "--wait", "--timeout", "3m")
    return done.out + done.err


def apply_drafttable(cluster: Cluster, namespace: str, name: str) -> None:
    """A DraftTable whose Deployment does not exist: the operator takes it under its finalizer all the same."""
    body = {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"targetRef": {"name": "not-there"}},
    }
    cluster.apply(body)
    eventually(lambda: finalizers(cluster, namespace, name) != [], f"{namespace}/{name} gets a finalizer")


def finalizers(cluster: Cluster, namespace: str, name: str) -> list[str]:
    body = cluster.kubectl("get", "drafttable", name, "-n", namespace, "-o", "json").json()
    return [item for item in body["metadata"].get("finalizers", []) if item.startswith(FINALIZER_DOMAIN)]


def leftovers(cluster: Cluster, *namespaces: str) -> list[str]:
    """What is still there beside what every namespace has."""
    found = [
        f"{namespace}/{name}"
        for namespace in namespaces
        for name in cluster.names(KINDS, "-n", namespace)
        if name not in {"serviceaccount/default", "configmap/kube-root-ca.crt"}
    ]
    return found + [name for name in cluster.names(CLUSTER_KINDS) if any(f"/{namespace}:" in name for namespace in namespaces)]


def check_installation(cluster: Cluster, namespace: str) -> tuple[int, str]:
    """Exit code and words of `helm test`; hooks are heard on its standard error."""
    done = cluster.helm("test", "tt", "-n", namespace, "--timeout", "3m", check=False)
    return done.code, done.err


class TestOneRelease:
    """What one release that serves every namespace does; the last test stops its operator."""

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, cluster: Cluster, shared_namespace: str, image: tuple[str, ...]) -> Iterator[str]:
        """Its namespace."""
        install(cluster, shared_namespace, image)
        yield shared_namespace
        cluster.helm("uninstall", "tt", "-n", shared_namespace, "--no-hooks", "--ignore-not-found")

    def test_an_installed_release_passes_its_test(self, cluster: Cluster, running: str) -> None:
        code, said = check_installation(cluster, running)
        assert code == 0, said
        assert "ok: tabletune-operator is alive" in said
        assert not [name for name in leftovers(cluster, running) if "tabletune-test" in name]

    @pytest.mark.parametrize(("role", "writes"), [("view", "no"), ("edit", "yes"), ("admin", "yes")])
    def test_people_get_drafttables_with_kubernetes_own_roles(
        self, cluster: Cluster, running: str, other_namespace: str, role: str, writes: str
    ) -> None:
        cluster.kubectl("create", "rolebinding", "people", "-n", other_namespace, f"--clusterrole={role}", "--user=someone")

        def answer(verb: str) -> str:
            return cluster.kubectl(
                "auth", "can-i", verb, "drafttables.tabletune.io", "-n", other_namespace, "--as=someone", check=False
            ).out.strip()

        # The controller manager fills the aggregated roles a moment after the chart's own are there.
        eventually(lambda: answer("list") == "yes", f"{role} may list DraftTables")
        assert answer("create") == writes

    def test_an_upgrade_reaches_the_definition(self, cluster: Cluster, running: str, image: tuple[str, ...], tmp_path: Path) -> None:
        apply_drafttable(cluster, running, "before-upgrade")
        newer = tmp_path / "tabletune"
        cluster.run("cp", "-r", str(CHART), str(newer))
        path = newer / "files" / "drafttables.yaml"
        definition = yaml.safe_load(path.read_text())
        definition["spec"]["names"]["shortNames"].append("drafts")
        path.write_text(yaml.safe_dump(definition))
        cluster.helm("upgrade", "tt", str(newer), "-n", running, "--wait", "--timeout", "3m", *image)
        served = cluster.kubectl("get", "crd", DEFINITION, "-o", "json").json()
        assert served["spec"]["names"]["shortNames"] == ["dt", "drafts"]
        assert cluster.names("drafttables", "-n", running) == ("drafttable.tabletune.io/before-upgrade",)

    def test_the_test_fails_when_the_operator_does_not_run(self, cluster: Cluster, running: str) -> None:
        cluster.kubectl("scale", "deployment/tabletune-operator", "-n", running, "--replicas=0")
        eventually(lambda: cluster.names("pods", "-n", running) == (), "the operator is gone")
        code, said = check_installation(cluster, running)
        assert code != 0
        assert "ok: a DraftTable is accepted" in said
        assert "failed: tabletune-operator is not available: it is scaled to 0 replicas." in said
        assert not [name for name in leftovers(cluster, running) if "tabletune-test" in name]


def test_uninstall_deletes_drafttables_and_leaves_only_the_definition(
    bare_cluster: Cluster, release_namespace: str, other_namespace: str, image: tuple[str, ...]
) -> None:
    install(bare_cluster, release_namespace, image, "--set", "uninstall.timeoutSeconds=60")
    apply_drafttable(bare_cluster, release_namespace, "here")
    apply_drafttable(bare_cluster, other_namespace, "elsewhere")
    said = uninstall(bare_cluster, release_namespace)
    assert f"DraftTable {release_namespace}/here is gone." in said
    assert f"DraftTable {other_namespace}/elsewhere is gone." in said
    assert bare_cluster.names("drafttables", "-A") == ()
    eventually(lambda: leftovers(bare_cluster, release_namespace, other_namespace) == [], "nothing of the release is left")
    assert bare_cluster.names("crd", DEFINITION) == (f"customresourcedefinition.apiextensions.k8s.io/{DEFINITION}",)


def test_the_definition_goes_when_asked(bare_cluster: Cluster, release_namespace: str, image: tuple[str, ...]) -> None:
    install(bare_cluster, release_namespace, image, "--set", "crds.onUninstall=Delete")
    apply_drafttable(bare_cluster, release_namespace, "one")
    uninstall(bare_cluster, release_namespace)
    assert bare_cluster.kubectl("get", "crd", DEFINITION, check=False).code != 0
    eventually(lambda: leftovers(bare_cluster, release_namespace) == [], "nothing of the release is left")


def test_uninstall_without_a_working_operator_ends_and_can_be_repeated(
    bare_cluster: Cluster, release_namespace: str, image: tuple[str, ...]
) -> None:
    install(bare_cluster, release_namespace, image, "--set", "uninstall.timeoutSeconds=10")
    apply_drafttable(bare_cluster, release_namespace, "stuck")
    bare_cluster.kubectl("scale", "deployment/tabletune-operator", "-n", release_namespace, "--replicas=0")
    eventually(lambda: bare_cluster.names("pods", "-n", release_namespace) == (), "the operator is gone")
    failed = bare_cluster.helm("uninstall", "tt", "-n", release_namespace, "--timeout", "2m", check=False)
    assert failed.code != 0
    assert f"error: DraftTable {release_namespace}/stuck:" in failed.out + failed.err
    assert bare_cluster.names("deployments", "-n", release_namespace) == ("deployment.apps/tabletune-operator",)

    bare_cluster.kubectl("scale", "deployment/tabletune-operator", "-n", release_namespace, "--replicas=1")
    uninstall(bare_cluster, release_namespace)
    assert bare_cluster.names("drafttables", "-A") == ()
    eventually(lambda: leftovers(bare_cluster, release_namespace) == [], "nothing of the release is left")


def test_keep_leaves_drafttables_for_the_next_installation(bare_cluster: Cluster, release_namespace: str, image: tuple[str, ...]) -> None:
    install(bare_cluster, release_namespace, image, "--set", "uninstall.drafttables=Keep")
    apply_drafttable(bare_cluster, release_namespace, "kept")
    said = uninstall(bare_cluster, release_namespace)
    assert f"warning: DraftTable {release_namespace}/kept stays" in said
    assert finalizers(bare_cluster, release_namespace, "kept") != []

    # The same release again: it adopts the definition that stayed, and the operator serves what it finds.
    install(bare_cluster, release_namespace, image)
    uninstall(bare_cluster, release_namespace)
    assert bare_cluster.names("drafttables", "-A") == ()


def test_a_namespaced_release_leaves_other_namespaces_alone(
    bare_cluster: Cluster, release_namespace: str, other_namespace: str, image: tuple[str, ...]
) -> None:
    install(bare_cluster, release_namespace, image, "--set", "scope=Namespaced,crds.onUninstall=Keep")
    code, said = check_installation(bare_cluster, release_namespace)
    assert code == 0, said
    apply_drafttable(bare_cluster, release_namespace, "served")
    unserved = {
        "apiVersion": "tabletune.io/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": "unserved", "namespace": other_namespace},
        "spec": {"targetRef": {"name": "not-there"}},
    }
    bare_cluster.apply(unserved)
    uninstall(bare_cluster, release_namespace)
    assert bare_cluster.names("drafttables", "-n", release_namespace) == ()
    left = bare_cluster.kubectl("get", "drafttable", "unserved", "-n", other_namespace, "-o", "json").json()
    assert "finalizers" not in left["metadata"], json.dumps(left["metadata"])
    assert left["status"] == {"observedGeneration": NEVER_OBSERVED}
    bare_cluster.kubectl("delete", "drafttable", "unserved", "-n", other_namespace)
