"""Unified diffs: read, and applied exactly.

Rules
* Context and removed lines must be in the file as the patch has them. A hunk may have moved: its place is the
  match nearest to the line it names, behind the hunk before it. No fuzz: a line that differs is a failure.
* Line counts in `@@` headers are often wrong in patches written by models and say nothing that the lines do
  not, so they are not used.
"""

from __future__ import annotations

import re

from msgspec import Struct

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@|^@@")
_NO_END = "\\ No newline at end of file"


class PatchError(Exception):
    """The patch cannot be read or does not fit; the message says where."""


class Hunk(Struct):
    """One piece of a change: what is there, and what shall be there."""

    line: int
    old: list[str]
    new: list[str]
    old_ends: bool = True
    """Whether the last old line ends with a newline; same for the new one."""
    new_ends: bool = True


class FilePatch(Struct):
    """The change of one file; None stands for a file that is not there."""

    old: str | None
    new: str | None
    hunks: list[Hunk]


def parse(patch: str) -> list[FilePatch]:
    """The changes a patch asks for."""
    changes: list[FilePatch] = []
    lines = patch.rstrip("\n").split("\n")
    i = 0
    while i < len(lines):
        if lines[i].startswith("--- ") and i + 1 < len(lines) and lines[i + 1].startswith("+++ "):
            old, new = _name(lines[i][4:], "a/"), _name(lines[i + 1][4:], "b/")
            if old is None and new is None:
                raise PatchError("a file needs a name on one side")
            changes.append(FilePatch(old, new, []))
            i += 2
        elif lines[i].startswith("@@"):
            if not changes:
                raise PatchError("the patch has no --- and +++ lines before its first @@")
            i = _hunk(lines, i, changes[-1])
        elif lines[i].startswith(("rename ", "copy ", "GIT binary", "Binary files")):
            raise PatchError(f"renames, copies and binary files cannot be patched: {lines[i]}")
        else:
            i += 1
    if not changes:
        raise PatchError("this is no unified diff: it has no --- and +++ lines")
    return changes


def _name(text: str, prefix: str) -> str | None:
    name = text.partition("\t")[0].strip().strip('"')
    return None if name == "/dev/null" else name.removeprefix(prefix)


def _hunk(lines: list[str], i: int, change: FilePatch) -> int:
    header = _HUNK.match(lines[i])
    assert header is not None, "the caller saw it"
    hunk = Hunk(int(header[1] or 0), [], [])
    i += 1
    last = ""
    while i < len(lines):
        line = lines[i]
        begins_file = line.startswith("--- ") and lines[i + 1 : i + 2] and lines[i + 1].startswith("+++ ")
        if begins_file or line.startswith(("@@", "diff --git ")):
            break
        if line == _NO_END:
            hunk.old_ends = hunk.old_ends and last == "+"
            hunk.new_ends = hunk.new_ends and last == "-"
        elif line[:1] in (" ", ""):
            hunk.old.append(line[1:])
            hunk.new.append(line[1:])
        elif line[0] == "-":
            hunk.old.append(line[1:])
        elif line[0] == "+":
            hunk.new.append(line[1:])
        else:
            raise PatchError(f"line {i + 1} of the patch begins with neither space, + nor -: {line[:60]}")
        last = line[:1]
        i += 1
    change.hunks.append(hunk)
    return i


def apply(change: FilePatch, text: str | None) -> str:
    """The text of a file after a change; raises `PatchError` when it does not fit."""
    name = change.new or change.old
    if change.old is None:
        if text is not None:
            raise PatchError(f"{name} shall be created but is there already")
        lines = [line for hunk in change.hunks for line in hunk.new]
        ends = not change.hunks or change.hunks[-1].new_ends
        return "\n".join(lines) + ("\n" if lines and ends else "")
    if text is None:
        raise PatchError(f"{name} does not exist")
    lines = text.split("\n")  # a text that ends with a newline has an empty last line
    at, moved = 0, 0
    for number, hunk in enumerate(change.hunks, 1):
        place = _place(lines, hunk, at, hunk.line - 1 + moved)
        if place is None:
            shown = next((line for line in hunk.old if line.strip()), "")[:80]
            raise PatchError(f"hunk {number} does not fit {name}: its lines are not there (first: {shown!r})")
        new = list(hunk.new)
        end = place + len(hunk.old)
        if not hunk.new_ends and end == len(lines) - 1 and lines[end] == "":
            end += 1  # the newline at the end goes too
        elif not hunk.old_ends and hunk.new_ends and end == len(lines):
            new.append("")
        lines[place:end] = new
        moved += len(new) - (end - place)
        at = place + len(new)
    return "\n".join(lines)


def _place(lines: list[str], hunk: Hunk, first: int, wanted: int) -> int | None:
    """Where the hunk's old lines are, the match nearest to where it says."""
    old = hunk.old
    if not old:  # nothing but new lines: behind the line it names
        return min(max(wanted + 1, first), max(len(lines) - 1, 0))
    places = (i for i in range(first, len(lines) - len(old) + 1) if lines[i : i + len(old)] == old)
    return min(places, key=lambda i: abs(i - wanted), default=None)
