"""Commands that a role may run, as Claude Code writes them: `Bash(git diff:*)`, `Bash(make test)`.

Rules
* A pattern is matched on arguments, one by one, never on a line of text: nothing that an argument holds can
  look like another command. `git diff:*` and `git diff *` are these words and whatever follows them,
  `make test` is exactly that, `ls-files*` any word that begins so.
* A star stands for what it seems to: `scripts/*` leads to nothing outside of that folder by `..`, and where a
  name is left open, before or in the middle of other words, no option can take its place.
* There is no shell. A pattern that needs one is refused, and so is a call with the signs of one among its
  arguments: whoever wrote either meant something that would not happen.
* Each list of a role must let a command through: one that does a stage for another has both their lists.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase

_SHELL = re.compile(r"[|&;<>`$\n]")
OPERATORS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "<<", "2>", "2>&1", "&>", "|&"})
ANYTHING = "*"


def read_pattern(text: str) -> tuple[str, ...] | str:
    """The words of a pattern, `*` at the end for whatever follows; or what is wrong with it.

    >>> read_pattern("git diff:*"), read_pattern("make test"), read_pattern("git log | head")
    (('git', 'diff', '*'), ('make', 'test'), 'it needs a shell, and there is none here')
    """
    if _SHELL.search(text):
        return "it needs a shell, and there is none here"
    written = text.removesuffix(":*") + " *" if text.endswith(":*") else text
    try:
        words = shlex.split(written)
    except ValueError as error:
        return f"it cannot be split into arguments: {error}"
    if not words or (words[0] == ANYTHING and len(words) > 1):
        return "it names no program"
    if words[-1] != ANYTHING and words[-1].endswith(ANYTHING):
        words.append(ANYTHING)  # `ls-files*` is followed by whatever
    return tuple(words)


def allows(pattern: Sequence[str], argv: Sequence[str]) -> bool:
    """Whether a command is one of those that a pattern stands for.

    >>> allows(("git", "log", "*"), ["git", "log", "--stat"]), allows(("git", "log"), ["git", "log", "-1"])
    (True, False)
    """
    reached = {0}
    """How many of the arguments the words so far may stand for."""
    for number, word in enumerate(pattern):
        if word != ANYTHING:
            reached = {at + 1 for at in reached if at < len(argv) and _fits(word, argv[at])}
        elif number == len(pattern) - 1:
            return bool(reached)
        else:
            begins = [at for at in reached if at < len(argv) and not argv[at].startswith("-")]
            reached = set(range(min(begins) + 1, len(argv) + 1)) if begins else set()
    return len(argv) in reached


def why_not(lists: Sequence[Sequence[str]], argv: Sequence[str]) -> str:
    """Why a role may not run a command; empty when every list of it lets the command through."""
    if not lists:
        return ""
    for word in argv:
        if word in OPERATORS:
            return f'there is no shell, so "{word}" is no sign but an argument; run one program at a time'
    for listed in lists:
        if not any(allows(tuple(shlex.split(one)), argv) for one in listed):
            return f"this role may only run: {'; '.join(listed)}"
    return ""


def _fits(word: str, argument: str) -> bool:
    """Only the star is a sign here: `?` and `[` mean themselves."""
    if ANYTHING not in word:
        return argument == word
    if word.startswith(ANYTHING) and argument.startswith("-"):
        return False
    if ".." in argument.split("/") and ".." not in word.split("/"):
        return False
    return fnmatchcase(argument, re.sub(r"([\[?])", r"[\1]", word))
