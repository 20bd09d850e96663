"""Deliver steps: what the run merged, as a commit on a branch of its own, pushed, as a pull request."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from fanfold.kernel.branch_names import check_branch_name
from fanfold.kernel.plan import Traits
from fanfold.recipe.checks.sets import read_patterns
from fanfold.recipe.language import syntaxes
from fanfold.recipe.language.keys import DELIVER, PULL_REQUEST
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.trees.tree import Scalar


class PullRequestWish(Struct, frozen=True, omit_defaults=True, gc=False):
    title: str
    body: str = ""
    base: str = ""
    draft: bool = False


class DeliverBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = syntaxes.DELIVER
    branch: str
    message: str
    push: bool = False
    pull_request: PullRequestWish | None = None

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="claims")


class DeliverGrammar(LeafGrammar[DeliverBody]):
    body = DeliverBody

    def read(self, step: Written) -> DeliverBody:
        node, notes, draft = step.entries.nodes.get("deliver"), step.notes, step.draft
        entries = read_entries(node, DELIVER, notes) if node is not None else None
        if entries is None:
            return DeliverBody("", "")
        if draft.narrowed:
            message = "a deliver step changes a repository, and what is around it only reads"
            notes.error("recipe.conflicting_keys", message, step.entries.keys["deliver"])
        patterns, templated = read_patterns(
            entries.scalars("paths"), draft, step.unit.references, writes=False
        )
        draft.facts.write_set = patterns
        draft.facts.templated_sets |= templated
        wanted, branch = entries.nodes.get("pull_request"), entries.nodes.get("branch")
        if wanted is not None and entries.has("push") and not entries.flag("push"):
            message = "a pull request needs its branch on the server, and `push: false` keeps it here"
            notes.error("recipe.conflicting_keys", message, entries.keys["push"], 'leave "push" out')
        if isinstance(branch, Scalar) and "{{" not in branch.text and (why := check_branch_name(branch.text)):
            notes.error("recipe.bad_value", why, branch)
        inner = read_entries(wanted, PULL_REQUEST, notes) if wanted is not None else None
        return DeliverBody(
            branch=_text(step, entries, "branch"),
            message=_text(step, entries, "message"),
            push=entries.flag("push"),
            pull_request=None if inner is None else _pull_request(step, inner),
        )


def _pull_request(step: Written, entries: Entries) -> PullRequestWish:
    title, body, base = (_text(step, entries, key) for key in ("title", "body", "base"))
    return PullRequestWish(title, body, base, entries.flag("draft"))


def _text(step: Written, entries: Entries, key: str) -> str:
    node = entries.nodes.get(key)
    return step.unit.references.template(node, step.place) if isinstance(node, Scalar) else ""
