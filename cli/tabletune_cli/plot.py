"""`tabletune plot`: step times of both regimes and goodput as PNG files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tabletune_cli.errors import refuse
from tabletune_cli.explain import DirectoryOption, NameArgument, NamespaceOption
from tabletune_cli.explanation import Explanation, explain_table
from tabletune_cli.output import Output, OutputOption, print_json
from tabletune_cli.stored import load

STEP_TIME, PREFILL, GOODPUT = "step-time.png", "step-time-prefill.png", "goodput.png"


def plot(
    *,
    name: NameArgument = None,
    namespace: NamespaceOption = None,
    directory: DirectoryOption = None,
    out: Annotated[Path, typer.Option("--out", help="folder for the PNG files; made if missing", metavar="DIR")] = Path(),
    output: OutputOption = Output.TEXT,
) -> None:
    """Draw T(B,k) and goodput as PNG files; prints their paths."""
    explanation = explain_table(load(directory, namespace, name))
    # They load matplotlib, which other calls do without.
    from tabletune_cli.plot_goodput import draw_goodput  # noqa: PLC0415
    from tabletune_cli.plot_steps import draw_prefills, draw_step_times  # noqa: PLC0415

    pictures: dict[str, Callable[[Explanation, Path], None]] = {STEP_TIME: draw_step_times, PREFILL: draw_prefills, GOODPUT: draw_goodput}
    if not explanation.stored.profile.prefill:
        del pictures[PREFILL]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, draw in pictures.items():
            draw(explanation, out / file)
    except OSError as error:
        refuse("CannotWrite", f"--out {out} cannot be written: {error.strerror}. Give a folder that you may write.")
    paths = [str(out / file) for file in pictures]
    if output is Output.JSON:
        print_json(paths)
    else:
        print("\n".join(paths))
