"""Runs as resources: the report of each, the output of a step, what an agent was told, said and did."""

from __future__ import annotations

import shlex
from urllib.parse import quote, unquote

from mcp_types import Resource, ResourceTemplate

from fanfold.errors import NotFoundError
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.listing import list_heads
from fanfold.runtime.operations.history.runs import inspect_step
from fanfold.runtime.operations.history.transcripts import transcript
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs.documents import indented
from fanfold.runtime.views.runs.report import report_markdown
from fanfold.runtime.views.sessions.transcript_text import transcript_text
from fanfold.tools.run_reports import report_address

SCHEME = "fanfold://runs/"
MARKDOWN = "text/markdown"
MAX_LISTED = 50
MAX_CHARS = 1_000_000

TEMPLATES = (
    ResourceTemplate(
        name="report",
        uri_template="fanfold://runs/{run}/report",
        description="The report of a run: what was asked, the answer, who did what, what failed",
        mime_type=MARKDOWN,
    ),
    ResourceTemplate(
        name="output",
        uri_template="fanfold://runs/{run}/outputs/{+step}",
        description="The output of one step; of a very long one the beginning, and how to get the rest",
        mime_type="text/plain",
    ),
    ResourceTemplate(
        name="transcript",
        uri_template="fanfold://runs/{run}/transcripts/{+step}",
        description="What the agent of one step was told, said and did",
        mime_type=MARKDOWN,
    ),
)


def list_resources(project: Project) -> list[Resource]:
    """The reports of the latest runs."""
    return [
        Resource(
            uri=report_address(quote(head.run_id, safe="")),
            name=head.run_id,
            title=f"{head.recipe}: {head.status}",
            description=f"Report of run {head.run_id} of {head.recipe}",
            mime_type=MARKDOWN,
        )
        for head in list_heads(project, limit=MAX_LISTED)
    ]


def read_resource(project: Project, uri: str) -> tuple[str, str]:
    """The text behind an address, and what kind of text it is."""
    run, what, step = _parts(uri)
    if what == "report" and not step:
        found = find_run(project, run)
        text, kind = report_markdown(found.tree, found.run), MARKDOWN
    elif what == "outputs" and step:
        text, kind = indented(inspect_step(project, run, step).output), "text/plain"
    elif what == "transcripts" and step:
        text, kind = transcript_text(transcript(project, run, step)), MARKDOWN
    else:
        raise _unknown(uri)
    if len(text) > MAX_CHARS:
        left = f"{len(text) - MAX_CHARS:,} more characters: {_whole(what, run, step)}"
        text = f"{text[:MAX_CHARS]}\n\n… {left}\n"
    return text, kind


def _whole(what: str, run: str, step: str) -> str:
    """The command that gives everything."""
    if what == "report":
        return f"fanfold inspect {shlex.quote(run)}"
    command = "inspect" if what == "outputs" else "transcript"
    return f"fanfold {command} {shlex.quote(run)} {shlex.quote(step)}"


def _parts(uri: str) -> tuple[str, str, str]:
    if not uri.startswith(SCHEME):
        raise _unknown(uri)
    run, _, rest = uri.removeprefix(SCHEME).partition("/")
    what, _, step = rest.partition("/")
    return unquote(run), what, unquote(step)


def _unknown(uri: str) -> NotFoundError:
    hint = "fanfold://runs/RUN/report, /outputs/STEP or /transcripts/STEP"
    return NotFoundError("resource.not_found", f"there is no resource {uri[:200]}", hint=hint)
