"""Outputs as documents of the search index: which words they have, by what they can be filtered.

Whoever changes anything here raises `INDEX_VERSION`: older indexes are then built again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.store.protocol import OutputRow
from fanfold.store.search.letters import spaced

if TYPE_CHECKING:
    import tantivy

INDEX_VERSION = 3
WORDS = "words"
"""The name of how texts are cut into words."""
_INSTANCE = re.compile(r"(?:\[\d+\]|#\d+)(?=/|$)")


def readable(content: bytes) -> str:
    """The words of a stored value: text as it is, anything else as its keys and leaves, one on a line."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return content.decode("utf-8", "replace")
    lines: list[str] = []
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest.extend(part for pair in reversed(item.items()) for part in reversed(pair))
        elif isinstance(item, list):
            rest.extend(reversed(item))
        elif item is not None:
            lines.append(item if isinstance(item, str) else str(item))
    return "\n".join(lines)


def addresses(path: str) -> set[str]:
    """What a step may be called in a question: itself or a step around it, with or without numbers.

    >>> sorted(addresses("audit/per_package[3]/confirm"))[:3]
    ['audit', 'audit/per_package', 'audit/per_package/confirm']
    """
    names = set()
    for whole in {path, _INSTANCE.sub("", path)}:
        parts = whole.split("/")
        names |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
        names |= {_INSTANCE.sub("", name) for name in names}
    return names


def describe(document: tantivy.Document, row: OutputRow, text: str, recipes: set[str]) -> None:
    document.add_text("text", spaced(text))
    document.add_unsigned("at", max(0, row.at))
    for recipe in recipes:
        document.add_text("recipe", recipe)
    for run in {row.run_id, row.root_run_id}:
        document.add_text("run", run)
    for name in addresses(row.path):
        document.add_text("step", name)
    document.add_text("role", row.role)
    document.add_text("status", row.status)


def row_line(row: OutputRow) -> str:
    return msgspec.json.encode((row.run_id, row.path, row.role, row.status, row.blob)).decode()


def document_schema() -> tantivy.Schema:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=WORDS, index_option="position")
    for name in ("run", "recipe", "step", "role", "status"):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("row", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("number", indexed=True, fast=True)
    builder.add_unsigned_field("at", indexed=True, fast=True)
    return builder.build()


def word_cutter() -> tantivy.TextAnalyzer:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    words = TextAnalyzerBuilder(Tokenizer.simple()).filter(Filter.remove_long(64))
    return words.filter(Filter.lowercase()).filter(Filter.ascii_fold()).build()
