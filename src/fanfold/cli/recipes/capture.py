"""`fanfold capture`: what was delegated, as the recipe that would do the same again."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import hand_over, paint, plain, tell
from fanfold.errors import EXIT_OK, EXIT_USAGE
from fanfold.runtime.operations.agents.capture import Captured, capture


@command("capture", summary="Recover a recipe from what was delegated")
@click.argument("run")
@click.argument("children", nargs=-1, metavar="[SUBAGENT…]")
@option("--name", metavar="N", help="Save it among the project's recipes under this name.")
@option("--replace", is_flag=True, help="Save it even if there is a recipe of that name.")
@option(
    "--request", metavar="TEXT", default="", help="What was asked for: its words become inputs of the recipe."
)
def capture_command(
    call: Invocation, run: str, children: tuple[str, ...], name: str | None, replace: bool, request: str
) -> int:
    """Show what was delegated in RUN as a recipe, with what was recognised and what is guessed.

    RUN is an open run, such as a chat or hand (fanfold ps); SUBAGENT limits it to some of its children.
    Outputs that stand in later prompts become references, prompts of one shape a step for each item of a
    list, words of the request inputs.
    """
    with call.open_project(to_read=name is None) as project:
        found = capture(
            project,
            run,
            children=children,
            name=name or "",
            request=request,
            save=name is not None,
            replace=replace,
        )
    wrong = any(one.severity == "error" for one in found.diagnostics)
    call.give(found, lambda: hand_over(found.recipe))
    if not call.as_json:
        tell(notes_text(found, call.colour))
    return EXIT_USAGE if wrong else EXIT_OK


def notes_text(found: Captured, colour: bool) -> str:
    """What was recognised, what is guessed, what was left out, and where it was saved."""
    left_out = [f"{one.name}: {one.why}" for one in found.left_out]
    problems = [f"{one.severity}[{one.code}]: {one.message}" for one in found.diagnostics]
    lines = []
    for heading, notes in (
        ("Recognised", found.recognised),
        ("Guessed, look at it", found.guessed),
        ("Left out", left_out),
        ("Problems", problems),
    ):
        if notes:
            lines += [paint(heading, "bold", colour), *(f"  {plain(note)}" for note in notes)]
    if found.file is not None:
        lines += [f"saved as {plain(found.file)}", f"fanfold run {found.name} runs it"]
    else:
        lines.append(f"fanfold capture {found.run_id} --name {found.name} saves it")
    return "".join(f"{line}\n" for line in lines)
