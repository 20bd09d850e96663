"""One process of a kill test: creates or resumes the campaign and dies at a chosen commit.

    python -m tests.kill.driver PROJECT KILL_AT WHEN [ROOT]

WHEN is `before` (everything was written, the commit was not) or `after` (the commit returned, nobody was
told). KILL_AT counts this process's commits from 1; 0 means: live. Prints the run id, then its status.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from fanfold.api.ownership import OwnedRun, own
from fanfold.api.project import Project
from fanfold.api.run_handle import leave
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.requests import AnswerRequest
from fanfold.language.compile import compile_recipe
from fanfold.wiring import wire
from tests.dying_store import DyingStore, claimed, opened

TOPICS = [f"t{i}" for i in range(14)]


async def main(folder: Path, kill_at: int, when: str, root: str | None) -> None:
    store = DyingStore(claimed(folder))
    store.kill_at, store.when = kill_at, when
    project = wire(folder, store=opened(store))
    owned = record(project) if root is None else own(project, root)
    tree = owned.tree
    say(tree.root.id)
    host = owned.host()
    await (host.start() if root is None else host.resume())
    while tree.root.status == "running":  # only the approval is open
        leave(project, project.resolve(tree.root.id), AnswerRequest("release", "approve", "somebody", "go"))
        await owned.host().drive()
    owned.done()
    say(f"{tree.root.status} {store.counted}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def record(project: Project) -> OwnedRun:
    found = project.library.find("campaign")
    plan = compile_recipe(found.data, found.file, project.compile_context()).plan
    assert plan is not None
    script = (project.folder / "script.yaml").read_text()
    slots = int(os.environ.get("KILL_TEST_SLOTS", "1"))
    options = Options(permission="auto", script=script, script_file="script.yaml", max_concurrency=slots)
    return create(project, plan, {"topics": TOPICS}, options)


if __name__ == "__main__":
    asyncio.run(
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    )
