"""What a run fixed for its whole life, as the process that fixed it and those after it know it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.language.compile import compile_recipe
from fanfold.steps.run_config import RunConfig
from fanfold.wiring import wire

SECRET = "sk-a-secret-of-somebody-4711"
RECIPE = b"name: one\nsteps: [{id: one, agent: explorer, prompt: x}]\n"


@pytest.mark.parametrize("script", ["default: ok", f"default: {SECRET}"])
def test_an_editor_of_the_store_knows_its_content_and_no_secret(tmp_path: Path, script: str) -> None:
    environment = {**os.environ, "FANFOLD_HOME": str(tmp_path / "home"), "OPENAI_API_KEY": SECRET}
    project = wire(tmp_path, environment)
    try:
        plan = compile_recipe(RECIPE, "one.yaml", project.compile_context(scripted=True)).plan
        assert plan is not None
        owned = create(project, plan, {}, Options(script=script))
        fixed: RunConfig = owned.tree.frozen()
        owned.let_go()
        assert fixed == project.view(owned.tree.root.id).frozen()
        assert SECRET not in str(fixed)
        assert (fixed.script == script) == (SECRET not in script)
    finally:
        project.close()
