"""One process of a kill test: starts or resumes a run that delivers, agrees to it, and dies at a commit.

python -m tests.delivery.driver PROJECT KILL_AT WHEN [ROOT]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fanfold.api.ownership import own
from fanfold.api.run_handle import leave
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.requests import AnswerRequest
from fanfold.language.compile import compile_recipe
from fanfold.wiring import wire
from tests.dying_store import DyingStore, claimed, opened


async def main(folder: Path, kill_at: int, when: str, root: str) -> None:
    store = DyingStore(claimed(folder))
    store.kill_at, store.when = kill_at, when
    project = wire(folder, store=opened(store))
    if root:
        owned = own(project, root)
    else:
        file = folder / "d.yaml"
        plan = compile_recipe(file.read_bytes(), str(file), project.compile_context()).plan
        assert plan is not None
        script = (folder / "s.yaml").read_text()
        owned = create(project, plan, {}, Options(permission="auto", script=script, script_file="s.yaml"))
    tree = owned.tree
    sys.stdout.write(f"{tree.root.id}\n")
    sys.stdout.flush()
    host = owned.host()
    await (host.resume() if root else host.start())
    while tree.root.status == "running":  # only the delivery is open
        leave(project, project.resolve(tree.root.id), AnswerRequest("pr", "approve", "somebody"))
        await owned.host().drive()
    owned.done()
    sys.stdout.write(f"{tree.root.status} {store.counted}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
