"""Forks: what is kept, what runs again, and prompts that are checked like a recipe's."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fanfold.api.archives import verify
from fanfold.api.fork import Fork, plan_fork
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.api.system import collect
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.events import RunStarted
from fanfold.steps.ids import new_run_id
from fanfold.store.protocol import Lease
from fanfold.store.sqlite import SqliteStore
from fanfold.wiring import wire
from tests.dying_store import claimed, opened
from tests.runtime.running import TextClient, client, run

RECIPE = """
name: forked
inputs: [{name: mode, default: quick}]
steps:
  - {id: a, agent: explorer, prompt: "a"}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}", depends_on: [a]}
  - {id: c, agent: explorer, for_each: '[inputs["mode"]]', prompt: "{{item}}"}
  - {id: d, agent: explorer, prompt: "d {{steps.b.output}}", depends_on: [b]}
"""


def fork(folder: Path, **given: object) -> Fork:
    result = run(folder, RECIPE)
    opened = client(folder)
    try:
        tree = opened.project.view(result.run_id)
        return plan_fork(tree, given.get("step"), given.get("changed", {}), given.get("prompts", {}))  # type: ignore[arg-type]  # as each test gives them
    finally:
        opened.project.close()


def test_a_fork_from_a_step_runs_it_and_what_depends_on_it_again(tmp_path: Path) -> None:
    made = fork(tmp_path, step="b")
    assert set(made.kept.outputs) == {"a", "c[0]"}
    assert set(made.kept.again) == {"b", "d"}


def test_a_changed_input_reaches_steps_that_name_it_in_any_form(tmp_path: Path) -> None:
    made = fork(tmp_path, changed={"mode": "deep"})
    assert "c[0]" in made.kept.again
    assert "a" in made.kept.outputs


def test_a_new_prompt_gets_the_edges_it_implies(tmp_path: Path) -> None:
    made = fork(tmp_path, prompts={"d": "now with {{steps.c.output}}"})
    step = next(step for step in made.plan.steps if step.id == "d")
    assert step.depends_on == ("b", "c")


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("use {{bogus", "recipe.bad_template"),
        ("{{item}}", "recipe.bad_template"),
        ("{{inputs.nope}}", "recipe.unknown_input"),
        ("{{steps.nope.output}}", "recipe.unknown_step"),
        ("{{steps.d.output}}", "recipe.cycle"),
    ],
)
def test_a_prompt_that_a_recipe_could_not_have_is_refused_before_anything_starts(
    tmp_path: Path, prompt: str, code: str
) -> None:
    with pytest.raises(AuthorError) as refused:
        fork(tmp_path, prompts={"b": prompt})
    assert refused.value.code == code


def test_a_fork_outlives_the_run_it_came_from(tmp_path: Path) -> None:
    """What a fork keeps is named in its own log, so collecting the source does not take it away."""
    result = run(tmp_path, RECIPE)
    opened = client(tmp_path)
    project = opened.project
    try:
        source = project.view(result.run_id)
        made = plan_fork(source, "d", {}, {})
        owned = create(project, made.plan, made.inputs, Options(script="default: again"), fork=made.lineage)
        tree = owned.tree
        project.store.delete_tree(result.run_id)
        asyncio.run(owned.host().start())
        assert tree.root.status == "completed"
        assert tree.values.output(tree.root.nodes["a"]) == "ok from a"
        assert tree.values.output(tree.root.nodes["d"]) == "again"
        owned.done()
    finally:
        project.close()


def test_a_fork_of_a_run_that_gc_deleted_meanwhile_is_not_created(tmp_path: Path) -> None:
    result = run(tmp_path, RECIPE)
    opened = client(tmp_path)
    project = opened.project
    try:
        made = plan_fork(project.view(result.run_id), "d", {}, {})
        collect(project, 0)
        with pytest.raises(NotFoundError) as refused:
            create(project, made.plan, made.inputs, Options(script="default: again"), fork=made.lineage)
        assert refused.value.code == "run.not_found"
        assert project.store.heads() == []
    finally:
        project.close()


def test_gc_keeps_the_folder_of_a_run_that_is_being_created(tmp_path: Path) -> None:
    """A fork copies artifacts into its folder before its first commit."""
    run(tmp_path, RECIPE)
    opened = client(tmp_path)
    project = opened.project
    try:
        new, crashed = new_run_id(), new_run_id()
        project.store.acquire(new)
        for name in (new, crashed):
            (project.runs_folder / name / "artifacts").mkdir(parents=True)
        collect(project, 0)
        assert [path.name for path in project.runs_folder.iterdir()] == [new]
    finally:
        project.close()


def test_two_gcs_at_once_delete_the_same_folders(tmp_path: Path) -> None:
    run(tmp_path, RECIPE)
    opened = [client(tmp_path) for _ in range(2)]
    folder = opened[0].project.runs_folder
    try:
        with ThreadPoolExecutor(2) as threads:
            for _ in range(5):
                for name in [new_run_id() for _ in range(50)]:
                    (folder / name / "artifacts").mkdir(parents=True)
                list(threads.map(lambda one: collect(one.project, 0), opened))
        assert list(folder.iterdir()) == []
    finally:
        for one in opened:
            one.project.close()


class WatchingStore(SqliteStore):
    """Notes which files a run had when its lease was released."""

    def release(self, lease: Lease) -> None:
        files = (self.path / "runs" / lease.root).rglob("*.md")
        self.files = sorted(file.name for file in files)
        super().release(lease)


def test_a_finished_run_is_owned_until_its_files_are_written(tmp_path: Path) -> None:
    """Otherwise gc deletes the outputs that the files are made of."""
    store = WatchingStore(claimed(tmp_path))
    here = TextClient(wire(tmp_path, store=opened(store)))
    try:
        options = Options(permission="auto", script="default: ok from {{step}}")
        owned = create(here.project, here.plan_of(RECIPE), {}, options)
        asyncio.run(owned.host().start())
        owned.done()
        assert {"report.md", "a.md", "b.md", "d.md"} <= set(store.files)
        assert not here.project.has_owner(owned.tree.root.id)
    finally:
        here.project.close()


def test_a_cached_output_stays_readable_when_its_run_is_deleted_before_the_commit(tmp_path: Path) -> None:
    recipe = "name: cached\nsteps: [{id: a, agent: explorer, cache: true, prompt: a}]\n"
    result = run(tmp_path, recipe)
    opened = client(tmp_path)
    project = opened.project
    try:
        options = Options(permission="auto", script="default: ok from {{step}}")
        owned = create(project, opened.plan_of(recipe), {}, options)
        owned.tree.report(owned.tree.root.id, owned.tree.now_ms(), RunStarted())
        project.store.delete_tree(result.run_id)
        owned.tree.commit()
        node = owned.tree.root.nodes["a"]
        assert node.status == "completed"
        assert project.store.blob(node.output or "") == b'"ok from a"'
        owned.done()
    finally:
        project.close()


def test_a_fork_keeps_the_object_of_a_rejected_inline_approval(tmp_path: Path) -> None:
    recipe = """
name: gate
steps:
  - {id: ok, approve: "Ship?", timeout: 1ms, default: reject, on_failure: inline}
  - {id: said, set: {decision: steps.ok.output.decision}}
  - {id: notes, agent: explorer, depends_on: [ok], prompt: "{{steps.ok.output.decision}}"}
"""
    result = run(tmp_path, recipe)
    opened = client(tmp_path)
    project = opened.project
    try:
        made = plan_fork(project.view(result.run_id), "said", {}, {})
        owned = create(project, made.plan, made.inputs, Options(script="default: again"), fork=made.lineage)
        asyncio.run(owned.host().start())
        tree = owned.tree
        before = project.view(result.run_id)
        assert tree.values.output(tree.root.nodes["ok"]) == before.values.output(before.root.nodes["ok"])
        assert tree.values.output(tree.root.nodes["said"]) == {"decision": "reject"}
        assert verify(project.store, tree.root.id).violations == []
        owned.done()
    finally:
        project.close()
