"""A page of `/metrics` as Prometheus reads it, by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Family:
    """One metric: the samples' names and all their labels with the values seen."""

    name: str
    kind: str
    help: str
    samples: dict[str, list[dict[str, str]]]

    @property
    def labels(self) -> tuple[str, ...]:
        """Without the bucket bound of a histogram, which every histogram has."""
        return tuple(sorted({label for each in self.samples.values() for found in each for label in found} - {"le"}))

    @property
    def documented(self) -> str:
        """Its line in docs/metrics.md."""
        name = next(iter(self.samples)) if self.kind in {"counter", "info"} else self.name
        return f"| `{name}` | {self.kind} | {', '.join(f'`{label}`' for label in self.labels) or '-'} | {self.help} |"


def families(text: str) -> tuple[Family, ...]:
    found = []
    for family in text_string_to_metric_families(text):
        samples: dict[str, list[dict[str, str]]] = {}
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
        found.append(Family(family.name, family.type, family.documentation, samples))
    return tuple(found)
