"""Agent steps: a role is given a prompt."""

from __future__ import annotations

from typing import ClassVar, Literal

from fanfold.kernel.plan import Traits
from fanfold.recipe.types.body import Body


class AgentBody(Body, frozen=True, omit_defaults=True, gc=False):
    type: ClassVar[str] = "agent"
    agent: str = "default"
    """Role name, without its version."""
    agent_version: str | None = None
    prompt: str | None = None
    """None: the role's own prompt template is used with the step's `inputs`."""
    model: str | None = None
    reasoning_effort: str | None = None
    max_turns: int | None = None
    tools: tuple[str, ...] | None = None
    continue_from: str | None = None
    """The agent step whose conversation goes on here."""
    summaries: tuple[str, ...] = ()
    """Dependencies whose summary is handed over because the prompt does not place them itself."""
    purpose: Literal["work", "review", "critic", "fold"] = "work"

    @property
    def role(self) -> str:
        """The role as the step names it: with its version, if it asks for one."""
        return self.agent if self.agent_version is None else f"{self.agent}@{self.agent_version}"

    def traits(self) -> Traits:
        return Traits(role=self.agent, continues=self.continue_from)
