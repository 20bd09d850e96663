"""The file itself: a page that opens anywhere, offline, without a script, with the run's data inside it.

Everything that a recipe, a model or a program wrote is text in it. The data is a block that no browser runs;
what could end that block is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.nodes import LEAF, Node
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.archives.contents import RunContents
from fanfold.runtime.views.graph.run_boxes import draw_run
from fanfold.runtime.views.graph.svg import svg
from fanfold.runtime.views.runs.documents import artifacts_below, indented, run_error, step_document
from fanfold.runtime.views.times import duration, when
from fanfold.text.excerpts import shorten

MAX_STEPS = 2_000
MAX_SHOWN_CHARS = 20_000
_OPENING = '<script type="application/json" id="fanfold-run">'
_CLOSING = "</script>"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#5b6577;--line:#d5dbe5;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e7ebf2;--dim:#9aa6b8;--line:#39424f;--paper:#12161d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
margin:0 auto;max-width:70rem;padding:2rem 1rem}h1{font-size:1.5rem;margin:0}
h2{font-size:1.1rem;margin:2rem 0 .5rem}.dim{color:var(--dim)}.graph{overflow-x:auto}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);border-radius:6px;
padding:.75rem;margin:.5rem 0;font-size:13px}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
"""


def make_page(tree: RunTree, contents: RunContents) -> str:
    """A run as one HTML file."""
    data = msgspec.json.encode(contents).decode().replace("<", "\\u003c")
    return f"{_Shown(tree).page()}\n{_OPENING}{data}{_CLOSING}\n</body></html>\n"


def find_data(page: bytes) -> bytes:
    """The data of a page that `make_page` made; nothing else of it is looked at."""
    start = page.rfind(_OPENING.encode())
    end = page.find(_CLOSING.encode(), start)
    if start < 0 or end < 0:
        raise AuthorError(
            "archive.not_one",
            "this file holds no run",
            hint="fanfold export last makes one of the latest run",
        )
    return page[start + len(_OPENING) : end]


class _Shown:
    """What a reader sees of a run. Secrets of this process are taken out before anything is escaped."""

    def __init__(self, tree: RunTree) -> None:
        self._tree = tree
        self._clean = tree.store.clean

    def page(self) -> str:
        root = self._tree.root
        title = f"{root.plan.name}@{root.plan.version}"
        picture = self._cleaned(svg(root.plan, draw_run(self._tree)))
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="referrer" content="no-referrer">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{self._text(title)} · {escape(root.id)}</title><style>{_STYLE}</style></head><body>",
            *self._head(title),
            f'<div class="graph">{picture}</div>',
            *self._answer(),
            *self._steps(),
            *self._artifacts(),
        ]
        return "\n".join(parts)

    def _cleaned(self, value: JSON) -> JSON:
        return msgspec.json.decode(self._clean(msgspec.json.encode(value)))

    def _text(self, value: JSON) -> str:
        """Any value as text that is no markup."""
        return escape(shorten(indented(self._cleaned(value)), MAX_SHOWN_CHARS))

    def _head(self, title: str) -> Iterator[str]:
        tree, root = self._tree, self._tree.root
        usage, agents = tree.spent(root)
        price = "price unknown" if usage.micro_usd is None else f"${usage.micro_usd / 1_000_000:.4f}"
        facts = [
            run_status(tree.state, root),
            f"run {root.id}",
            when(tree.memory.created_at) or "",
            f"{agents} agents",
            f"{usage.tokens:,} tokens",
            price,
        ]
        yield f"<h1>{self._text(title)}</h1><p>{self._text(root.plan.description)}</p>"
        yield f'<p class="dim">{escape(" · ".join(fact for fact in facts if fact))}</p>'
        error = run_error(tree, root)
        if error is not None:
            yield f"<pre>{self._text(error.message)}</pre>"

    def _answer(self) -> Iterator[str]:
        tree = self._tree
        inputs = tree.values.inputs(tree.root)
        if inputs:
            yield f"<h2>Asked</h2><pre>{self._text(inputs)}</pre>"
        if tree.root.output is not None:
            yield f"<h2>Answer</h2><pre>{self._text(tree.blobs.get(tree.root.output))}</pre>"

    def _steps(self) -> Iterator[str]:
        runs = self._tree.state.runs.values()
        nodes = [node for run in runs for node in run.nodes.values() if node.kind == LEAF]
        heads = "".join(f"<th>{word}</th>" for word in ("step", "who", "status", "took", "tokens"))
        yield f"<h2>Steps</h2><table><tr>{heads}</tr>"
        for node in nodes[:MAX_STEPS]:
            yield self._step(node)
        yield "</table>"
        if len(nodes) > MAX_STEPS:
            yield f'<p class="dim">and {len(nodes) - MAX_STEPS} more</p>'

    def _artifacts(self) -> Iterator[str]:
        """Which files steps left beside the project; they are not in here, their digests are."""
        found = list(artifacts_below(self._tree, self._tree.root))
        if not found:
            return
        heads = "".join(f"<th>{word}</th>" for word in ("file", "step", "bytes", "sha256"))
        yield f"<h2>Artifacts</h2><table><tr>{heads}</tr>"
        for one in found[:MAX_STEPS]:
            cells = f"<td>{self._text(one.path)}</td><td>{self._text(one.step)}</td>"
            yield f'<tr>{cells}<td class="n">{one.size:,}</td><td><code>{one.sha256[:16]}</code></td></tr>'
        yield "</table>"
        if len(found) > MAX_STEPS:
            yield f'<p class="dim">and {len(found) - MAX_STEPS} more</p>'

    def _step(self, node: Node) -> str:
        said = step_document(self._tree, node)
        took = duration(node.ended_at - node.started_at) if node.ended_at and node.started_at else ""
        tokens = "" if said.usage is None else f"{said.usage.input_tokens + said.usage.output_tokens:,}"
        about = (
            ("Task", self._tree.memory.tasks.get((node.run.id, node.path), "")),
            ("Output", said.output),
            ("Error", said.error.message if said.error is not None else None),
        )
        held = [(word, value) for word, value in about if value not in (None, "")]
        told = "".join(f"<b>{word}</b><pre>{self._text(value)}</pre>" for word, value in held)
        path = self._text(node.run.tree_path(node.path))
        name = f"<details><summary>{path}</summary>{told}</details>" if told else path
        cells = [name, self._text(node.step.traits.role or node.step.type), escape(said.status)]
        plain = "".join(f"<td>{cell}</td>" for cell in cells)
        return f'<tr>{plain}<td class="n">{took}</td><td class="n">{tokens}</td></tr>'
