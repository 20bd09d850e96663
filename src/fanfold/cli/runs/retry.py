"""`fanfold retry`: run what failed again, and keep what completed."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.runs.fork import again_options, carry_out, chosen_agents
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.runs.again.retry import Retried, plan_retry


@command("retry", summary="Run again what failed, reusing what completed")
@click.argument("run")
@again_options
def retry_command(
    call: Invocation, run: str, dry_run: bool, detach: bool, yes: bool, **agents: str | None
) -> int:
    """Make a new run out of RUN, which has ended, that does again what did not succeed: what failed, timed
    out, was cancelled, was skipped for it, or was taken back with `fanfold undo`, and what depends on it.

    Everything else is reused, with the inputs, limits, answers and agents of RUN. The recipe is read again:
    what it says now holds, what differs is shown, and a completed step that says something else runs again.
    Says first what it will do; on a terminal it asks. Files stay as they are. With --dry-run --json:
    {"source_run_id", "reuses", "runs_again", "keeps_failures", "agents", "last_time", "merged", "goes_on",
    "recipe": {"added", "removed", "changed", "tuned", "roles", "others"}, "asks"}.
    """
    with call.open_project() as project:
        source = find_run(project, run)
        wanted = Retried(agents=chosen_agents(project.folder, **agents))
        fork = plan_retry(project, source.tree, wanted)
        return carry_out(call, project, fork, "Retry?", yes=yes, dry_run=dry_run, detach=detach)
