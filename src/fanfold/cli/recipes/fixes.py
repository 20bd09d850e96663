"""`check --fix`: carry out the mechanical repairs that diagnostics propose.

A repair is applied only to the file the user named, never to built-in recipes or to files it refers to.
After each round the file is compiled again, because one repair may make the next one visible; when
nothing is left to repair the file is not touched, so a second call changes nothing.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from fanfold.cli.recipes.opening import Opened, Project
from fanfold.recipe.surroundings import Found
from fanfold.text.diagnostics import Fix, Position

MAX_ROUNDS = 20
_LINE_END = re.compile(r"\r\n|\n|\r")


def fix_and_recheck(project: Project, opened: list[Opened]) -> list[Opened]:
    """Repair what can be repaired; returns the recipes as they are afterwards."""
    return [one if one.found.origin in ("builtin", "missing") else _fix(project, one) for one in opened]


def _fix(project: Project, opened: Opened) -> Opened:
    fixed = 0
    seen = {opened.found.data}
    for _ in range(MAX_ROUNDS):
        fixes = [d.fix for d in opened.diagnostics if d.fix is not None and d.file == opened.found.file]
        if not fixes:
            break
        text, count = apply_fixes(opened.found.data.decode(), fixes)
        data = text.encode()
        if not count or data in seen:  # two repairs that undo each other must not go on for ever
            break
        seen.add(data)
        fixed += count
        old = opened.found
        opened = project.compile((opened.ref, Found(data, old.file, old.origin, old.shadowed)))
    if fixed:
        _replace(Path(opened.found.file), opened.found.data)
    opened.fixed = fixed
    return opened


def apply_fixes(text: str, fixes: list[Fix]) -> tuple[str, int]:
    """The repaired text and how many repairs were made; of two that overlap the first is made."""
    ends = list(_LINE_END.finditer(text))
    starts = [0, *(match.end() for match in ends)]
    line_end = ends[0][0] if ends else "\n"  # a repair that adds lines ends them as the file does

    def offset(position: Position) -> int:
        return min(starts[min(position.line, len(starts)) - 1] + position.column - 1, len(text))

    spans = sorted({(offset(fix.range.start), offset(fix.range.end), fix.text) for fix in fixes})
    parts: list[str] = []
    at = count = 0
    previous = -1
    for start, end, replacement in spans:
        if start < at or start == previous:
            continue
        parts += [text[at:start], replacement.replace("\n", line_end)]
        at, previous = end, start
        count += 1
    return "".join([*parts, text[at:]]), count


def _replace(file: Path, data: bytes) -> None:
    """All or nothing: a reader sees the old recipe or the new one, never half of it."""
    target = file.resolve()
    mode = target.stat().st_mode
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
        os.chmod(name, mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
