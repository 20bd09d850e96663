"""What programs see of a project: its runs, their steps, logs, transcripts and changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fanfold.kernel.events import Envelope
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.arguments import all_checked
from fanfold.runtime.operations.history import transcripts
from fanfold.runtime.operations.history.explain import explain_run, explain_step
from fanfold.runtime.operations.history.listing import list_runs
from fanfold.runtime.operations.history.logs import read_log
from fanfold.runtime.operations.history.query import query
from fanfold.runtime.operations.history.runs import inspect, inspect_step
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.files.changes import diff
from fanfold.runtime.views.runs.changes import RunChanges
from fanfold.runtime.views.runs.documents import InspectDocument, InspectStepDocument
from fanfold.runtime.views.runs.rows import RunRow
from fanfold.runtime.views.sessions.transcripts import Transcript, TranscriptEntry
from fanfold.runtime.views.steps.explanations import ExplainedRun, ExplainedStep
from fanfold.store.search.index import NO_FILTERS, Filters, Hit


@all_checked
class Looks:
    """The looks at an open project; see `Client`."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def inspect(self, run: str) -> InspectDocument:
        """A run with its steps and its child runs, as its log is now."""
        return inspect(self.project, run)

    def inspect_step(self, run: str, step: str) -> InspectStepDocument:
        """One step of a run, or a subagent of one."""
        return inspect_step(self.project, run, step)

    def explain(self, run: str, step: str | None = None) -> ExplainedRun | ExplainedStep:
        """Why a run, or one step of it, is where it is."""
        return explain_run(self.project, run) if step is None else explain_step(self.project, run, step)

    def query(
        self, *words: str, run: str | None = None, most: int = 5, filters: Filters = NO_FILTERS
    ) -> list[Hit]:
        """Outputs with any of the words, best match first; of one run and those below it, or of all."""
        return query(self.project, words, filters, run=run, most=most).hits

    def logs(self, run: str, *, tree: bool = False) -> list[Envelope]:
        """What was recorded about a run, or about its whole tree."""
        return list(read_log(self.project, self.project.resolve(run), whole_tree=tree))

    def transcript(self, run: str, step: str, *, attempt: int | None = None) -> Transcript:
        """What the agent of a step (or a subagent, or a session by its id) was told, said and did."""
        return transcripts.transcript(self.project, run, step, attempt)

    async def follow_transcript(
        self, run: str, step: str, *, attempt: int | None = None
    ) -> AsyncIterator[TranscriptEntry]:
        """The entries of a transcript from the first, then live until the step is over."""
        found = find_run(self.project, run)
        async for entries in transcripts.follow_transcript(self.project, found, step, attempt):
            for entry in entries:
                yield entry

    def diff(self, run: str, step: str | None = None) -> RunChanges:
        """What the steps of a run changed in files, each with a patch as far as there is one."""
        return diff(self.project, run, step)

    def runs(self, limit: int = 100) -> list[RunRow]:
        """Root runs, newest first."""
        return list_runs(self.project, limit=limit)
