"""What a recipe is recovered from, and what comes of it: plain data, before and after.

A delegation is one child of an open run as its log tells it. Order is all that is used of time: `asked` and
`ended` are numbers of events, so what ended before something else was asked for has the smaller one.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.recipe.builder import Recipe


class Delegation(Struct, frozen=True, kw_only=True):
    """One child: what it was told, by whose words, and what it gave."""

    name: str
    chosen: bool
    """Whether somebody chose the name; otherwise the prompt says what to call the step."""
    role: str
    prompt: str
    output: JSON
    status: str
    """How it stands: `completed`, or what became of it otherwise."""
    failure: str = ""
    """The class of its failure."""
    asked: int
    ended: int
    """0: it has not."""
    continues: str = ""
    """The delegation whose conversation went on in this one."""
    settings: dict[str, JSON]
    """Further keys of its step, as a recipe writes them: sets, schema, workspace, deadline."""
    leaves_files: bool
    """Whether it may have changed files: what came later may have seen them."""
    failed_as: tuple[str, ...] = ()
    """Classes of the failures before it succeeded: it was tried again."""
    tools: tuple[str, ...] = ()
    """Tools that it used."""


class Omitted(Struct, frozen=True):
    """A child that is no step of the recipe, and why."""

    name: str
    why: str


class StandsFor(Struct, frozen=True):
    """A hole of a prompt that will not give the words it was found in: which, and these words."""

    step: str
    hole: str
    said: str


class Emission(Struct, frozen=True, kw_only=True):
    """A recipe, and what of it was found and what is guessed."""

    recipe: Recipe | None
    """None where nothing completed."""
    made_of: dict[str, list[str]]
    """The children that each step stands for, in the order of its items."""
    recognised: list[str]
    guessed: list[str]
    stands_for: list[StandsFor]
    left_out: list[Omitted]
