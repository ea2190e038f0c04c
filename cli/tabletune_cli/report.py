"""`tabletune report`: everything that a profiling run found, as one HTML file that needs no network and no script."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from tabletune_cli.errors import refuse
from tabletune_cli.explain import DirectoryOption, NameArgument, NamespaceOption
from tabletune_cli.explanation import Explanation, explain_table
from tabletune_cli.markup import Html, bullets, element, join
from tabletune_cli.output import Output, OutputOption, print_json
from tabletune_cli.report_sections import SECTIONS
from tabletune_cli.stored import load

NOTHING_FROM_OUTSIDE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Content security policy: a browser that obeys it could not load anything, even if a text of a file asked for it."""


def report(
    *,
    name: NameArgument = None,
    namespace: NamespaceOption = None,
    directory: DirectoryOption = None,
    out: Annotated[Path, typer.Option("--out", help="the HTML file; its folder must exist", metavar="FILE")] = Path("report.html"),
    output: OutputOption = Output.TEXT,
) -> None:
    """Write one HTML file that explains and defends the verdict; prints its path."""
    page = build_page(explain_table(load(directory, namespace, name)))
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        refuse("CannotWrite", f"--out {out} cannot be written: {error.strerror}. Give a file in a folder that you may write.")
    if output is Output.JSON:
        print_json(str(out))
    else:
        print(out)


def build_page(e: Explanation) -> str:
    """The whole file."""
    title = f"TableTune report: {e.stored.profile.engine.get('model')}"
    built = [(section, content) for section in SECTIONS if (content := section.build(e)) is not None]
    contents = bullets(element("a", section.title, href=f"#{section.anchor}") for section, _ in built[1:])
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=NOTHING_FROM_OUTSIDE),
        element("title", title),
        element("style", Html(files("tabletune_cli").joinpath("report.css").read_text(encoding="utf-8"))),
    )
    sections = [element("section", element("h2", section.title), content, id=section.anchor) for section, content in built]
    sections.insert(1, element("nav", contents, aria_label="Contents"))
    body = element("body", element("header", element("h1", title)), element("main", *sections))
    return join((Html("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n"))
