"""What a chat shows while something happens: words of the lead as they come, what it does, how others end.

Words of models come in pieces that may end anywhere. A line is made visible as a whole whenever it grows, and
only what is new of it is written: no sequence that is split between two pieces gets past.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.agents.entries import Calling, News, Retrying, TextDelta
from fanfold.cli.terminal.output import paint, plain, say, tell
from fanfold.kernel.events import Envelope
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.subagents import is_lead
from fanfold.runtime.views.runs.transitions import Transitions, step_at
from fanfold.text.json_value import as_text
from fanfold.text.terminal import one_line, visible

MAX_LINE_CHARS = 100_000


class Speech:
    """Writes to the terminal; `colour` for what stands beside the words of the lead."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._line = ""
        self._shown = ""
        self._spoke = False
        self._tree: RunTree | None = None
        self._transitions = Transitions(
            lambda run, path: step_at(self._tree, run, path) if self._tree is not None else None
        )

    def begin(self) -> None:
        """A turn begins: nothing was said in it yet."""
        self._spoke = False

    def hear(self, tree: RunTree, path: str, news: News) -> None:
        """What a session does right now; of subagents only how they end is told."""
        node = tree.root.nodes.get(path)
        if node is None or not is_lead(node):
            return
        if isinstance(news, TextDelta):
            self._add(news.delta)
        elif isinstance(news, Calling):
            about = f" {news.about}" if news.about else ""
            self._note(f"{news.tool}{about}")
        elif isinstance(news, Retrying):
            self._note(f"the provider is asked again in {news.wait_s:.0f} s ({news.kind})")

    def told(self, tree: RunTree, written: Sequence[Envelope]) -> None:
        """What was recorded: how subagents begin and end."""
        self._tree = tree
        for envelope in written:
            found = self._transitions.read(envelope)
            node = tree.root.nodes.get(found.path) if found is not None and found.path else None
            if found is not None and node is not None and not is_lead(node) and found.word != "added":
                self._note(f"{found.path} {found.text}")

    def answer(self, output: object) -> None:
        """The answer of a turn, unless its words were shown as they came."""
        if self._spoke:
            self._end_line()
        else:
            say(f"{plain(as_text(output))}\n")

    def _note(self, text: str) -> None:
        self._end_line()
        tell(paint(f"  · {one_line(text, 160)}", "dim", self._colour) + "\n")

    def _add(self, delta: str) -> None:
        self._spoke = self._spoke or bool(delta.strip())
        *ended, rest = (self._line + delta).split("\n")
        for line in ended:
            self._show(line)
            say("\n")
            self._line = self._shown = ""
        self._show(rest[-MAX_LINE_CHARS:])
        self._line = rest[-MAX_LINE_CHARS:]

    def _show(self, line: str) -> None:
        shown = visible(line, keep="\t")
        if shown.startswith(self._shown):
            say(shown[len(self._shown) :])
        else:  # a mark that belongs to the letter before it; the line is said again
            say(f"\n{shown}")
        self._shown = shown
        _flush()

    def _end_line(self) -> None:
        if self._line:
            say("\n")
        self._line = self._shown = ""


def _flush() -> None:
    import sys

    sys.stdout.flush()
