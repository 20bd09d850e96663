"""Reading a session: what an agent was told, said and did, while it runs and afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fanfold.kernel.lifecycle import RUN_TERMINAL, TERMINAL
from fanfold.runtime.operations.addresses import Addressed, find_run, find_speaker
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.follow import Ownerless, follow_tree
from fanfold.runtime.views.sessions.transcripts import (
    Speaker,
    Told,
    Transcript,
    TranscriptEntry,
    earlier,
    last_turn,
    speaker_of,
    transcript_of,
)


def transcript(
    project: Project, run: str, name: str, attempt: int | None = None, at: int | None = None
) -> Transcript:
    """The transcript of a step's latest attempt, or of another one; of a subagent with all its turns; of a
    session by its id. With `at` as it was after an event of the tree.
    """
    found = find_run(project, run, at)
    speaker = find_speaker(found, name, attempt)
    if at is None:
        return transcript_found(project, found, speaker)
    return transcript_of(found.tree, speaker, owned=True, until=found.tree.state.now)


def denied_tools(project: Project, run: str, step: str) -> list[str]:
    """The tools that were denied to the agent of a step, each once."""
    told = transcript(project, run, step).entries
    return list(dict.fromkeys(one.tool for one in told if one.step == step and _is_denied(one)))


def _is_denied(entry: TranscriptEntry) -> bool:
    if entry.kind != "tool_result":
        return False
    said = entry.result.get("error") if isinstance(entry.result, dict) else None
    code = said.get("code") if isinstance(said, dict) else entry.error.code if entry.error else ""
    return code == "permission_denied"


def transcript_found(project: Project, found: Addressed, speaker: Speaker) -> Transcript:
    """The same, for a session that was looked up already."""
    return transcript_of(found.tree, speaker, owned=project.has_owner(found.root_id))


async def follow_transcript(
    project: Project, found: Addressed, name: str, attempt: int | None = None
) -> AsyncIterator[list[TranscriptEntry]]:
    """What is recorded now and from now on, in pieces, until the step is over or nobody drives the run.

    Without `attempt` it goes on with the next attempt when one failed.
    """
    tree = found.tree
    speaker = find_speaker(found, name, attempt)
    before = earlier(tree, speaker)
    told = Told(tree, speaker, turn=last_turn(before))
    yield [*before, *told.fresh()]
    ownerless = Ownerless(project, tree.root.id)
    async for written in follow_tree(project.store, tree.root.id, tree.tree_seq):
        tree.catch_up(written)
        over = tree.root.status in RUN_TERMINAL or speaker.node.status in TERMINAL or ownerless.for_a_while()
        fresh = list(told.fresh())
        while attempt is None and speaker.attempt < speaker.node.attempt:
            speaker = speaker_of(tree, speaker.node, speaker.attempt + 1)
            told = Told(tree, speaker, turn=last_turn(before))
            fresh += told.fresh()
        if fresh:
            yield fresh
        if over or (attempt is not None and attempt < speaker.node.attempt):
            return
