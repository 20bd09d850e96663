"""Carrying out what a message suggests: the commands in a text, run as they are printed.

A command that goes on until it is stopped is started, heard, and stopped.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from typing import TypeAlias

from tests.cli.conftest import Result
from tests.cli.suggestions.places import Place
from tests.work import PATIENCE_S

Fanfold: TypeAlias = Callable[..., Result]
WORDS_AFTER = frozenset(
    "shows lists follows continues goes stops tells runs takes merges says ends if may applies makes and or"
    " to again fills saves is lets checks deletes keeps begins prints finds with".split()
)
"""Words that go on with the sentence behind a command."""
USAGE, DENIED, PAUSED, BUDGET, NOT_FOUND = 2, 4, 3, 5, 6
STAYS = frozenset({"serve", "mcp"})


def commands(said: str) -> list[list[str]]:
    """The commands in a text, each as the words of a command line."""
    found: list[list[str]] = []
    for at in re.finditer(r"(?<![\w/.'-])fanfold(?= (?:[a-z]|--help))", said):
        line = said[at.end() :].splitlines()[0]
        line = re.split(r"[;`]|<|\)$|\) |, (?=or |fanfold |with |which )|\"\?$", line)[0].rstrip()
        words = shlex.split(line)
        after = (number for number, word in enumerate(words) if number and word.rstrip(",.") in WORDS_AFTER)
        stop = next(after, None)
        found.append([word.rstrip(",") for word in words[:stop]])
    return found


class Follow:
    """Carries out what it is given, and remembers it."""

    def __init__(self, fanfold: Fanfold, background: Callable[..., subprocess.Popen[bytes]]) -> None:
        self._fanfold = fanfold
        self._background = background
        self.followed: list[str] = []

    def __call__(
        self,
        said: Result | str,
        *,
        may: tuple[int, ...] = (0, 1, 3),
        meanwhile: Callable[[], object] | None = None,
    ) -> list[str]:
        """Carry out all that a text suggests; which commands these were.

        `meanwhile` is what ends the first, which waits for something: it is a process of its own then.
        """
        text = said if isinstance(said, str) else f"{said.out}\n{said.err}"
        done: list[str] = []
        for words in commands(text):
            if words[0] in STAYS and "--new-token" not in words:
                self._start_and_stop(words)
            else:
                result = self._waited_for(words, meanwhile) if meanwhile else self._fanfold(*words)
                meanwhile = None
                assert result.status in may, f"fanfold {shlex.join(words)}: {result}"
            done.append(words[0])
        assert done, f"nothing is suggested: {text}"
        self.followed.append(text)
        return done

    def _waited_for(self, words: list[str], meanwhile: Callable[[], object]) -> Result:
        process = self._background(*words)
        meanwhile()
        out, err = process.communicate(timeout=PATIENCE_S)
        return Result(process.returncode, out.decode(), err.decode())

    def did(self, said: str) -> None:
        """Take down a text whose commands the test carried out itself, at a terminal."""
        self.followed.append(said)

    def reached(self, place: Place) -> bool:
        return any(place.is_in(text) for text in self.followed)

    def _start_and_stop(self, words: list[str]) -> None:
        """A server says a line when it serves; one that reads its input ends with it."""
        extra = ["--port", "0"] if words[0] == "serve" and "--port" not in words else []
        process = self._background(*words, *extra)
        if words[0] == "serve":
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http"), process.communicate()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (0, 130), (words, out, err)
