"""What a recipe is compiled against: the roles, handlers and other recipes that are known here.

They are passed in, because this package may not look for agents or functions itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field


class RoleFacts(Struct, frozen=True):
    """As much of a role as a recipe can be wrong about."""

    read_only: bool
    versions: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    prompt_template: str | None = None
    by_version: Mapping[str, RoleFacts] = {}
    """The facts of each version: what holds for one says nothing about another."""


class Ceilings(Struct, frozen=True):
    """How far a recipe's limits may go; project configuration raises them."""

    concurrency: int = 16
    agents: int = 500


class Found(Struct, frozen=True):
    """A recipe that was found: its bytes, and where they came from."""

    data: bytes
    file: str
    origin: str = "path"
    """`path`, `project`, `user` or `builtin`."""
    shadowed: tuple[str, ...] = ()
    """Files of the same name that come later in the order of places."""


class Recipes(Protocol):
    """Where sub-workflows come from; `library.Library` is the one people have."""

    def find(self, ref: str, relative_to: str | None = None) -> Found:
        """The recipe meant by a reference; raises NotFoundError with a hint."""
        ...


class Surroundings(Struct, frozen=True):
    """Everything outside the file that decides whether the file is right."""

    roles: Mapping[str, RoleFacts]
    is_handler: Callable[[str], bool]
    handler_names: Callable[[], Sequence[str]]
    library: Recipes
    ceilings: Ceilings = field(default_factory=Ceilings)
    broken_roles: Mapping[str, str] = {}
    """Why the file of a role that would be meant cannot be used, by the name of the file."""
