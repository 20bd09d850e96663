"""A foreign workflow while it is read: its tree with lines, and what was not carried over.

Rules
* Nothing is lost in silence: a key that nobody asked for is listed with its line when its object was read.
* Nothing is executed, fetched or looked up outside the file and, where a format says so, files beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from fanfold.errors import AuthorError
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Mapping, Node, Scalar, plain
from fanfold.text.trees.yaml import TextFormat, parse_yaml

MAX_BYTES = 1024 * 1024
STAND_IN = "echo 'This step is to be written anew.' >&2; exit 1"
FORMAT = TextFormat(name="workflow", max_bytes=MAX_BYTES, clean_text=False, clean_values=False)
_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_AS_JSON = re.compile(r"\s*\|\s*(?:to)?json(?:\(\))?\Z", re.ASCII)
_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*", re.ASCII)


class Lost(Struct, frozen=True, order=True):
    """What was not carried over: where it stands, what it is, and what to do about it."""

    line: int
    what: str
    why: str = ""
    file: str = ""
    """The file beside the workflow that it stands in; empty for the workflow itself."""


class Converted(Struct, frozen=True):
    """A recipe as plain data, and what is missing in it."""

    recipe: dict[str, Any]
    lost: list[Lost]


class ForeignFile:
    """One file and what was found out about it."""

    def __init__(
        self,
        data: bytes,
        file: str,
        beside: Callable[[str], bytes | None],
        roles: Collection[str] = (),
    ) -> None:
        self.file = file
        self.roles = roles
        """Names that a step may give as its role here."""
        self.beside = beside
        """The bytes of another file, relative to this one; None when it is not there."""
        self.text = data.decode("utf-8", "replace")
        self.lost: list[Lost] = []
        self._read_to: dict[tuple[int, str], int] = {}
        self.given_up: set[int] = set()
        """Where what is lost begins: each is told once."""

    def tree(self) -> Mapping:
        found, _, report = parse_yaml(self.text.encode(), self.file, FORMAT)
        if not isinstance(found, Mapping) or not report.ok:
            first = next((one for one in report.diagnostics if one.severity == "error"), None)
            where = f":{first.range.start.line}" if first is not None else ""
            message = first.message if first is not None else "it is not a map of keys"
            hint = first.help if first is not None else ""
            raise AuthorError("convert.unreadable", f"{self.file}{where}: {message}", hint=hint)
        return found

    def line(self, node: Node) -> int:
        return self.text.count("\n", 0, node.start) + 1

    def lose_inside(self, node: Node, words: str, what: str, why: str) -> None:
        """Give up words of a text: told at the line where they stand in it, each time at the next one."""
        key = (node.start, words)
        place = self.text.find(words, self._read_to.get(key, node.start), node.end)
        self._read_to[key] = place + 1 if place >= 0 else node.end
        self.lose(node if place < 0 else self.text.count("\n", 0, place) + 1, what, why)

    def lose(self, at: Node | int, what: str, why: str = "") -> None:
        self.lost.append(Lost(at if isinstance(at, int) else self.line(at), what, why))


class Reader:
    """One object of the file: keys are taken, and those that nobody took are lost."""

    def __init__(self, source: ForeignFile, node: Mapping, what: str) -> None:
        self.source = source
        self.node = node
        self.what = what
        self._taken: set[str] = set()

    def get(self, name: str) -> Node | None:
        self._taken.add(name)
        found = self.node.get(name)
        return None if isinstance(found, Scalar) and found.value is None else found

    def text(self, name: str) -> str:
        found = self._of(Scalar, name, "it is no text")
        return found.text if isinstance(found, Scalar) else ""

    def value(self, name: str) -> Any:
        """Whatever it is; who asks carries all of it over."""
        found = self.get(name)
        return None if found is None else plain(found)

    def whole(self, name: str) -> int | None:
        """A whole number."""
        found = self._of(Scalar, name, "it is no whole number")
        if isinstance(found, Scalar) and type(found.value) is int:
            return found.value
        if isinstance(found, Scalar):
            self.lose(name, "it is no whole number")
        return None

    def flag(self, name: str) -> bool:
        found = self._of(Scalar, name, "it is neither true nor false")
        if isinstance(found, Scalar) and not isinstance(found.value, bool):
            self.lose(name, "it is neither true nor false")
        return isinstance(found, Scalar) and found.value is True

    def map(self, name: str) -> Mapping | None:
        """An object inside."""
        found = self._of(Mapping, name, "it is no object")
        return found if isinstance(found, Mapping) else None

    def inner(self, name: str) -> Reader | None:
        """The reader of an object inside."""
        found = self.map(name)
        return None if found is None else Reader(self.source, found, f"{self.what}: {name}")

    def objects(self, name: str) -> list[Mapping]:
        found = self._of(tree.Sequence, name, "it is no list")
        items = found.items if isinstance(found, tree.Sequence) else []
        for one in items:
            if not isinstance(one, Mapping):
                self._lose_once(one, f"{self.what}: an item of {name}", "it is no object")
        return [one for one in items if isinstance(one, Mapping)]

    def texts(self, name: str) -> list[str]:
        found = self.get(name)
        if isinstance(found, Scalar):
            return [found.text]
        items = found.items if isinstance(found, tree.Sequence) else []
        if isinstance(found, Mapping):
            self.lose(name, "it is no list")
        for one in items:
            if not isinstance(one, Scalar):
                self._lose_once(one, f"{self.what}: an item of {name}", "it is no text")
        return [one.text for one in items if isinstance(one, Scalar)]

    def _of(self, kind: type[Node], name: str, why: str) -> Node | None:
        """What a key holds, where it is of the kind that is asked for; anything else is lost."""
        found = self.get(name)
        if found is not None and not isinstance(found, kind):
            self.lose(name, why)
            return None
        return found

    def lose(self, name: str, why: str) -> None:
        """Give a key up, if it is there."""
        found = self.node.key(name)
        self._taken.add(name)
        if found is not None:
            self._lose_once(found, f"{self.what}: {name}", why)

    def _lose_once(self, at: Node, what: str, why: str) -> None:
        """A key may be asked for again."""
        if at.start not in self.source.given_up:
            self.source.given_up.add(at.start)
            self.source.lose(at, what, why)

    def heading(self) -> dict[str, Any]:
        """The recipe that begins with the name and description of this object."""
        recipe: dict[str, Any] = {"name": slug(self.text("name"))}
        if self.text("description"):
            recipe["description"] = " ".join(self.text("description").split())
        return recipe

    def pass_over(self, *names: str) -> None:
        """Keys that say nothing a recipe would have to say."""
        self._taken |= set(names)

    def done(self) -> None:
        """Whatever was not asked for is lost."""
        for word, _ in self.node.entries:
            if word.text not in self._taken:
                self.source.lose(word, f"{self.what}: {word.text}", "recipes have nothing like it")


def step_id(name: str) -> str:
    """A name as the id of a step."""
    found = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "step"
    return found[:120]


def slug(name: str) -> str:
    """A name as that of a recipe."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64] or "converted"


def rewrite(text: str, resolve: Callable[[str], str | None], lose: Callable[[str], None]) -> str:
    """A text with `{{ path }}` holes in our names; what is no path stays as text, and is lost."""

    def hole(found: re.Match[str]) -> str:
        inside = _AS_JSON.sub("", found[1].strip())  # what is no text goes in as JSON anyway
        path = resolve(inside) if _PATH.fullmatch(inside) else None
        if path is None:
            lose(f"{{{{{found[1]}}}}}")
            return f"\\{{{{{found[1]}}}}}"
        return f"{{{{{path}}}}}"

    for logic in re.findall(r"\{%.*?%\}", text[: _last_end(text, "%}")], re.DOTALL):
        lose(logic)
    end = _last_end(text, "}}")
    return _HOLE.sub(hole, text[:end]) + text[end:]


def holes_of(text: str) -> list[re.Match[str]]:
    """All that stands in `{{ }}`."""
    return list(_HOLE.finditer(text, 0, _last_end(text, "}}")))


def _last_end(text: str, sign: str) -> int:
    """Where something can end at last: for what begins behind it, all of the rest is searched in vain."""
    return text.rfind(sign) + len(sign)
