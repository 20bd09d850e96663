"""libyaml's complaints in the words of someone who writes YAML by hand.

libyaml says what its state machine wanted; an author wants to know what to change. Each entry below
turns one complaint into a message, a help line, and the better of the two places libyaml gives: where
it noticed, or where the construct began. What is not in the table is passed on as it is.
"""

from __future__ import annotations

import re

from msgspec import Struct

from fanfold.text.diagnostics import Span

QUOTE_TEMPLATE = 'put the whole text in quotes: "{{…}}"'
QUOTE_BRACKETS = "quote a text in it that holds a bracket or a comma, such as an expression"
TEMPLATE_AT_START = "text that begins with {{ must be quoted, or YAML reads it as a mapping"

# An unquoted `{{` where a value begins.
_BARE_TEMPLATE = r"(?:^|[:\-,\[{?]\s)\s*(\{\{.*?(?:\}\}|$))"


class Complaint(Struct, frozen=True):
    """A refusal ready to be reported."""

    code: str
    message: str
    span: Span
    help: str


class _Rewording(Struct, frozen=True):
    problem: str
    message: str
    help: str = ""
    at_context: bool = False


_TABLE = (
    _Rewording(
        "mapping values are not allowed",
        'a ": " is not possible here',
        "quote text that contains a colon followed by a space, or check the indentation",
    ),
    _Rewording("found unexpected end of stream", "this quoted text never ends", "close the quote", True),
    _Rewording("found unexpected document indicator", "this quoted text never ends", "close the quote", True),
    _Rewording(
        "could not find expected ':'", "this line is not a key with a value", 'write "key: value"', True
    ),
    _Rewording(
        "did not find expected ',' or ']'",
        'the list that opens on line {line} needs "," or "]" here',
        QUOTE_BRACKETS,
    ),
    _Rewording(
        "did not find expected ',' or '}'",
        'the mapping that opens on line {line} needs "," or "}" here',
        QUOTE_BRACKETS,
    ),
    _Rewording(
        "did not find expected '-' indicator",
        'a list item that starts with "- " was expected here',
        "check the indentation",
    ),
    _Rewording(
        "did not find expected key", "a key was expected here", "check the indentation and the quotes"
    ),
    _Rewording("did not find expected node content", "a value was expected here"),
    _Rewording(
        "found unknown escape character",
        "double quotes do not know this escape",
        "write \\\\ for a backslash, or use single quotes",
    ),
    _Rewording("did not find expected hexdecimal number", "this escape needs more hexadecimal digits"),
    _Rewording("block sequence entries are not allowed", 'a list item is not possible here, after "key:"'),
    _Rewording("block mapping keys are not allowed", "a key is not possible here"),
    _Rewording("did not find expected <document start>", "only one document is allowed"),
    _Rewording("did not find expected comment or line break", "only a comment may follow | or > on its line"),
    _Rewording(
        "did not find expected alphabetic", "a name must follow & or *", "quote text that begins with & or *"
    ),
    _Rewording("found undefined tag handle", "this tag is not known", "quote text that begins with !", True),
)


def explain(text: str, problem: str, at: int, context: str = "", context_at: int | None = None) -> Complaint:
    """The refusal for one libyaml error at offset `at` of `text`."""
    at = min(at, len(text))
    span = (at, min(at + 1, len(text)))
    char = text[at : at + 1]
    if "Unicode character escape" in problem:
        return _bad_escape(text, at)
    if char == "\t" or "tab character" in problem:
        return Complaint(".syntax", "tabs cannot indent YAML", span, "indent with spaces")
    bare = _bare_template(text, at)
    if bare is not None:
        return Complaint(".syntax", TEMPLATE_AT_START, bare, QUOTE_TEMPLATE)
    if "cannot start any token" in problem:
        return Complaint(".syntax", f'text cannot begin with "{char}"', span, "put the text in quotes")
    for entry in _TABLE:
        if problem.startswith(entry.problem):
            began = at if context_at is None else context_at
            if entry.at_context:
                span = (began, min(began + 1, len(text)))
            message = entry.message.replace("{line}", str(text.count("\n", 0, began) + 1))
            return Complaint(".syntax", message, span, entry.help)
    return Complaint(".syntax", f"{context}: {problem}" if context else problem, span, "")


def _bad_escape(text: str, at: int) -> Complaint:
    """`\\ud800`: half of a surrogate pair, or past the end of Unicode. libyaml points at the digits."""
    start = text.rfind("\\", 0, at + 1)
    digits = {"x": 2, "u": 4, "U": 8}.get(text[start + 1 : start + 2], 0)
    message = "this escape is not a Unicode character"
    return Complaint(
        ".encoding",
        message,
        (start, start + 2 + digits),
        "write the character itself, or \\U and 8 digits",
    )


def _bare_template(text: str, at: int) -> Span | None:
    """An unquoted `{{` at the start of a value, on the line of the error or the one before it."""
    start = text.rfind("\n", 0, at) + 1
    for line_start in (start, text.rfind("\n", 0, max(start - 1, 0)) + 1):
        line = text[line_start:].split("\n", 1)[0]
        found = re.search(_BARE_TEMPLATE, line)
        if found and line_start + found.start(1) <= at:
            before = line[: found.start(1)]
            if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
                return (line_start + found.start(1), line_start + found.end(1))
    return None
