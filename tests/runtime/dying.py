"""One process of a test that kills: runs or resumes `recipe.yaml` of a folder and dies at a chosen commit.

    python -m tests.runtime.dying FOLDER KILL_AT WHEN [ROOT]

As in `tests/kill/driver.py`; besides, a file `meddle.json` ([[path, text], …]) says what somebody else writes
into the project right before each merge. Each of them happens once, however often the run is resumed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from fanfold.api.ownership import own
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.language.compile import compile_recipe
from fanfold.language.inputs import bind_inputs
from fanfold.wiring import wire
from fanfold.workspace.workspaces import Workspaces
from tests.dying_store import DyingStore, claimed, opened


def meddle(folder: Path) -> None:
    """Have somebody else write into the project before each merge, as the file says."""
    merge = Workspaces.merge

    def after_meddling(self: Workspaces, *arguments: Any) -> Any:
        file = folder / "meddle.json"
        edits = json.loads(file.read_text()) if file.exists() else []
        if edits:
            file.write_text(json.dumps(edits[1:]))
            (folder / "project" / edits[0][0]).write_text(edits[0][1])
        return merge(self, *arguments)

    setattr(Workspaces, "merge", after_meddling)  # noqa: B010 - somebody else moves here, not the code


async def main(folder: Path, kill_at: int, when: str, root: str | None) -> None:
    home = folder / "project"
    store = DyingStore(claimed(home))
    store.kill_at, store.when = kill_at, when
    project = wire(home, store=opened(store))
    if root is None:
        plan = compile_recipe(
            (folder / "recipe.yaml").read_bytes(), "recipe.yaml", project.compile_context()
        ).plan
        assert plan is not None
        script = (folder / "script.yaml").read_text()
        inputs = json.loads(file.read_text()) if (file := folder / "inputs.json").exists() else {}
        owned = create(project, plan, bind_inputs(plan, inputs), Options(permission="auto", script=script))
    else:
        owned = own(project, root)
    tree = owned.tree
    say(tree.root.id)
    host = owned.host()
    await (host.start() if root is None else host.resume())
    owned.done()
    say(f"{tree.root.status} {store.counted}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    meddle(Path(sys.argv[1]))
    asyncio.run(
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    )
