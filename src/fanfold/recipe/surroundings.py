"""What a recipe is compiled against: the roles, back ends, handlers and other recipes that are known here.

They are passed in, because this package may not look for agents or functions itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from fanfold.errors import FanfoldError


class RoleFacts(Protocol):
    """As much of a role as a recipe can be wrong about."""

    @property
    def read_only(self) -> bool: ...
    @property
    def tools(self) -> tuple[str, ...] | None: ...
    @property
    def prompt_template(self) -> str | None: ...
    @property
    def backend(self) -> str | None: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def isolated(self) -> bool: ...


class Roles(Protocol):
    """The roles that steps may name."""

    @property
    def broken(self) -> Mapping[str, str]:
        """Why the file of a role that would be meant cannot be used, by the role's name."""
        ...

    def names(self) -> Sequence[str]: ...

    def versions(self, name: str) -> Sequence[str]: ...

    def find(self, name: str, version: str | None = None) -> RoleFacts | None:
        """The role of that name, and of that version: what holds for one says nothing about another."""
        ...


class Ceilings(Struct, frozen=True):
    """How far a recipe's limits may go; the user's configuration raises them."""

    concurrency: int = 16
    agents: int = 500

    @property
    def highs(self) -> dict[str, int]:
        """The largest value of each key that has such a limit, wherever a recipe says it."""
        return {"max_concurrency": self.concurrency, "max_agents": self.agents}


class FoundRecipe(Struct, frozen=True):
    """A recipe that was found: its bytes, and where they came from."""

    data: bytes
    file: str
    origin: str = "path"
    """`path`, `project`, `user` or `builtin`."""
    shadowed: tuple[str, ...] = ()
    """Files of the same name that come later in the order of places."""


class Recipes(Protocol):
    """Where sub-workflows come from; `library.Library` is the one people have."""

    def find(self, ref: str, relative_to: str | None = None) -> FoundRecipe:
        """The recipe meant by a reference; raises NotFoundError with a hint."""
        ...


class OwnCommand(Struct, frozen=True):
    """How a project is tested or linted, and the file that says so."""

    run: tuple[str, ...]
    file: str


class Surroundings(Struct, frozen=True):
    """Everything outside the file that decides whether the file is right."""

    roles: Roles
    is_handler: Callable[[str], bool]
    handler_names: Callable[[], Sequence[str]]
    library: Recipes
    ceilings: Ceilings = field(default_factory=Ceilings)
    backend_problem: Callable[[str, Sequence[str]], FanfoldError | None] = field(default=lambda *_: None)
    """Why the agent back end of that name cannot work for a role with that `command`; None when it can."""
    own_command: Callable[[str], OwnCommand | None] = field(default=lambda _: None)
    """The project's own command for a gate (`tests`, `lint`); None when nothing here says one."""
    is_tool: Callable[[str], bool] = field(default=lambda _: True)
    """Whether agents of ours have a tool of that name."""
    tool_names: Callable[[], Sequence[str]] = field(default=lambda: ())
