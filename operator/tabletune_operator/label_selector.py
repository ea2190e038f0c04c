"""LabelSelectors, as Kubernetes reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Body = Mapping[str, Any]


def selects(selector: Body | None, labels: Mapping[str, str]) -> bool:
    """Does a LabelSelector select these labels? An empty one selects everything, none nothing."""
    if selector is None:
        return False
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    return all(_holds(expression, labels) for expression in selector.get("matchExpressions") or ())


def _holds(expression: Body, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False  # the API server takes no other
