"""`fanfold export` and `import`: a run as one file, and back."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import plain, tell
from fanfold.errors import AuthorError
from fanfold.trust.project_files import read_named, write_named


@command("export", summary="Write a run into one file that opens anywhere")
@click.argument("run")
@option("-o", "--output", "file", metavar="FILE", help="Default: RECIPE-RUN.html here; -: stdout.")
def export_command(call: Invocation, run: str, file: str | None) -> None:
    """Write RUN, with the runs below it, into one HTML file that needs no network and no Fanfold.

    It shows the graph, the answer and every step, and carries everything that was recorded, so that
    `fanfold import` can take it in and fork it. Secrets of this environment are left out.
    """
    from fanfold import __version__
    from fanfold.runtime.operations.archives.transfer import Exported, export_run

    with call.open_project(to_read=True) as project:
        head = project.resolve(run)
        page = export_run(project, head.root_run_id, __version__)
        top = project.folder
    if file == "-":
        sys.stdout.write(page)
        return
    target = Path(file or f"{head.recipe}-{head.root_run_id}.html")
    try:
        write_named(top, target, page.encode())
    except OSError as error:
        raise AuthorError("usage.bad_file", f"{target} cannot be written: {error.strerror}") from None
    done = Exported(head.root_run_id, str(target), len(page.encode()))
    call.give(done, lambda: f"{plain(done.file)}\n")


@command("import", summary="Take a run from a file that export wrote")
@click.argument("file")
def import_command(call: Invocation, file: str) -> None:
    """Take the run in FILE into this project, to be looked at and forked.

    What the file says is checked as if this Fanfold had recorded it; anything else is refused whole. Nothing
    of it runs. What goes on from it, a fork or the run itself, asks first, whatever it was permitted before.
    """
    from fanfold.runtime.operations.archives.transfer import MAX_BYTES, import_run

    with call.open_project() as project:
        try:
            page = read_named(project.folder, Path(file), MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a file name"
            raise AuthorError("usage.bad_file", f"{file} cannot be read: {reason}") from None
        done = import_run(project, page)
    call.give(done, lambda: f"{plain(done.run_id)}\n")
    if not call.as_json:
        tell(f"{plain(done.recipe)}, {done.status}; look at it: fanfold inspect {shlex.quote(done.run_id)}\n")
