"""The chart's dashboard and alerts ask for metrics and labels that exist: against pages of the real collectors, with a real parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import operator_page
import promql_parser as promql
import pytest
import yaml
from sidecar_views import busy, page

from tabletune_sidecar.problem import CODES, Problem

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "tabletune"
DASHBOARD = json.loads((CHART / "dashboards" / "tabletune-overview.json").read_text())
RULES = [rule for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()
RECIPES = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|$", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)

TARGET = {"namespace", "pod", "container", "job", "instance", "endpoint", "drafttable"}
"""What the PodMonitor adds to every sample (`drafttable` by its relabelling)."""

OTHERS = {
    "up": set(),  # Prometheus' own
    # vLLM's, from its v1/metrics/loggers.py and v1/spec_decode/metrics.py, 0.33.0.
    "vllm:generation_tokens_total": {"model_name", "engine"},
    "vllm:time_to_first_token_seconds_bucket": {"model_name", "engine", "le"},
    "vllm:inter_token_latency_seconds_bucket": {"model_name", "engine", "le"},
    "vllm:spec_decode_num_drafts_total": {"model_name", "engine"},
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": {"model_name", "engine", "position"},
}
VARIABLES = {"$__rate_interval": "5m", "${datasource}": "prometheus"}

# With every problem, so that each label value that an alert may name is there.
PAGE = (*page(replace(busy(), problems=tuple(Problem(code, "-") for code in CODES))), *operator_page.page(operator_page.busy()))
SAMPLES = {name: labels for family in PAGE for name, labels in family.samples.items()}


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", ())


def asked() -> Iterator[Any]:
    """Every expression, and the text that is written from its labels."""
    for panel in panels():
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}, {target['refId']}")
    for annotation in DASHBOARD["annotations"]["list"]:
        yield pytest.param(annotation["expr"], annotation["textFormat"], id=annotation["name"])
    for rule in RULES:
        words = " ".join(rule["annotations"].values()).replace("$labels.", "")
        yield pytest.param(rule["expr"], words, id=rule["alert"])
    for wanted, query in RECIPES:
        yield pytest.param(query, "", id=f"docs/metrics.md: {wanted}")


def parse(expression: str) -> Any:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return promql.parse(expression)


def labels_of(node: Any) -> set[str] | None:  # noqa: PLR0911 - by case
    """Labels that a result can have, checked on the way down; None for a number."""
    match node:
        case promql.VectorSelector():
            return labels_of_selector(node)
        case promql.MatrixSelector():
            return labels_of_selector(node.vector_selector)
        case promql.Call():
            inner = [found for found in map(labels_of, node.args) if found is not None]
            return (inner[0] - {"le"} if node.func.name == "histogram_quantile" else inner[0]) if inner else None
        case promql.AggregateExpr():
            inner_labels = labels_of(node.expr)
            assert inner_labels is not None
            if node.modifier is None:
                return set()
            assert str(node.modifier.type).endswith("By"), "name what is kept, so that a new label changes no result"
            assert set(node.modifier.labels) <= inner_labels, node.prettify()
            return set(node.modifier.labels)
        case promql.BinaryExpr():
            left, right = labels_of(node.lhs), labels_of(node.rhs)
            matching = node.modifier.matching if node.modifier is not None else None
            if matching is not None and left is not None and right is not None:
                assert set(matching.labels) <= left | right, node.prettify()
            return right if left is None else left
        case promql.ParenExpr() | promql.UnaryExpr():
            return labels_of(node.expr)
        case promql.NumberLiteral():
            return None
    pytest.fail(f"not thought of: {type(node)}")


def labels_of_selector(selector: Any) -> set[str]:
    known = SAMPLES.get(selector.name)
    own = {label for sample in known for label in sample} if known is not None else OTHERS.get(selector.name)
    assert own is not None, f"no such metric: {selector.name}"
    matchers = [m for m in selector.matchers.matchers if "$" not in m.value]
    assert {m.name for m in selector.matchers.matchers} <= own | TARGET, selector.prettify()
    if known is not None:
        fixed = [m for m in matchers if m.name not in TARGET]
        assert any(all(matches(m, sample[m.name]) for m in fixed) for sample in known), f"matches nothing: {selector.prettify()}"
    return own | TARGET


def matches(matcher: Any, value: str) -> bool:
    kind = str(matcher.op).rpartition(".")[2]
    found = re.fullmatch(matcher.value, value) is not None if kind in {"Re", "NotRe"} else matcher.value == value
    return found is (kind in {"Re", "Equal"})


@pytest.mark.parametrize(("expression", "words"), list(asked()))
def test_every_expression_asks_for_what_there_is(expression: str, words: str) -> None:
    labels = labels_of(parse(expression))
    assert labels is not None
    assert set(re.findall(r"\{\{\s*(\w+)\s*\}\}", words)) <= labels


def test_the_queries_of_the_docs_are_among_them() -> None:
    assert "gain over the best one length" in dict(RECIPES)


@pytest.mark.parametrize(
    "expression",
    [
        "tabletune_tables_total",
        'tabletune_problem{kode="x"}',
        'tabletune_problem{code="NoSuchCode"}',
        "sum by (position) (tabletune_tracking)",
        'tabletune_acceptance_ratio{source="future"}',
    ],
)
def test_an_expression_that_asks_for_something_else_is_found(expression: str) -> None:
    with pytest.raises(AssertionError):
        labels_of(parse(expression))


def test_variables_are_looked_up_in_labels_that_exist() -> None:
    names = []
    for variable in DASHBOARD["templating"]["list"]:
        names.append(variable["name"])
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found is not None
            assert variable["query"]["query"] == variable["definition"]
            assert found[2] in (labels_of(parse(found[1])) or ())
    assert names == ["datasource", "namespace", "drafttable", "pod"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= {*names, "__rate_interval"}


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert DASHBOARD["uid"] == "tabletune-overview"
    assert {"tabletune", "vllm", "llm-d"} <= set(DASHBOARD["tags"])
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == source, panel["title"]
        assert all(target["datasource"] == source for target in panel["targets"]), panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in {"none", "short", "s", "percentunit"}, panel["title"]
        assert defaults["noValue"], "missing data is never blank"
        assert re.match(r"(tabletune_|vllm:|1 \+)", panel["description"]), "a description begins with its metrics"


def test_no_two_panels_share_a_place() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_ratios_are_shown_as_percent() -> None:
    for panel in panels():
        expressions = " ".join(target["expr"] for target in panel.get("targets", ()))
        if re.search(r"_gain_ratio|acceptance_ratio|noise_floor_ratio", expressions):
            assert panel["fieldConfig"]["defaults"]["unit"] == "percentunit", panel["title"]


def test_every_metric_is_shown_or_is_for_alerts_and_state() -> None:
    shown = {name for expression, _ in (param.values for param in asked()) for name in re.findall(r"tabletune_\w+", expression)}
    unseen = [family.name for family in PAGE if not any(name in shown for name in family.samples)]
    assert unseen == ["tabletune_build_info", "tabletune_table_violations"]


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_says_what_serving_does_and_has_a_runbook(rule: dict[str, Any]) -> None:
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["alert"].startswith("TableTune")
    assert rule["labels"]["severity"] in {"warning", "info"}, "serving goes on in every case"
    assert rule["annotations"].keys() == {"summary", "description"}
    assert f"\n## {rule['alert']}\n" in RUNBOOKS
    assert len(rule["annotations"]["summary"]) < 120


def test_no_runbook_is_for_an_alert_that_is_gone() -> None:
    assert re.findall(r"^## (TableTune\w+)$", RUNBOOKS, re.MULTILINE) == [rule["alert"] for rule in RULES]
