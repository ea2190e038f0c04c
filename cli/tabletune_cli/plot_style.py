"""What the pictures of a profile share: size, colours, heading, and how they are saved.

Safe for colour-blind readers (cividis, Okabe-Ito with markers and dashes of their own), in grey, and at a glance:
the title is the finding, the line below says what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from tabletune.words import percent
from tabletune_cli.explanation import Explanation

DPI = 150
WIDTH, HEIGHT = 1200 / DPI, 750 / DPI  # inches
INK, FAINT, PICK = "#222222", "#8a8a8a", "#D55E00"


def new_figure(title: str, subtitle: Sequence[str]) -> Figure:
    """A figure with its heading; the title is made smaller when it is too long."""
    figure = plt.figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white")
    heading = figure.text(0.02, 0.95, title, fontsize=13, fontweight="bold", color=INK, va="center", parse_math=False)
    wide = heading.get_window_extent().width / (WIDTH * DPI * 0.95)
    if wide > 1:
        heading.set_fontsize(max(13 / wide, 7))
    for at, line in enumerate(subtitle):
        figure.text(0.02, 0.903 - 0.033 * at, line, fontsize=8, color="#555555", va="center", parse_math=False)
    return figure


def save(figure: Figure, target: Path | BinaryIO) -> None:
    """As PNG; the figure is gone then."""
    figure.savefig(target, dpi=DPI, format="png")
    plt.close(figure)


def say_measured(e: Explanation) -> tuple[str, str]:
    """What was measured; how, and which profile it is."""
    p = e.stored.profile
    # A drafter that is no model of its own (n-gram, MTP) has the target's name in vLLM.
    drafter = p.engine.get("method") if p.engine.get("drafter") in (None, p.engine.get("model")) else p.engine["drafter"]
    product = dict(p.fingerprint.fields).get("gpuProduct") or p.engine.get("device")
    rates = " / ".join(f"{a:.2f}" for a in e.stored.acceptance.counts.rates)
    when = p.measurement.measured_at[:10]
    what = f"{p.engine.get('model')} + {drafter}  ·  {product}  ·  vLLM {p.engine.get('vllm')}"
    how = f"acceptance {rates}  ·  noise {percent(e.noise)}  ·  measured {when}  ·  fingerprint {p.fingerprint.digest}"
    return what, how
