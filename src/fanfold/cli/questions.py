"""Questions at the terminal: permission of runs and of actions of agents, and approvals of a followed run.

A question that is answered elsewhere in the meantime is withdrawn.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress

from fanfold.agents.permissions import Action, Answer
from fanfold.api.approvals import OpenApproval, open_approvals
from fanfold.api.run_handle import RunHandle
from fanfold.cli.output import Progress, notify, plain
from fanfold.engine.requests import AnswerRequest, this_person
from fanfold.errors import AuthorError
from fanfold.kernel.decide import is_waiting
from fanfold.kernel.state import RUNNING
from fanfold.language.consent import ConsentRequest, broken, pages_of
from fanfold.language.json_text import fitting
from fanfold.language.terminal import one_line

MAX_TYPED_CHARS = 60
_YES = frozenset({"a", "approve", "y", "yes"})
_NO = frozenset({"r", "reject", "n", "no"})
_AGAIN = frozenset({"m", "more"})
_LATER = frozenset({"l", "later", "q", "quit"})


def confirm(question: str) -> bool:
    """Ask a yes-or-no question; any answer except yes means no."""
    notify(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class PagedQuestion:
    """A permission question, page by page. It can be granted only on the last page."""

    def __init__(
        self, request: ConsentRequest, prompt: str, always: Mapping[str, Answer] | None = None
    ) -> None:
        """`always` contains further answers by their letter."""
        columns, rows = shutil.get_terminal_size()
        self._pages = pages_of(request, columns, rows - 2 - prompt.count("\n"))
        self._prompt = prompt
        self._always = always or {}
        self._at = 0
        self._show()

    def hear(self, typed: str) -> Answer | None:
        """Return whether the user agreed; None while there are more pages."""
        word = typed.strip().lower()
        if self._at == len(self._pages) - 1:
            if len(self._pages) == 1 or word not in _AGAIN:
                return self._always.get(word) or word in ("y", "yes")
            self._at = -1
        elif not typed or word in _NO or word in _LATER:
            return False
        self._at += 1
        self._show()
        return None

    def _show(self) -> None:
        number, count = self._at + 1, len(self._pages)
        notify("".join(f"{row}\n" for row in self._pages[self._at]))
        if number < count:
            notify(f"(page {number} of {count}: Enter shows the next one, n refuses) ")
        else:
            notify(f"{self._prompt}{'' if count == 1 else ' (m shows it again)'} [y/N] ")


def ask_permission(request: ConsentRequest) -> bool:
    """Ask before the run starts; any answer except yes means no."""
    question = PagedQuestion(request, "Run it?")
    while (answer := question.hear(sys.stdin.readline())) is None:
        pass
    return bool(answer)


async def ask_about(action: Action) -> Answer:
    """Ask about an action of an agent while the run continues; any answer except yes means no."""
    with suppress(termios.error):  # the terminal is closed
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # discard text typed before the question
    notify("\n")
    always: dict[str, Answer] = {}
    prompt = "  allow it?"
    if action.request is None:  # one effect of a common kind
        always = {"a": "run", "p": "project"} if action.is_command else {"a": "run"}
        more = "  p: always for this command in this project" if action.is_command else ""
        prompt = f"  a: always in this run{more}\n{prompt}"
    question = PagedQuestion(action.question, prompt, always)
    loop = asyncio.get_running_loop()
    answer: Answer | None = None
    while answer is None:
        typed: asyncio.Future[str] = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), pass_typed_line, typed)
        try:
            answer = question.hear(await typed)
        finally:
            loop.remove_reader(sys.stdin.fileno())
    return answer


class Questions:
    """Asks the user at this terminal, one question at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._asked: OpenApproval | None = None
        self._pages: list[list[str]] = []
        """The pages of the open question that are not shown yet."""

    permits = staticmethod(ask_permission)
    """Ask whether the run may have the effects in the request."""

    def look(self, handle: RunHandle) -> None:
        """Called after every decision: ask a new approval, or withdraw one that was answered elsewhere."""
        tree = handle.tree
        waiting = tree.root.status == RUNNING and not tree.state.pausing and is_waiting(tree.state)
        still_open = open_approvals(tree) if waiting else []
        if self._asked is not None and self._asked not in still_open:
            self._withdraw()
        if self._asked is None and still_open:
            approval = still_open[0]
            self._asked = approval
            self._progress.suspend()
            # Lines of the question are indented, so that none can imitate a question of Fanfold.
            columns, rows = shutil.get_terminal_size()
            lines = broken(f"{approval.path}: {approval.question}", columns, "", "  │ ")
            if approval.show:
                lines += broken(approval.show, columns, "  │ ", "  │ ")
            room = max(1, rows - 2)
            self._pages = [lines[at : at + room] for at in range(0, len(lines), room)]
            notify("\n")
            self._show_page(approval)
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._typed, handle)

    def _show_page(self, approval: OpenApproval) -> None:
        notify("".join(f"{row}\n" for row in self._pages.pop(0)))
        more = f"(Enter shows the next of {len(self._pages)} more pages, later leaves it) "
        notify(more if self._pages else _prompt(approval))

    def _typed(self, handle: RunHandle) -> None:
        typed = _typed_line()
        approval = self._asked
        assert approval is not None
        reply = typed.strip()
        if self._pages and typed and reply.lower() not in _LATER:
            self._show_page(approval)  # an answer is valid only after all pages
            return
        later = (
            reply.lower() == "later"
            if approval.kind == "question"
            else reply.partition(" ")[0].lower() in _LATER
        )
        if not typed or later:
            self._withdraw()
            handle.leave_when_waiting()
            return
        given = _answer(approval, reply)
        if given is None and reply:
            notify(f"  {one_line(reply, MAX_TYPED_CHARS)} is none of the answers\n")
        if given is not None:
            try:
                handle.check(given)
            except AuthorError as error:
                notify(f"  {plain(error.message)}{'; ' if error.hint else ''}{plain(error.hint)}\n")
                given = None
        if given is None:
            notify(_prompt(approval))
            return
        self._withdraw()
        handle.post(given)

    async def allow(self, action: Action) -> Answer:
        """Ask whether an agent may do an action, and for how long the answer applies."""
        self._progress.suspend()
        try:
            return await ask_about(action)
        finally:
            self._progress.resume()

    def _withdraw(self) -> None:
        self._asked = None
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._progress.resume()


def pass_typed_line(typed: asyncio.Future[str]) -> None:
    """Called by the reader of the terminal: pass the typed text to the waiting question."""
    if not typed.done():
        typed.set_result(_typed_line())


def _typed_line() -> str:
    """Return the typed text; empty at the end of the input or after the terminal closed."""
    try:
        # A terminal delivers whole lines, so this does not block.
        return os.read(sys.stdin.fileno(), 65_536).decode("utf-8", "replace")
    except OSError:
        return ""


def _answer(approval: OpenApproval, reply: str) -> AnswerRequest | None:
    """Return the answer in the typed text, or None if it is not an answer."""
    first, _, comment = reply.partition(" ")
    if approval.kind == "question":
        numbered = _decision(approval, first) if approval.choices and not comment else None
        text = numbered or reply
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
