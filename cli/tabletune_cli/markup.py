"""HTML as values: what is not Html is escaped, so that no text of a file can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

VOID = frozenset({"img", "meta"})


class Html(str):
    """Markup that is whole and escaped."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """`<tag attribute="value">children</tag>`; an attribute that Python reserves ends in an underscore (`class_`)."""
    said = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{tag}{said}>") if tag in VOID else Html(f"<{tag}{said}>{join(children)}</{tag}>")


def join(children: Iterable[str]) -> Html:
    """One after the other."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, ends_in_words: bool = False) -> Html:
    """A table that scrolls by itself on a narrow screen. The first cell of a row is its name; another may be a whole `td`."""
    first = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [element("tr", element("th", row[0], scope="row"), *(_cell(cell) for cell in row[1:])) for row in rows]
    parts = (element("caption", caption), element("thead", first), element("tbody", *body))
    drawn = element("table", *parts, class_="words" if ends_in_words else "numbers")
    return element("div", drawn, class_="scroll", role="region", aria_label=caption, tabindex="0")


def definitions(pairs: Iterable[tuple[str, str]]) -> Html:
    """Names and what they stand for."""
    return element("dl", *(join((element("dt", name), element("dd", said))) for name, said in pairs))


def bullets(lines: Iterable[str]) -> Html:
    """A list without order."""
    return element("ul", *(element("li", line) for line in lines))


def _cell(content: str) -> Html:
    return content if isinstance(content, Html) and content.startswith("<td") else element("td", content)
