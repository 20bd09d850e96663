"""Who does the work of a run that is made of another one: the agents it had there, or chosen ones."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.runs.starting.options import Options


class ChosenAgents(Struct, frozen=True, kw_only=True):
    """Who works instead of the agents that the other run had; None leaves it as it was."""

    model: str | None = None
    backend: str | None = None
    script: str | None = None
    """Text of a script: its agents answer instead of models."""
    script_file: str = ""

    def __bool__(self) -> bool:
        return self.model is not None or self.backend is not None or self.script is not None


SAME_AGENTS = ChosenAgents()


def options_of(source: RunTree, chosen: ChosenAgents) -> Options:
    """The limits and permission of a run, and its agents as far as no others were chosen."""
    settings, frozen = source.state.settings, source.frozen()
    options = Options(
        max_concurrency=settings.max_concurrency,
        max_agents=settings.max_agents,
        budget_tokens=settings.budget_tokens,
        budget_micro_usd=settings.budget_micro_usd,
        timeout_ms=settings.timeout_ms,
        permission=frozen.permission,
        backend=frozen.backend,
        model=frozen.model,
        script=frozen.script,
        script_file=frozen.script_file,
    )
    return with_agents(options, chosen)


def with_agents(options: Options, chosen: ChosenAgents) -> Options:
    """The same with other agents. A script that was chosen answers for all, as it does for a new run; whoever
    chose a model or a back end wants that to answer, and not the script of the other run.
    """
    if not chosen:
        return options
    if chosen.script is not None or options.script is not None:
        return replace(
            options,
            backend=chosen.backend,
            model=chosen.model,
            script=chosen.script,
            script_file=chosen.script_file,
        )
    return replace(options, backend=chosen.backend or options.backend, model=chosen.model or options.model)
