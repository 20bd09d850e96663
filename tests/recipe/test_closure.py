"""Sub-workflows: found from the file that calls them, compiled once, checked against their contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanfold.kernel.plan import WorkflowAction
from fanfold.language.compile import CompileResult, compile_recipe
from tests.recipe.known import codes, surroundings

LEAF = "name: leaf\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / (name.replace("__", "/") + ".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def compile_in(folder: Path, name: str = "root.yaml") -> CompileResult:
    file = folder / name
    return compile_recipe(file.read_bytes(), str(file), surroundings(folder / "workflows"))


def calling(name: str, *refs: str, more: str = "") -> str:
    calls = "".join(f"  - {{id: c{i}, workflow: {ref}{more}}}\n" for i, ref in enumerate(refs))
    return f"name: {name}\nsteps:\n{calls}"


def test_files_are_found_from_the_file_that_names_them(tmp_path: Path):
    write(
        tmp_path,
        root=calling("root", "./sub/middle.yaml"),
        sub__middle=calling("middle", "../leaf.yaml", "./leaf.yaml"),
        leaf=LEAF,
        sub__leaf=LEAF,
    )
    plan = compile_in(tmp_path).plan
    assert plan is not None
    assert list(plan.workflows) == ["leaf.yaml", "sub/leaf.yaml", "sub/middle.yaml"]
    middle = plan.workflows["sub/middle.yaml"]
    assert [step.action for step in middle.steps] == [
        WorkflowAction("leaf.yaml"),
        WorkflowAction("sub/leaf.yaml"),
    ]
    assert middle.workflows == {}


def test_names_are_keyed_by_their_version_however_it_was_written(tmp_path: Path):
    write(
        tmp_path,
        root=calling("root", "leaf", "leaf@2", "leaf@v2", "leaf@1"),
        workflows__leaf=LEAF,
        **{"workflows__leaf@2": LEAF.replace("steps:", "version: 2\nsteps:")},
    )
    plan = compile_in(tmp_path).plan
    assert plan is not None
    keys = [step.action.workflow for step in plan.steps if isinstance(step.action, WorkflowAction)]
    assert keys == ["leaf@2", "leaf@2", "leaf@2", "leaf@1"]
    assert set(plan.workflows) == {"leaf@1", "leaf@2"}


def test_a_file_called_from_many_places_is_compiled_and_reported_once(tmp_path: Path):
    write(
        tmp_path,
        root=calling("root", "./a.yaml", "./b.yaml", "./leaf.yaml"),
        a=calling("a", "./leaf.yaml"),
        b=calling("b", "./leaf.yaml"),
        leaf=LEAF.replace("explorer", "nobody"),
    )
    compiled = compile_in(tmp_path)
    (diagnostic,) = compiled.report.diagnostics
    assert diagnostic.code == "recipe.unknown_role"
    assert diagnostic.file == str(tmp_path / "leaf.yaml")
    assert diagnostic.range.start.line == 3
    assert diagnostic.file in compiled.sources
    assert compiled.plan is None


def test_a_ring_is_reported_where_it_begins_with_every_name(tmp_path: Path):
    write(
        tmp_path,
        root=calling("root", "./a.yaml"),
        a=calling("a", "./b.yaml"),
        b=calling("b", "./c.yaml"),
        c=calling("c", "./a.yaml"),
    )
    (diagnostic,) = compile_in(tmp_path).report.diagnostics
    assert diagnostic.code == "recipe.workflow_cycle"
    assert diagnostic.file == str(tmp_path / "a.yaml")
    assert '"a" → "b" → "c" → "a"' in diagnostic.message


def test_a_ring_through_a_link_is_a_ring(tmp_path: Path):
    write(tmp_path, root=calling("root", "./again.yaml"))
    (tmp_path / "again.yaml").symlink_to(tmp_path / "root.yaml")
    assert codes(compile_in(tmp_path)) == ["recipe.workflow_cycle"]


def test_five_levels_are_allowed_and_six_are_not(tmp_path: Path):
    for i in range(1, 6):
        write(tmp_path, **{f"d{i}": calling(f"d{i}", f"./d{i + 1}.yaml")})
    write(tmp_path, d6=LEAF, root=calling("root", "./d2.yaml"), deeper=calling("deeper", "./d1.yaml"))
    assert compile_in(tmp_path).plan is not None
    (diagnostic,) = compile_in(tmp_path, "deeper.yaml").report.diagnostics
    assert diagnostic.code == "recipe.depth"
    assert diagnostic.file == str(tmp_path / "deeper.yaml")


def test_depth_is_counted_along_the_longest_way(tmp_path: Path):
    for i in range(1, 6):
        write(tmp_path, **{f"d{i}": calling(f"d{i}", f"./d{i + 1}.yaml")})
    write(tmp_path, d6=LEAF, root=calling("root", "./d4.yaml", "./d3.yaml", "./d1.yaml", "./d1.yaml"))
    found = compile_in(tmp_path).report.diagnostics
    assert [(one.code, one.range.start.line) for one in found] == [("recipe.depth", 5), ("recipe.depth", 6)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (", inputs: {data: 1}", []),
        (", inputs: {data: steps.c0.output}", ["recipe.cycle"]),
        ("", ["recipe.missing_input"]),
        (", inputs: {data: 1, extra: 2}", ["recipe.unknown_input"]),
        (", inputs: {extra: 2}", ["recipe.missing_input", "recipe.unknown_input"]),
        (", inputs: {data: text, count: many}", ["recipe.bad_type"]),
        (", inputs: {data: text, count: '{{iteration}}'}", ["recipe.bad_template"]),
        (", inputs: 3", ["recipe.bad_type"]),
    ],
)
def test_a_call_is_checked_against_the_declared_inputs(tmp_path: Path, given: str, expected: list[str]):
    inputs = "inputs: [{name: data, required: true}, {name: count, type: integer, default: 1}]\n"
    prompt = "prompt: '{{inputs.data}} {{inputs.count}}'"
    write(
        tmp_path,
        root=calling("root", "./leaf.yaml", more=given),
        leaf=LEAF.replace("steps:", inputs + "steps:").replace("prompt: x", prompt),
    )
    assert codes(compile_in(tmp_path)) == expected


def test_inputs_of_a_broken_sub_workflow_are_not_called_unknown(tmp_path: Path):
    write(
        tmp_path,
        root=calling("root", "./leaf.yaml", more=", inputs: {topic: 1}"),
        leaf=LEAF.replace("steps:", "inputs: topic\nsteps:"),
    )
    found = [(one.code, Path(one.file).name) for one in compile_in(tmp_path).report.diagnostics]
    assert found == [("recipe.bad_type", "leaf.yaml")]


def test_a_file_that_is_no_recipe_is_reported_by_its_own_name(tmp_path: Path):
    write(tmp_path, root=calling("root", "./leaf.yaml"), leaf="- just a list\n")
    (diagnostic,) = compile_in(tmp_path).report.diagnostics
    assert (diagnostic.code, diagnostic.file) == ("recipe.bad_type", str(tmp_path / "leaf.yaml"))


@pytest.mark.parametrize(
    "ref", ["/etc/passwd", "/tmp/x.yaml", "./notes.txt", "../../etc/passwd", "Bad", "x@y"]
)
def test_only_recipes_can_be_called(tmp_path: Path, ref: str):
    write(tmp_path, root=calling("root", ref))
    assert codes(compile_in(tmp_path)) == ["recipe.unknown_workflow"]


def test_a_workflow_step_writes_when_its_child_does(tmp_path: Path):
    write(
        tmp_path,
        root="name: root\nsteps:\n  - {id: a, workflow: ./middle.yaml}\n  - {id: b, workflow: ./leaf.yaml}\n"
        "  - {id: c, workflow: ./loose.yaml, posture: read_only}\n",
        middle=calling("middle", "./writer.yaml"),
        writer="name: writer\nsteps:\n  - {id: w, agent: worker, prompt: x, write_set: ['a/**']}\n",
        loose="name: loose\nsteps:\n  - {id: w, agent: worker, prompt: x}\n",
        leaf=LEAF,
    )
    plan = compile_in(tmp_path).plan
    assert plan is not None
    assert [step.posture for step in plan.steps] == ["writer", "read_only", "read_only"]


@pytest.mark.parametrize("target", ["writer", "middle"])
def test_a_read_only_call_of_something_that_declares_a_write_set_is_refused(tmp_path: Path, target: str):
    write(
        tmp_path,
        root="name: root\nsteps:\n  - id: g\n    posture: read_only\n"
        f"    steps: [{{id: a, workflow: ./{target}.yaml}}]\n",
        middle=calling("middle", "./writer.yaml"),
        writer="name: writer\nsteps:\n  - {id: w, agent: worker, prompt: x, write_set: ['a/**']}\n",
    )
    assert codes(compile_in(tmp_path)) == ["recipe.conflicting_keys"]


def test_the_number_of_sub_workflows_is_limited(tmp_path: Path):
    names = [f"w{i}" for i in range(300)]
    for name in names:
        write(tmp_path, **{name: LEAF})
    write(tmp_path, root=calling("root", *(f"./{name}.yaml" for name in names)))
    assert set(codes(compile_in(tmp_path))) == {"recipe.limit"}


TITLED = LEAF + 'output: {title: "{{steps.a.output}}"}\n'


def test_a_value_read_from_a_sub_workflow_must_be_in_its_output(tmp_path: Path):
    root = """\
name: root
steps:
  - {id: one, workflow: ./titled.yaml}
  - {id: many, workflow: ./titled.yaml, for_each: '[1, 2]'}
  - {id: named, workflow: ./titled.yaml, outputs: [titel]}
  - {id: text, workflow: ./text.yaml}
  - id: use
    depends_on: [one, many, text]
    agent: explorer
    prompt: "{{steps.one.output.titel}} {{steps.many.output[0].titel}} {{steps.text.output.x}}"
    when: steps.one.output.titel == "x"
  - id: right
    depends_on: [one, many]
    agent: explorer
    prompt: "{{steps.one.output.title}} {{steps.many.output[1].title}}"
"""
    write(tmp_path, root=root, titled=TITLED, text=LEAF + 'output: "- {{steps.a.output}}"\n')
    found = compile_in(tmp_path)
    lines = [(d.code, d.range.start.line) for d in found.report.diagnostics if d.severity == "error"]
    assert sorted(lines) == [
        ("recipe.bad_expression", 11),
        ("recipe.bad_template", 10),
        ("recipe.bad_template", 10),
        ("recipe.bad_template", 10),
        ("recipe.bad_value", 5),
    ]


def test_comparisons_are_checked_with_what_a_sub_workflow_gives(tmp_path: Path):
    leaf = """\
name: leaf
steps:
  - id: a
    agent: explorer
    prompt: x
    output_schema: {type: object, properties: {level: {enum: [low, high]}}}
output: {level: steps.a.output.level, count: "{{steps.a.output.level}}!", fixed: 3}
"""
    root = """\
name: root
steps:
  - {id: one, workflow: ./leaf.yaml}
  - {id: many, workflow: ./leaf.yaml, for_each: '[1, 2]'}
  - {id: bad, depends_on: many, set: {bad: 'steps.many.output.filter(m, m.level == "hihg")'}}
  - {id: typo, depends_on: many, set: {bad: 'steps.many.output.filter(m, m.levle == "high")'}}
  - {id: a, depends_on: one, when: steps.one.output == "high", agent: explorer, prompt: x}
  - {id: b, depends_on: one, when: steps.one.output.level == "hgih", agent: explorer, prompt: x}
  - {id: c, depends_on: one, when: steps.one.output.count == 3, agent: explorer, prompt: x}
  - {id: d, depends_on: one, when: steps.one.output.fixed == "3", agent: explorer, prompt: x}
  - {id: right, depends_on: many, set: {bad: 'steps.many.output.filter(m, m.level == "high").size()'}}
  - {id: e, depends_on: right, when: steps.right.output.bad == "1", agent: explorer, prompt: x}
  - {id: f, depends_on: right, when: steps.right.output.bad == 1, agent: explorer, prompt: x}
  - {id: g, depends_on: one, when: steps.one.output.level == "high", agent: explorer, prompt: x}
  - {id: h, depends_on: one, when: '[steps.many.output].exists(m, m.size() == 2)', agent: explorer, prompt: x}
"""
    write(tmp_path, root=root, leaf=leaf)
    found = [d for d in compile_in(tmp_path).report.diagnostics if d.severity == "error"]
    assert [(d.range.start.line, d.message) for d in found] == [
        (5, 'm.level is never "hihg"'),
        (6, 'm has no field "levle"'),
        (7, "an object and text can never be equal"),
        (8, 'steps.one.output.level is never "hgih"'),
        (9, "text and a number can never be equal"),
        (10, "a number and text can never be equal"),
        (12, "a number and text can never be equal"),
    ]
