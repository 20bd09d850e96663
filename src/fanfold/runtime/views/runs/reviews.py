"""What reviewers said about each claim of a run's phases, as the report shows it: all of them."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.kernel.nodes import Run, Scope
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.reviews import ReviewedClaim, Vote
from fanfold.text.excerpts import shorten_line

MAX_CLAIMS = 100
CLAIM_CHARS = 120
REASON_CHARS = 160


def review_lines(tree: RunTree, run: Run) -> list[str]:
    """A table of claims for every reviewed round, with who said what; empty where nothing was reviewed."""
    found = [
        (node.path, review)
        for node in list(run.nodes.values())
        if isinstance(node, Scope) and (review := tree.values.review(node)) is not None
    ]
    if not found:
        return []
    lines = ["## Review", "", "| round | claim | fate | who said what |", "|---|---|---|---|"]
    rows = [(path, claim) for path, review in found for claim in review.claims]
    lines += [
        f"| {path} | {cell(claim.name)}: {cell(shorten_line(claim.text, CLAIM_CHARS))} | {claim.fate} "
        f"| {cell('; '.join(_said(claim)))} |"
        for path, claim in rows[:MAX_CLAIMS]
    ]
    if len(rows) > MAX_CLAIMS:
        lines.append(f"| … {len(rows) - MAX_CLAIMS} more | | | |")
    return [*lines, ""]


def _said(claim: ReviewedClaim) -> Iterator[str]:
    for vote in claim.votes:
        word = "holds" if vote.holds else "refuted"
        does = f"{word}, which does not count ({vote.void})" if vote.void else word
        name = vote.reviewer.rpartition("/")[2]
        yield f"{name} {does}: {shorten_line(vote.reason, REASON_CHARS)}{_places(vote)}"
    if not claim.votes:
        yield "nobody"


def _places(vote: Vote) -> str:
    places = [f"{one.get('file')}:{one.get('line')}" for one in vote.evidence if isinstance(one, dict)]
    return f" [{', '.join(places[:3])}]" if places else ""


def cell(text: str) -> str:
    """A text that may hold anything, as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
