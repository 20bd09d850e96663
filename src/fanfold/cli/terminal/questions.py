"""Questions at the terminal: may this run, may an agent do that, and the approvals of a run that is watched.

While a question stands here, anybody may answer it from elsewhere; then it is withdrawn.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress

from fanfold.agents.permissions import Action
from fanfold.cli.terminal.output import plain, tell
from fanfold.cli.terminal.progress import Progress
from fanfold.errors import AuthorError
from fanfold.kernel.decide import is_waiting
from fanfold.kernel.lifecycle import RUNNING
from fanfold.kernel.plan import Plan
from fanfold.runtime.hosting.requests import AnswerRequest, this_person
from fanfold.runtime.operations.runs.handle import RunHandle
from fanfold.runtime.views.approvals import OpenApproval, open_approvals
from fanfold.text.json_value import fitting
from fanfold.text.terminal import cells, one_line, visible

MAX_TYPED_CHARS = 60
_YES = frozenset({"a", "approve", "y", "yes"})
_NO = frozenset({"r", "reject", "n", "no"})
_WANTS = {"command": "wants to run", "write": "wants to write", "network": "wants to fetch"}
_AGAIN = frozenset({"m", "more"})
_LATER = frozenset({"l", "later", "q", "quit"})


def confirm(question: str) -> bool:
    """A yes-or-no question; anything but yes is no."""
    tell(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def in_pages(lines: Sequence[str], columns: int, rows: int) -> list[list[str]]:
    """The lines as a terminal breaks them, in as many as it shows at once with a question below.

    >>> in_pages(["abcdef", "gh"], 4, 4)
    [['abcd', 'ef'], ['gh']]
    """
    broken = [part for line in lines for part in _broken(line, columns)]
    room = max(1, rows - 2)
    return [broken[at : at + room] for at in range(0, len(broken), room)] or [[]]


def _broken(line: str, columns: int) -> Iterator[str]:
    part, used = "", 0
    for char in line:
        wide = cells(char)
        if used + wide > columns and part:
            yield part
            part, used = "", 0
        part, used = part + char, used + wide
    yield part


def _show_pages(pages: Sequence[Sequence[str]]) -> None:
    for number, page in enumerate(pages, start=1):
        tell("".join(f"{one}\n" for one in page))
        if number < len(pages):
            tell(f"(page {number} of {len(pages)}; Enter goes on, q leaves) ")
            if sys.stdin.readline().strip().lower() in _LATER:
                return


class Questions:
    """Asks the person at this terminal, one question at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._asked: OpenApproval | None = None

    def may_run(self, plan: Plan, lines: Sequence[str]) -> bool:
        """Ask once whether the recipe may do what it declares."""
        shown = [f"  {visible(one)}" for one in lines]  # all of them: what is not shown is not agreed to
        tell(f"{plan.name} asks for permission:\n" + "".join(f"{one}\n" for one in shown))
        pages = in_pages(shown, *shutil.get_terminal_size())
        if len(pages) == 1:
            return confirm("Run it?")
        while True:
            # The first of them have scrolled away, perhaps further than the terminal remembers.
            tell(f"Run it ({len(lines)} things; m shows them page by page)? [y/N] ")
            said = sys.stdin.readline().strip().lower()
            if said not in _AGAIN:
                return said in ("y", "yes")
            _show_pages(pages)

    def look(self, handle: RunHandle) -> None:
        """After every decision: is there an approval to ask for, or to withdraw?"""
        tree = handle.tree
        waiting = tree.root.status == RUNNING and not tree.state.pausing and is_waiting(tree.state)
        still_open = open_approvals(tree) if waiting else []
        if self._asked is not None and self._asked not in still_open:
            self._withdraw()
        if self._asked is None and still_open:
            self._ask(handle, still_open[0])

    def _ask(self, handle: RunHandle, approval: OpenApproval) -> None:
        self._asked = approval
        self._progress.suspend()
        # Lines of the question are set off, so that none of them can pass for a question of ours.
        question = plain(approval.question).replace("\n", "\n  │ ")
        tell(f"\n{approval.path}: {question}\n")
        if approval.show:
            tell("".join(f"  │ {one}\n" for one in plain(approval.show).splitlines()))
        tell(_prompt(approval))
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._typed, handle)

    def _typed(self, handle: RunHandle) -> None:
        typed = _typed_line()
        approval = self._asked
        assert approval is not None
        said = typed.strip()
        later = (
            said.lower() == "later"
            if approval.kind == "question"
            else said.partition(" ")[0].lower() in _LATER
        )
        if not typed or later:
            self._withdraw()
            handle.leave_when_waiting()
            return
        given = _answer(approval, said)
        if given is None and said:
            tell(f"  {one_line(said, MAX_TYPED_CHARS)} is none of the answers\n")
        if given is not None:
            try:
                handle.check(given)
            except AuthorError as error:
                tell(f"  {plain(error.message)}{'; ' if error.hint else ''}{plain(error.hint)}\n")
                given = None
        if given is None:
            tell(_prompt(approval))
            return
        self._withdraw()
        handle.post(given)

    async def allow(self, action: Action) -> bool:
        """Whether an agent may do what it chose to do. Asked each time; anything but yes is no."""
        self._progress.suspend()
        with suppress(termios.error):  # the terminal is gone, and answers nothing
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before is no answer
        who = plain(action.step) or "an agent"
        tell(f"\n{who} {_WANTS.get(action.kind, 'wants to')}: {visible(action.what)}\n  allow it? [y/N] ")
        loop = asyncio.get_running_loop()
        typed: asyncio.Future[str] = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), hand_over_typed, typed)
        try:
            return (await typed).strip().lower() in ("y", "yes")
        finally:
            loop.remove_reader(sys.stdin.fileno())
            self._progress.resume()

    def _withdraw(self) -> None:
        self._asked = None
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._progress.resume()


def hand_over_typed(typed: asyncio.Future[str]) -> None:
    """For a reader of the terminal: what was typed, to whoever waits for it."""
    if not typed.done():
        typed.set_result(_typed_line())


def _typed_line() -> str:
    """What was typed; nothing at the end of it, and when the terminal is gone."""
    try:
        # The terminal hands over whole lines, so this does not wait.
        return os.read(sys.stdin.fileno(), 65_536).decode("utf-8", "replace")
    except OSError:
        return ""


def _answer(approval: OpenApproval, said: str) -> AnswerRequest | None:
    """What was typed, as an answer; None when it is none."""
    first, _, comment = said.partition(" ")
    if approval.kind == "question":
        numbered = _decision(approval, first) if approval.choices and not comment else None
        text = numbered or said
        return AnswerRequest(approval.path, "", this_person(), text=text) if text else None
    decision = _decision(approval, first)
    if decision is None:
        return None
    return AnswerRequest(approval.path, decision, this_person(), comment.strip() or None)


def _prompt(approval: OpenApproval) -> str:
    if approval.choices:
        listed = "  ".join(f"{i}) {plain(choice)}" for i, choice in enumerate(approval.choices, 1))
        return f"  {listed}  (number, or later) > "
    if approval.kind == "question":
        wanted = "your answer" if approval.schema is None else one_line(fitting(approval.schema))
        return f"  {wanted}, or later > "
    return "  approve, reject or later, with a comment if you like > "


def _decision(approval: OpenApproval, word: str) -> str | None:
    if approval.choices:
        if word.isdecimal() and 1 <= int(word) <= len(approval.choices):
            return approval.choices[int(word) - 1]
        return word if word in approval.choices else None
    if word.lower() in _YES:
        return "approve"
    return "reject" if word.lower() in _NO else None
