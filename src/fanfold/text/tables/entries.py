"""Read a mapping by the table of keys: known words, right types, numbers in range.

Rules
* Every problem is reported where it is and reading goes on; a value that was refused is left out of
  `Entries`, and `has` still knows that the author wrote it, so that nobody reports it as missing too.
* What comes out is named by the key's own word, whatever alias the author used.
* Only the form is judged here. What a value means (does the role exist, is the glob legal) belongs to
  the modules that know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fanfold.text.diagnostics import Span
from fanfold.text.notes import MAX_SHOWN_CHARS, Notes, kind_of, quoted, span_of, with_article
from fanfold.text.tables.durations import duration_ms
from fanfold.text.tables.forms import has_form
from fanfold.text.tables.shapes import Key, Shape
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar

MIN_ALIKE = 4


class Meant(NamedTuple):
    """What to write in the place of something else; where that is certain, a machine may write it."""

    text: str
    certain: bool = False


class Entries:
    """One mapping of a recipe, read by its table."""

    __slots__ = ("keys", "mapping", "meant", "nodes", "shape")

    def __init__(self, mapping: tree.Mapping, shape: Shape) -> None:
        self.mapping = mapping
        self.shape = shape
        self.keys: dict[str, Scalar] = {}
        """Every known key that was written, also those whose value was refused."""
        self.nodes: dict[str, Node] = {}
        self.meant: set[str] = set()
        """Known keys that unknown words were probably meant to be."""

    def lacks(self, name: str) -> bool:
        """Nobody wrote the key, not even misspelled: to report it missing is no second report of a typo."""
        return name not in self.keys and name not in self.meant

    def has(self, name: str) -> bool:
        return name in self.keys

    def text(self, name: str) -> str | None:
        node = self.nodes.get(name)
        return node.text if isinstance(node, Scalar) else None

    def integer(self, name: str) -> int | None:
        node = self.nodes.get(name)
        return node.value if isinstance(node, Scalar) and isinstance(node.value, int) else None

    def flag(self, name: str) -> bool:
        node = self.nodes.get(name)
        return isinstance(node, Scalar) and node.value is True

    def milliseconds(self, name: str) -> int | None:
        """A duration, whichever of its two spellings was used."""
        node = self.nodes.get(name)
        if not isinstance(node, Scalar):
            return None
        # `timeout_ms: 500` is kept under `timeout`; only the word tells which of the two was written.
        in_milliseconds = self.keys[name].text.endswith("_ms") and type(node.value) is int
        return node.value if in_milliseconds else duration_ms(node.value)  # type: ignore[return-value]  # an int

    def scalars(self, name: str) -> list[Scalar]:
        """The items of a list of scalars, or the one that stands alone; empty when there is none."""
        node = self.nodes.get(name)
        if isinstance(node, Scalar) and self.shape.keys[name].kind == "ids":
            return [node]
        if not isinstance(node, tree.Sequence):
            return []
        return [item for item in node.items if isinstance(item, Scalar)]

    def items(self, name: str) -> list[Node]:
        """The items of a list; of a map by name the values, each with its name."""
        node = self.nodes.get(name)
        if isinstance(node, tree.Mapping) and self.shape.keys[name].kind == "named_objects":
            return [_named(word, value) for word, value in node.entries]
        return node.items if isinstance(node, tree.Sequence) else []

    def pairs(self, name: str) -> list[tuple[Scalar, Node]]:
        node = self.nodes.get(name)
        return node.entries if isinstance(node, tree.Mapping) else []

    def head(self) -> Span:
        """Where to point when something is missing: the first word of the mapping."""
        if self.mapping.entries:
            return span_of(self.mapping.entries[0][0])
        return (self.mapping.start, self.mapping.end)


def _named(word: Scalar, value: Node) -> Node:
    """`name: {…}` as `{name: name, …}`; nothing after the name stands for an object without keys."""
    if isinstance(value, Scalar) and value.value is None:
        value = tree.Mapping([], word.start, word.end)
    if not isinstance(value, tree.Mapping):
        return value
    key = Scalar("name", "name", word.start, word.end, word.style, "")
    return tree.Mapping([(key, word), *value.entries], word.start, value.end)


def read_entries(
    node: Node,
    shape: Shape,
    notes: Notes,
    highs: Mapping[str, int] | None = None,
    *,
    meant: Meant | None = None,
) -> Entries | None:
    """The entries of one object; None when the node is not a mapping at all.

    `highs` raises the upper end of a range (the user's configuration may raise ceilings). `meant` says what
    somebody means who writes something else in its place.
    """
    if not isinstance(node, tree.Mapping):
        message = f"{with_article(shape.name)} must be a map of keys, not {kind_of(node)}"
        if not notes.is_alias(node):
            fix, hint = None, shape.hint
            if shape.short and isinstance(node, Scalar) and node.value is not None:
                meant = Meant(f"{{{shape.short}: {node.text}}}", certain=True)
            if meant is not None:
                hint = f"write {meant.text}"
                fix = notes.fix(node.start, node.end, meant.text) if meant.certain else None
            notes.error(".bad_type", message, node, hint, fix)
        return None
    entries = Entries(node, shape)
    for word, value in node.entries:
        _read_entry(entries, word, value, notes, highs or {})
    for key in shape.keys.values():
        if key.required and entries.lacks(key.name):
            message = f"{with_article(shape.name)} needs {quoted(key.name)}"
            notes.error(".missing_key", message, entries.head(), shape.hint)
    return entries


def _read_entry(entries: Entries, word: Scalar, value: Node, notes: Notes, highs: Mapping[str, int]) -> None:
    shape = entries.shape
    key = shape.keys.get(word.text)
    if key is None and shape.open:
        notes.note(".note", f"key {quoted(word.text)} is not used here", word)
        return
    if key is None:
        _refuse_key(entries, word, notes)
        return
    name = key.alias or key.name
    first = entries.keys.get(name)
    if first is not None:
        if first.text != word.text:  # the same word twice is the parser's to report
            message = f"{quoted(first.text)} and {quoted(word.text)} say the same thing"
            notes.error(".conflicting_keys", message, word, "keep one of them")
        return
    entries.keys[name] = word
    if has_form(value, key, notes) and _in_range(value, key, notes, highs):
        entries.nodes[name] = value


def _refuse_key(entries: Entries, word: Scalar, notes: Notes) -> None:
    shape = entries.shape
    instead = shape.instead.get(word.text, "")
    certain = instead in shape.keys
    meant = instead if certain else None
    if not instead:
        meant = notes.nearest(word.text, shape.keys) or _begun_alike(word.text, shape.keys)
    if meant is not None:
        entries.meant.add(shape.keys[meant].alias or meant)
    if instead:
        hint = f"write {instead}"
    elif meant is not None:
        hint = f"did you mean {quoted(meant)}?"
    else:
        hint = shape.hint or f"{with_article(shape.name)} has {', '.join(sorted(shape.keys))}"
    there = any(other.text == meant for other, _ in entries.mapping.entries)
    fix = notes.fix(word.start, word.end, instead) if certain and not there else None
    message = f"{with_article(shape.name)} has no key {quoted(word.text)}"
    notes.error(".unknown_key", message, word, hint, fix)


def _begun_alike(word: str, keys: Iterable[str]) -> str | None:
    """The one key that begins with the word: `workspace` for `workspace_mode`."""
    found = [key for key in keys if len(word) >= MIN_ALIKE and key.startswith(f"{word}_")]
    return found[0] if len(found) == 1 else None


def _in_range(value: Node, key: Key, notes: Notes, highs: Mapping[str, int]) -> bool:
    if key.low is None or not isinstance(value, Scalar):
        return True
    number = duration_ms(value.value) if key.kind == "duration" else value.value
    assert isinstance(number, (int, float))
    high = max(key.high or 0, highs.get(key.name, 0))
    # Money has no smallest unit worth naming: any positive amount will do.
    low_enough = number > key.low if key.kind == "number" else number >= key.low
    if low_enough and number <= high:
        return True
    if key.kind == "duration":
        bounds = "must be more than 0" if number < key.low else f"must be at most {high // 3_600_000}h"
    elif key.kind == "number":
        bounds = f"must be more than {key.low} and at most {high:,}"
    else:
        bounds = f"must be from {key.low:,} to {high:,}"
    notes.error(".limit", f"{quoted(key.name)} is {value.text[:MAX_SHOWN_CHARS]}; it {bounds}", value)
    return False
