"""A role as one session has it: what the step, a stage or the role around it leaves of it.

Rules
* A role travels whole: what is not narrowed here is what its file says.
* Powers are only ever taken away: a tool is left that both lists let through, a server of which a tool is
  left, the network that both have; whoever may only read makes both read.
* A model, an effort and the turns are no powers: whoever is nearest to the work says them.
"""

from __future__ import annotations

from msgspec import structs

from fanfold.agents.role import Role

READ_ONLY = "read-only"


def for_step(
    role: Role,
    *,
    model: str | None = None,
    reasoning_effort: str | None = None,
    max_turns: int | None = None,
    tools: tuple[str, ...] | None = None,
    read_only: bool = False,
) -> Role:
    """The role with what its step says; None leaves it to the role, except the model, which is decided."""
    left = role.tools
    if tools is not None:
        from fanfold.agents.toolbox.names import narrowed  # few steps name any

        left = narrowed(role.tools, tools, role.mcp_servers)
    return structs.replace(
        role,
        model=model,
        reasoning_effort=reasoning_effort or role.reasoning_effort,
        max_turns=max_turns or role.max_turns,
        tools=left,
        sandbox_mode=READ_ONLY if read_only else role.sandbox_mode,
    )


def for_stage(
    role: Role,
    *,
    model: str | None,
    instructions: str | None,
    max_turns: int | None,
    tools: tuple[str, ...] | None,
) -> Role:
    """The role of a session in a model stage of its pipeline, which never has more turns than the session."""
    from fanfold.agents.toolbox.names import narrowed

    return structs.replace(
        role,
        pipeline=(),
        model=model,
        instructions=role.instructions if instructions is None else instructions,
        max_turns=_fewer(role.max_turns, max_turns),
        tools=narrowed(role.tools, tools, role.mcp_servers),
    )


def inside(role: Role, around: Role, *, model: str | None) -> Role:
    """A role that does a stage for another one: no more of the machine than both may have."""
    from fanfold.agents.toolbox.names import is_wanted, narrowed

    tools = narrowed(around.tools, role.tools, role.mcp_servers)
    servers = {name: settings for name, settings in role.mcp_servers.items() if is_wanted(name, tools)}
    return structs.replace(
        role,
        model=model,
        max_turns=_fewer(around.max_turns, role.max_turns),
        tools=tools,
        sandbox_mode=READ_ONLY if around.read_only else role.sandbox_mode,
        allowed_commands=(*around.allowed_commands, *role.allowed_commands),
        guards=tuple(dict.fromkeys((*around.guards, *role.guards))),
        asks=around.asks and role.asks,
        network=around.network and role.network,
        offline=around.offline or role.offline,
        mcp_servers=servers,
    )


def _fewer(allowed: int | None, wanted: int | None) -> int | None:
    return min((turns for turns in (allowed, wanted) if turns is not None), default=None)
