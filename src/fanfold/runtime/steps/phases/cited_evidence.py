"""Looking up what critics and reviewers quote: is it there, where they say it is?

Rules
* A quote is found when its words stand in the file on its line, or within a few lines of it: agents count
  lines badly, and invent words seldom by accident. Runs of white space are one.
* Files are read beneath the place where the agent worked, up to a size, and no link leads out of it. What
  its file tools show beside that, artifacts and what earlier phases published, may be quoted as it is there.
* What cannot be looked up was not found. Nothing an agent says about it counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fanfold.agents.toolbox import ToolFailed
from fanfold.kernel.plan import JSON
from fanfold.recipe.gates.verdicts import RESULT
from fanfold.trust.project_files import read_beneath

NEAR_LINES = 3
MAX_FILE_BYTES = 2 * 1024 * 1024


class Beside(Protocol):
    """Files that an agent reads by names of their own, outside of where it works."""

    def has(self, args: Mapping[str, Any]) -> bool: ...

    def locate(self, path: str) -> tuple[Path, str]: ...


class CitedEvidence:
    """Looks quotes up for one answer: each file is read once."""

    def __init__(self, folder: str, judged: str, beside: Sequence[Beside] = ()) -> None:
        self._folder = Path(folder)
        self._beside = beside
        self._judged = _even(judged)
        self._lines: dict[str, list[str]] = {}

    def checked(self, answer: JSON) -> JSON:
        """The answer with `found` at every piece of evidence in it, as it was looked up."""
        if isinstance(answer, list):
            return [self.checked(one) for one in answer]
        if not isinstance(answer, dict):
            return answer
        if {"file", "line", "quote"} <= answer.keys():
            return {**answer, "found": self.is_there(answer["file"], answer["line"], answer["quote"])}
        return {key: self.checked(value) for key, value in answer.items()}

    def is_there(self, file: Any, line: Any, quote: Any) -> bool:
        """Whether these words stand in that place."""
        if not (isinstance(file, str) and isinstance(line, int) and isinstance(quote, str)):
            return False
        words = _even(quote)
        if not words:
            return False
        if file == RESULT:
            return words in self._judged
        lines = self._read(file)
        first = max(0, line - 1 - NEAR_LINES)
        last = line + NEAR_LINES + quote.count("\n")
        return words in _even("\n".join(lines[first:last]))

    def _read(self, file: str) -> list[str]:
        if file not in self._lines:
            self._lines[file] = self._text(file).splitlines()
        return self._lines[file]

    def _text(self, file: str) -> str:
        try:
            top, inside = self._located(file)
            if "\0" in inside or inside.split("/", 1)[0] in ("..", ".fanfold"):
                return ""
            return read_beneath(top, top / inside, MAX_FILE_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, ToolFailed):
            return ""

    def _located(self, file: str) -> tuple[Path, str]:
        for other in self._beside:
            if other.has({"path": file}):
                return other.locate(file)
        return self._folder, os.path.relpath(file, self._folder) if os.path.isabs(file) else file


def invented(answer: JSON) -> list[str]:
    """The places that a looked-up answer quotes and that do not say so."""
    return [f"{one['file']}:{one['line']}" for one in quotes_in(answer) if not one.get("found")]


def quotes_in(answer: JSON) -> Iterator[dict[str, JSON]]:
    """The pieces of evidence of a verdict, in order."""
    given = answer.get("evidence") if isinstance(answer, dict) else None
    for one in given if isinstance(given, list) else ():
        if isinstance(one, dict):
            yield one


def judged_verdict(verdict: dict[str, JSON]) -> dict[str, JSON]:
    """A critic's verdict after its evidence was looked up: it passes only on evidence that is all there."""
    wrong = invented(verdict)
    problems = []
    if wrong:
        problems.append(f"The critic quoted what is not there ({', '.join(wrong[:5])}): do not rely on it.")
    elif verdict.get("pass") and not any(True for _ in quotes_in(verdict)):
        problems.append("The critic passed it without any evidence, which does not count.")
    if not problems:
        return verdict
    said = " ".join((str(verdict.get("feedback") or ""), *problems)).strip()
    return {**verdict, "pass": False, "feedback": said}


def _even(text: str) -> str:
    return " ".join(text.split())
