"""Pages as text: the words of what a server sent, whatever charset it names and however the page is built."""

from __future__ import annotations

from html.parser import HTMLParser

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BREAKS = frozenset("p div br li tr h1 h2 h3 h4 h5 h6 section article pre table ul ol".split())
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})
"""Codecs of Python's that make text, but are nobody's charset; some take very long for a page."""


def page_text(data: bytes, kind: str) -> str:
    """The words of what a server sent as `kind`. Runs as a `limited` job."""
    whole = _decoded(data, kind)
    return _readable(whole) if "html" in kind else whole


def _decoded(data: bytes, kind: str) -> str:
    """The text of a page in the charset that its server names, if there is such a one."""
    import codecs

    name = kind.partition("charset=")[2].partition(";")[0].strip(" \"'")
    try:
        if codecs.lookup(name).name.replace("_", "-") not in _NO_CHARSETS:
            return data.decode(name, "replace")
    except (LookupError, ValueError):  # unknown, or no codec of text
        pass
    return data.decode("utf-8", "replace")


def _readable(page: str) -> str:
    """The words of a page, a line per block."""
    reader = _Words()
    try:
        reader.feed(page)
    except AssertionError:  # what the parser says of declarations that it does not know
        return page
    lines = (" ".join(line.split()) for line in "".join(reader.words).split("\n"))
    return "\n".join(line for line in lines if line)


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif tag in _BREAKS:
            self.words.append("\n")
        if tag == "a":
            target = dict(attrs).get("href") or ""
            if target.startswith("http"):
                self.words.append(f" ({target}) ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT and self._silent:
            self._silent -= 1
        elif tag in _BREAKS:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)
