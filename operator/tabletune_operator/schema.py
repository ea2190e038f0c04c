"""Writes the CustomResourceDefinition from the classes in crd.py and status.py.

`python -m tabletune_operator.schema` writes `crds/` and the chart's copy; `--check` says whether they are current (make lint).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tabletune_operator.crd import GROUP, KIND, LONGEST_NAME, PLURAL, VERSION, DraftTableSpec, rule
from tabletune_operator.status import NEVER_OBSERVED, DraftTableStatus

ROOT = Path(__file__).resolve().parents[2]
COPIES = (Path("crds/drafttables.yaml"), Path("charts/tabletune/files/drafttables.yaml"))
HEADER = "# Generated from operator/tabletune_operator/{crd,status}.py by `make generate`. Do not edit.\n---\n"

_READY = '.status.conditions[?(@.type=="Ready")].status'
_COLUMNS = (
    ("Target", ".status.display.target", 0),
    ("State", ".status.display.state", 0),
    ("Verdict", ".status.display.verdict", 0),
    ("Table", ".status.display.table", 0),
    ("Gain", ".status.display.gain", 0),
    ("Ready", _READY, 0),
    ("GPU", ".status.display.gpu", 1),
    ("Replicas", ".status.display.replicas", 1),
    ("Noise", ".status.display.noise", 1),
    ("Loads", ".status.display.loads", 1),
    ("Profile", ".status.display.profile", 1),
    ("Reason", ".status.display.reason", 1),
    ("Message", ".status.display.message", 1),
)


def build_crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    columns = [{"name": name, "type": "string", "jsonPath": path, "priority": priority} for name, path, priority in _COLUMNS]
    columns.insert(6, {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 0})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["dt"],
                "categories": ["llm-d"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _root() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A measured table of draft length by batch size for the vLLM engines of one workload.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural(DraftTableSpec.model_json_schema()),
            "status": {**_structural(DraftTableStatus.model_json_schema()), "default": {"observedGeneration": NEVER_OBSERVED}},
        },
        "x-kubernetes-validations": [
            rule(
                f"self.metadata.name.size() <= {LONGEST_NAME}",
                f"metadata.name has more than {LONGEST_NAME} characters, and it becomes a label's value: choose a shorter name.",
            )
        ],
    }


def _structural(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Pydantic's JSON schema as a structural one: no references, no null, no titles."""
    definitions = schema.get("$defs", {})

    def convert(node: Mapping[str, Any]) -> dict[str, Any]:
        if "anyOf" in node:  # an optional field: absent is its null
            (present,) = (branch for branch in node["anyOf"] if branch != {"type": "null"})
            node = {**present, **{key: value for key, value in node.items() if key not in {"anyOf", "default"}}}
        default = {"default": node["default"]} if "default" in node else {}
        if "$ref" in node:
            named = definitions[node["$ref"].rsplit("/", 1)[1]]
            if default:  # written out: the API server tries CEL rules on a default before it fills in the nested ones
                default = {"default": {key: value for key, value in node["default"].items() if value is not None}}
            node = {**named, **{key: value for key, value in node.items() if key != "$ref"}}
        if "const" in node:
            node = {**node, "enum": [node["const"]]}
        converted = {key: value for key, value in node.items() if key not in _DROPPED} | default
        if "properties" in node:
            converted["properties"] = {name: convert(value) for name, value in node["properties"].items()}
        elif isinstance(node.get("additionalProperties"), Mapping):
            converted["additionalProperties"] = convert(node["additionalProperties"])
        if "items" in node:
            converted["items"] = convert(node["items"])
        return converted

    return convert(schema)


# `additionalProperties: false` is implied: the API server prunes what a structural schema does not name.
_DROPPED = {"$defs", "title", "default", "const", "properties", "additionalProperties", "items"}


class _Plain(yaml.SafeDumper):
    """Every list and map written out, so that the same rule at two places gives no YAML anchor."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's own signature
        return True


def to_yaml(crd: Mapping[str, Any]) -> str:
    return HEADER + yaml.dump(crd, Dumper=_Plain, sort_keys=False, width=120)


def main(arguments: list[str]) -> int:
    """Exit status: 0, or 1 when `--check` finds a file that is not current."""
    text = to_yaml(build_crd())
    stale = [copy for copy in COPIES if not (ROOT / copy).exists() or (ROOT / copy).read_text() != text]
    if arguments == ["--check"]:
        for copy in stale:
            print(f"{copy} is not what crd.py and status.py say. Write it with: make generate", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print("usage: python -m tabletune_operator.schema [--check]", file=sys.stderr)
        return 2
    for copy in stale:
        (ROOT / copy).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / copy).write_text(text)
        print(f"wrote {copy}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
