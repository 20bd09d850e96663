"""Options of a run for CI jobs: no progress, a report file, a Markdown summary, and variables for steps.

Rules
* Files are checked before the run starts: a paid run must not fail because of a wrong file name.
* The report and the summary are written for every outcome, also if the run is paused or waits.
* `--env-from` is a choice of the user: it allows variables for this call, as `environment.allow` does.
  A step still gets only what it names in `env_vars`, and the values are masked wherever output is stored.
  They are never recorded, so `resume` needs the option again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from fanfold import __version__
from fanfold.agents.providers import PRESETS, PROVIDERS
from fanfold.api.report import executive_report, reported_document
from fanfold.cli.command import option, read_text_file, write_file
from fanfold.cli.output import notify, plain, to_json
from fanfold.engine.config import Config
from fanfold.errors import AuthorError

if TYPE_CHECKING:
    from fanfold.api.project import Project
    from fanfold.engine.run_tree import RunTree

F = TypeVar("F", bound=Callable[..., Any])

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
FORMATS = (".html", ".md", ".json")
_NAME = r"(?a)[A-Za-z_]\w*"
_REFUSED = r"FANFOLD_\w*|AGENT_\w*|LD_\w*|PYTHON\w*|PATH|HOME|BASH_ENV|ENV|IFS|SHELLOPTS|BASHOPTS|OTEL_\w*"
"""Variables that change Fanfold itself or the start of programs."""
_REDIRECTS = r"(?i)\w+_proxy|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
"""Variables that would send requests of Fanfold, and so its keys, to another address."""


def ci_options(function: F) -> F:
    """Declare the options of a command that drives a run to its end."""
    for declare in (
        option(
            "--env-from",
            multiple=True,
            metavar="NAME|FILE",
            help="Allow steps a variable, or a file of NAME=VALUE lines.",
        ),
        option(
            "--summary",
            is_flag=False,
            flag_value="",
            metavar="[FILE]",
            help="Write Markdown to FILE, $GITHUB_STEP_SUMMARY or stderr.",
        ),
        option("--report", metavar="FILE", help="Write a report at the end: .html, .md or .json."),
        option("--quiet", "-q", is_flag=True, help="Print only the result and errors."),
    ):
        function = declare(function)
    return function


class OutcomeOptions(Struct, frozen=True):
    """The output of a run in addition to its result."""

    quiet: bool = False
    report: str | None = None
    summary: str | None = None
    """Empty means the file of the CI server, or else stderr."""

    @classmethod
    def taken_from(cls, given: dict[str, Any], project: Path) -> OutcomeOptions:
        """Remove the values of `ci_options` from the options of a command, check them, and set variables."""
        options = cls(given.pop("quiet"), given.pop("report"), given.pop("summary"))
        if options.report is not None and Path(options.report).suffix not in FORMATS:
            message = f"--report {options.report} has no known format"
            raise AuthorError("usage.bad_value", message, hint=f"end the name with {', '.join(FORMATS)}")
        # Refuse file names that could not be written at the end.
        for flag, file in (("--report", options.report), ("--summary", options.summary)):
            folder = Path(file or "").parent
            if file and not folder.is_dir() and not (project / folder).is_dir():
                message = f"{flag} {file}: there is no folder {folder}"
                raise AuthorError("usage.bad_file", message, hint="create the folder first")
        add_variables(project, given.pop("env_from"))
        return options

    def write(self, project: Project, tree: RunTree) -> None:
        """Write the requested files from the current log."""
        if self.report is not None:
            write_file(project.folder, Path(self.report), _report(project, tree, self.report), "--report")
        if self.summary is None:
            return
        text = f"{executive_report(tree)}\n"
        if self.summary:
            write_file(project.folder, Path(self.summary), text, "--summary")
        elif target := os.environ.get(STEP_SUMMARY):
            try:  # other steps of the job write to the same file
                with open(target, "a", encoding="utf-8") as opened:
                    opened.write(text)
            except OSError as error:
                raise AuthorError("usage.bad_file", f"{STEP_SUMMARY} {target}: {error.strerror}") from None
        else:
            notify(plain(text))


def _report(project: Project, tree: RunTree, file: str) -> str:
    if file.endswith(".html"):
        from fanfold.api.archives import export_run

        return export_run(project, tree.root.id, __version__)
    return f"{executive_report(tree) if file.endswith('.md') else to_json(reported_document(tree))}\n"


def add_variables(project: Path, sources: Sequence[str]) -> None:
    """Allow variables for this process and the processes that continue its runs.

    A source that is the name of a variable means that variable; any other is a file of NAME=VALUE lines.
    """
    if not sources:
        return
    given: dict[str, str] = {}
    read: dict[str, str] = {}
    for source in sources:
        if re.fullmatch(_NAME, source):
            if not os.environ.get(source):
                message = f"--env-from {source}: the variable is not set"
                hint = f"export {source}=…, or for a file of that name: --env-from ./{source}"
                raise AuthorError("usage.bad_value", message, hint=hint)
            given[source] = os.environ[source]
        else:
            read |= _read(project, source)
    addresses = {one.address_variable for one in (*PROVIDERS, *PRESETS)}
    refused = next((name for name in read if name in addresses or re.fullmatch(_REDIRECTS, name)), None)
    given |= read
    refused = refused or next((name for name in given if re.fullmatch(_REFUSED, name)), None)
    if refused is not None:
        raise AuthorError("usage.bad_value", f"--env-from may not set {refused}", hint="use another name")
    os.environ.update(given)
    allowed = Config.read(project, os.environ).names("environment.allow")
    os.environ["FANFOLD_ENVIRONMENT_ALLOW"] = " ".join(sorted({*allowed, *given}))


def _read(project: Path, source: str) -> dict[str, str]:
    """Return the variables in a file, without blank lines and lines that start with #."""
    found: dict[str, str] = {}
    text = read_text_file(project, Path(source), "--env-from").decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not re.fullmatch(_NAME, name.strip()) or "\0" in value:
            message = f"--env-from {source}, line {number} is not NAME=VALUE"
            raise AuthorError("usage.bad_file", message)
        value = value.strip()
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
        found[name.strip()] = value[1:-1] if quoted else value
    return found
