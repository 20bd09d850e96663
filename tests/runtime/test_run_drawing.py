"""Pictures of runs: the plan with what became of it, fan-outs as strips, opened on demand."""

import asyncio
from pathlib import Path

import msgspec

from fanfold.api.graph import MAX_CELLS, Drawing, DrawnStep, cells_of, draw_run, parse_opened, svg, tally_of
from fanfold.api.run_options import Options
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.plan import Plan
from tests.runtime.running import client
from tests.work import PATIENCE_S

RECIPE = """\
name: outer
inputs: [{name: files, type: array, default: []}]
steps:
  - {id: list, agent: explorer, prompt: list}
  - {id: each, agent: explorer, for_each: inputs.files, prompt: "look at {{item}}", depends_on: [list]}
  - id: repair
    depends_on: [each]
    repeat: {until: "steps.fix.output == 'good'", max_iterations: 3}
    steps:
      - {id: fix, agent: worker, write_set: ["*.md"], prompt: fix}
  - id: together
    depends_on: [list]
    steps:
      - {id: one, agent: explorer, prompt: one}
      - {id: two, agent: explorer, prompt: two, depends_on: [one]}
"""
SCRIPT = """\
default: ok
steps:
  "each[1]": {fail: {class: agent, message: no such file}}
  "repair#1/fix": bad
  "repair#*/fix": good
"""


def drawn(folder: Path, count: int = 4, opened: str = "") -> tuple[Plan, Drawing]:
    """A finished run, folded again from its log."""

    async def work() -> tuple[Plan, Drawing]:
        async with client(folder) as project:
            files = [f"f{i}.py" for i in range(count)]
            options = Options(permission="auto", script=SCRIPT)
            handle = await project.start(RECIPE, options=options, inputs={"files": files})
            await asyncio.wait_for(handle.result(), PATIENCE_S)
            tree = RunTree.load(project.project.store, handle.id)
            return tree.root.plan, draw_run(tree, opened=parse_opened(opened))

    return asyncio.run(work())


def by_path(drawing: Drawing) -> dict[str, DrawnStep]:
    return {node.path: node for node in drawing.nodes}


def test_a_fan_out_is_one_box_with_a_cell_for_every_item(tmp_path):
    each = by_path(drawn(tmp_path)[1])["each"]
    assert each.kind == "map"
    assert each.cells == ["completed", "failed", "completed", "completed"]
    assert each.count == 4
    assert each.tally == {"failed": 1, "completed": 3}
    assert not each.open


def test_it_opens_on_demand_and_its_items_go_by_their_names(tmp_path):
    drawing = drawn(tmp_path, opened="each,-together")[1]
    nodes = by_path(drawing)
    assert nodes["each"].open
    assert nodes["each"].cells is None
    items = [node for node in drawing.nodes if node.parent == "each"]
    assert [node.title for node in items] == ["f0.py", "f1.py", "f2.py", "f3.py"]
    assert len({(node.x, node.y) for node in items}) == 4
    assert nodes["together"].cells == ["completed", "completed"]


def test_groups_are_open_by_themselves_and_edges_stay_between_boxes_that_are_drawn(tmp_path):
    drawing = drawn(tmp_path)[1]
    nodes = by_path(drawing)
    assert nodes["together"].open
    assert nodes["together/one"].parent == "together"
    for edge in drawing.edges:
        assert edge.source in nodes
        assert edge.target in nodes


def test_three_hundred_items_are_three_hundred_cells_and_a_thousand_too(tmp_path):
    assert len(cells_of(["completed"] * 1_000)) == MAX_CELLS
    many = ["completed"] * 999 + ["failed"]
    assert cells_of(many)[-1] == "failed"
    assert tally_of(many) == {"failed": 1, "completed": 999}
    drawing = drawn(tmp_path, 300)[1]
    assert len(by_path(drawing)["each"].cells or []) == 300
    assert len(drawing.nodes) < 10


def test_a_picture_of_a_run_says_how_each_step_ended(tmp_path):
    text = svg(*drawn(tmp_path))
    assert "at-completed" in text
    assert "[failed]" in text
    assert "✓" in text


def test_the_document_has_the_names_that_pages_use(tmp_path):
    document = msgspec.to_builtins(drawn(tmp_path)[1])
    assert set(document) == {"nodes", "edges", "width", "height"}
    assert {"from", "to", "points"} == set(document["edges"][0])
    assert {"path", "x", "y", "w", "h", "kind", "look", "title", "status"} <= set(document["nodes"][0])
