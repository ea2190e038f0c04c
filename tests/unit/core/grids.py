"""Grids that users published (data/published-grids.csv names the source of each row)."""

from __future__ import annotations

import csv
from pathlib import Path

from tabletune.goodput import goodput

PUBLISHED = Path(__file__).parent / "data" / "published-grids.csv"
LLAMA_EAGLE = "Llama-3.1-8B EAGLE"
LLAMA_ACCEPTANCE = (0.68118, 0.39144, 0.20352, 0.10140, 0.05142)  # published beside that grid, vllm-project/vllm pull 32374
MODELS = (LLAMA_EAGLE, "Qwen3-32B+EAGLE3 TP2", "Nemotron3-Super-120B MTP TP4", "gemma-4-31B-FP8+MTP assistant")


def read_published(model: str) -> dict[int, dict[int, float]]:
    """Tokens a second by batch size and length; step times are turned into goodput with the published acceptance."""
    values: dict[int, dict[int, float]] = {}
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            if row["model"] != model:
                continue
            b, k, value = int(row["batch"]), int(row["k"]), float(row["value"])
            if row["metric"] == "itl_ms_per_step":
                value = goodput(b, k, value * 1000, LLAMA_ACCEPTANCE)
            values.setdefault(b, {})[k] = value
    return values
