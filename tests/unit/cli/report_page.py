"""Reads a page of `tabletune report`, or a piece of one."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img"}


class Page(HTMLParser):
    """Checks that every element is closed in order, and keeps the text of each section and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.sections: dict[str, str] = {}
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"] or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self._section = ""
        elif tag in {"td", "th", "p", "dd", "dt", "li"}:
            self.sections[self._section] = self.sections.get(self._section, "") + " | "

    def handle_data(self, data: str) -> None:
        self.sections[self._section] = self.sections.get(self._section, "") + data
