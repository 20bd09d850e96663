"""What a recipe means: edges, scopes, postures, values, limits, repairs."""

from __future__ import annotations

import pytest

from fanfold.api.authoring import apply_fixes
from fanfold.kernel.plan import EVERYTHING, Constant, GroupAction, Plan, Ref, RetryPolicy, Step, Template
from fanfold.language.compile import compile_recipe
from fanfold.language.draft import Ceilings, CompileContext
from fanfold.language.leaf_steps import AgentBody, CommandBody, read_body
from tests.recipe.known import codes, compile_text, surroundings


def plan_of(text: str) -> Plan:
    compiled = compile_text(text)
    assert compiled.plan is not None, compiled.report.diagnostics
    return compiled.plan


def steps_of(body: str, top: str = "") -> dict[str, Step]:
    return {step.id: step for step in plan_of(f"name: t\n{top}\nsteps:\n{body}").steps}


def only_step(body: str, top: str = "") -> Step:
    return next(iter(steps_of(body, top).values()))


def prompt_of(step: Step) -> str | None:
    return read_body(AgentBody, step).prompt


# -- edges and scopes ----------------------------------------------------------------------------------


def test_edges_are_kept_in_the_order_their_targets_are_declared():
    steps = steps_of(
        "- {id: a, prompt: x}\n- {id: b, prompt: x}\n- {id: c, depends_on: [b], prompt: '{{steps.a.output}}'}"
    )
    assert steps["c"].depends_on == ("a", "b")


def test_an_agent_gets_summaries_of_the_dependencies_its_prompt_does_not_place():
    steps = steps_of(
        """
- {id: a, prompt: x}
- {id: b, prompt: x}
- {id: c, prompt: x}
- {id: d, prompt: x}
- id: e
  depends_on: [a, b, c, d]
  when: steps.d.status == "completed"
  prompt: "{{steps.a.output}} {{steps.b.status}}"
  inputs: {more: steps.c.output}
"""
    )
    assert read_body(AgentBody, steps["e"]).summaries == ("b", "d")


def test_a_reference_from_inside_a_group_is_an_edge_of_the_group():
    steps = steps_of(
        """
- {id: a, agent: explorer, prompt: x}
- id: g
  depends_on: [a]
  steps:
    - id: h
      steps:
        - {id: b, agent: explorer, prompt: "{{steps.a.output}}"}
"""
    )
    group = steps["g"]
    assert group.depends_on == ("a",)
    assert isinstance(group.action, GroupAction)
    assert group.action.steps[0].depends_on == ()


def test_the_nearest_scope_wins_when_an_inner_step_repeats_an_outer_id():
    steps = steps_of(
        """
- {id: a, agent: explorer, prompt: x}
- id: g
  depends_on: [a]
  steps:
    - {id: a, agent: explorer, prompt: x}
    - {id: b, agent: explorer, depends_on: [a], prompt: "{{steps.a.output}}"}
"""
    )
    action = steps["g"].action
    assert isinstance(action, GroupAction)
    assert action.steps[1].depends_on == ("a",)


def test_edges_of_a_group_output_and_until_belong_to_the_group():
    steps = steps_of(
        """
- {id: a, agent: explorer, prompt: x}
- id: g
  depends_on: [a]
  repeat: {until: steps.b.output == steps.a.output}
  steps:
    - {id: b, agent: explorer, prompt: x}
  output: "{{steps.b.output}} {{steps.a.output}}"
"""
    )
    assert steps["g"].depends_on == ("a",)


@pytest.mark.parametrize(
    "text",
    [
        "- {id: a, agent: explorer, prompt: x}\n- {id: b, agent: explorer, prompt: '{{steps.a.output}}'}",
        (
            "- {id: a, agent: explorer, prompt: x}\n"
            "- id: b # why\n  agent: explorer\n  prompt: '{{steps.a.output}}'"
        ),
        (
            "- {id: a, agent: explorer, prompt: x}\n- {id: c, agent: explorer, prompt: x}\n"
            "- {id: b, depends_on: [], agent: explorer, prompt: '{{steps.a.output}}{{steps.c.output}}'}"
        ),
        (
            "- {id: a, agent: explorer, prompt: x}\n- {id: c, agent: explorer, prompt: x}\n"
            "- {id: b, depends_on: [c], agent: explorer, prompt: '{{steps.a.output}}'}"
        ),
        (
            "- {id: a, agent: explorer, prompt: x}\n- {id: c, agent: explorer, prompt: x}\n"
            "- id: b\n  depends_on:\n    - c\n  agent: explorer\n  prompt: '{{steps.a.output}}'"
        ),
        (
            "- {id: a, agent: explorer, prompt: x}\n- id: b\n  steps:\n"
            "    - {id: d, agent: explorer, prompt: '{{steps.a.output}}'}"
        ),
    ],
)
def test_the_repair_of_an_implied_edge_writes_it(text: str):
    text = f"name: t\nsteps:\n{text}\n"
    compiled = compile_text(text)
    assert set(codes(compiled)) == {"recipe.implied_edge"}
    before = {step.id: step.depends_on for step in plan_of(text).steps}
    fixes = [diagnostic.fix for diagnostic in compiled.report.diagnostics if diagnostic.fix is not None]
    repaired, count = apply_fixes(text, fixes)
    assert count == 1
    assert codes(compile_text(repaired)) == []
    assert {step.id: step.depends_on for step in plan_of(repaired).steps} == before


@pytest.mark.parametrize(
    "text",
    [
        "- {id: a, prompt: x}\n- {id: b, depends_on: a, prompt: y}",
        "- {id: a, prompt: 5}",
        "- {id: a, for_each: [1, 'it''s'], prompt: '{{item}}'}",
    ],
)
def test_repairs_of_types_make_the_recipe_right(text: str):
    text = f"name: t\nsteps:\n{text}\n"
    fixes = [d.fix for d in compile_text(text).report.diagnostics if d.fix is not None]
    assert codes(compile_text(apply_fixes(text, fixes)[0])) == []


def test_the_message_of_a_ring_names_all_of_it():
    compiled = compile_text(
        "name: t\nsteps:\n- {id: a, prompt: x, depends_on: [c]}\n- {id: b, prompt: x, depends_on: [a]}\n"
        "- {id: c, prompt: x, depends_on: [b]}\n- {id: d, prompt: x, depends_on: [d]}\n"
    )
    messages = [diagnostic.message for diagnostic in compiled.report.diagnostics]
    assert codes(compiled) == ["recipe.cycle", "recipe.cycle"]
    assert '"a" → "c" → "b" → "a"' in messages[0]
    assert '"d" → "d"' in messages[1]


def test_a_long_ring_is_cut_in_its_message():
    body = "".join(f"- {{id: s{i}, prompt: x, depends_on: [s{(i + 1) % 50}]}}\n" for i in range(50))
    (diagnostic,) = compile_text(f"name: t\nsteps:\n{body}").report.diagnostics
    assert "(50 steps)" in diagnostic.message


# -- names ---------------------------------------------------------------------------------------------


def test_short_forms_of_declared_outputs_are_written_out_everywhere():
    steps = steps_of(
        """
- {id: a-b, handler: prepare_data, outputs: [rows, status]}
- id: c
  depends_on: [a-b]
  when: steps.a_b.rows.size() > 1 && steps["a_b"].rows != [] && steps.a_b.status == "completed"
  run: [echo, "{{ steps.a-b.rows[0].x }}", "{{steps.a-b.output.status}}"]
  env: {ROWS: "{{steps.a-b.rows}}"}
"""
    )
    action = read_body(CommandBody, steps["c"])
    assert action.run[1:] == ("{{ steps.a-b.output.rows[0].x }}", "{{steps.a-b.output.status}}")
    assert action.env == {"ROWS": "{{steps.a-b.output.rows}}"}
    assert steps["c"].when == (
        'steps.a_b.output.rows.size() > 1 && steps["a_b"].output.rows != [] '
        '&& steps.a_b.status == "completed"'
    )


def test_values_are_references_templates_or_literals():
    step = only_step(
        """
- id: a
  for_each: inputs.list
  as: thing
  handler: prepare_data
  inputs:
    path: inputs.list
    item: thing
    field: thing.name
    index: index
    sole: "{{thing}}"
    text: "a {{thing}}"
    word: feedback
    words: steps to take
    escaped: "\\\\{{x}}"
    literal: {literal: thing}
    nested: {literal: {a: "{{thing}}"}}
    number: 3
    nothing: null
""",
        "inputs: [{name: list, type: array}]",
    )
    assert step.inputs == {
        "path": Ref("inputs.list"),
        "item": Ref("thing"),
        "field": Ref("thing.name"),
        "index": Ref("index"),
        "sole": Ref("thing"),
        "text": Template("a {{thing}}"),
        "word": Constant("feedback"),
        "words": Constant("steps to take"),
        "escaped": Template("\\{{x}}"),
        "literal": Constant("thing"),
        "nested": Constant({"a": "{{thing}}"}),
        "number": Constant(3),
        "nothing": Constant(None),
    }


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('"{{steps.a.output}}"', Ref("steps.a.output")),
        ("steps.a.output", Ref("steps.a.output")),
        ('"it says {{steps.a.output}}"', Template("it says {{steps.a.output}}")),
        ("done", Template("done")),
    ],
)
def test_an_output_is_a_reference_when_it_is_one_path_and_text_otherwise(output: str, expected: object):
    assert plan_of(f"name: t\nsteps: [{{id: a, prompt: x}}]\noutput: {output}\n").output == expected


def test_the_item_is_called_what_as_says_and_nothing_else():
    compiled = compile_text(
        "name: t\nsteps:\n- {id: a, for_each: '[1]', as: n, prompt: '{{item}}', inputs: {x: item, y: n}}\n"
    )
    assert codes(compiled) == ["recipe.bad_template", "recipe.bad_template"]
    assert all('"n"' in diagnostic.help for diagnostic in compiled.report.diagnostics)


def test_names_of_maps_and_loops_are_seen_by_everything_inside():
    plan = plan_of(
        """
name: t
inputs: [{name: list, type: array}]
steps:
- id: g
  for_each: inputs.list
  repeat: {until: 'output.exists(one, one == "ok")'}
  steps:
    - id: h
      for_each: item.parts
      as: part
      steps:
        - id: a
          when: iteration > 1 && index == 0 && part != item.first
          agent: worker
          prompt: "{{item}} {{part}} {{index}} {{iteration}} {{feedback}}"
          write_set: ["{{item}}/{{part}}/{{index}}/**"]
"""
    )
    inner = plan.steps[0]
    for _ in range(2):
        assert isinstance(inner.action, GroupAction)
        inner = inner.action.steps[0]
    assert inner.when == "iteration > 1 && index == 0 && part != item.first"
    assert inner.write_set == ("{{item}}/{{part}}/{{index}}/**",)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("when: iteration > 1", "recipe.bad_expression"),
        ("for_each: item", "recipe.bad_expression"),
        ("write_set: ['{{iteration}}/**']", "recipe.bad_template"),
        ("when: output == 1", "recipe.bad_expression"),
    ],
)
def test_names_exist_only_where_they_mean_something(field: str, code: str):
    extra = "" if field.startswith("for_each") else ", for_each: '[1]'"
    text = f"name: t\nsteps:\n- {{id: a, prompt: x, {field}{extra}, repeat: {{until: 'true'}}}}\n"
    assert codes(compile_text(text)) == [code]


def test_inputs_with_a_dash_are_written_with_an_underscore_in_expressions():
    compiled = compile_text(
        "name: t\ninputs: [{name: dry-run, type: boolean}]\n"
        "steps:\n- {id: a, when: inputs.dry_run, prompt: x}\n"
    )
    assert codes(compiled) == []


def test_a_step_with_a_dash_read_as_a_minus_is_explained():
    compiled = compile_text(
        "name: t\nsteps:\n- {id: a-b, prompt: x}\n"
        "- {id: c, depends_on: [a-b], when: steps.a-b.status == 'x', prompt: y}\n"
    )
    (diagnostic,) = compiled.report.diagnostics
    assert diagnostic.code == "recipe.bad_expression"
    assert "a_b" in diagnostic.message


# -- postures and workspaces ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "posture", "mode", "write_set"),
    [
        ("agent: explorer, prompt: x", "read_only", "shared", ()),
        ("agent: explorer, prompt: x, workspace_mode: isolated", "read_only", "isolated", ()),
        ("agent: worker, prompt: x", "writer", "isolated", EVERYTHING),
        ("agent: worker, prompt: x, write_set: ['src/**']", "writer", "isolated", ("src/**",)),
        ("agent: worker, prompt: x, write_set: []", "read_only", "shared", ()),
        ("agent: worker, prompt: x, posture: read_only", "read_only", "shared", ()),
        ("agent: worker, prompt: x, posture: writer, workspace_mode: shared", "writer", "shared", EVERYTHING),
        ("prompt: x", "writer", "isolated", EVERYTHING),
        ("run: [ls]", "read_only", "isolated", ()),
        ("run: [ls], workspace_mode: shared", "read_only", "shared", ()),
        ("run: [ls], write_set: ['a/*']", "writer", "isolated", ("a/*",)),
        ("run: [ls], write_set: ['a/*'], workspace_mode: shared", "writer", "shared", ("a/*",)),
        ("handler: prepare_data", "read_only", "shared", ()),
        ("handler: prepare_data, write_set: ['a/*']", "writer", "shared", ("a/*",)),
    ],
)
def test_postures_follow_from_role_and_sets(step: str, posture: str, mode: str, write_set: tuple[str, ...]):
    found = only_step(f"- {{id: a, {step}}}")
    assert (found.posture, found.workspace_mode, found.write_set) == (posture, mode, write_set)


@pytest.mark.parametrize(
    "step",
    [
        "run: [ls], posture: writer",
        "run: [ls], write_set: ['a/*'], posture: read_only",
        "agent: worker, prompt: x, workspace_mode: shared, merge: auto",
        "run: [ls], on_conflict: fail",
        "approve: Ship?, posture: read_only",
        "workflow: twice, write_set: ['a/*']",
        "run: [ls], inputs: {a: 1}",
        "approve: Ship?, outputs: [decision]",
        "workflow: twice, retry: {attempts: 2}",
        "workflow: twice, cache: true",
        "agent: explorer, prompt: x, max_items: 3",
    ],
)
def test_keys_that_contradict_a_step_are_refused(step: str):
    found = codes(compile_text(f"name: t\nsteps:\n- {{id: a, {step}}}\n"))
    assert [code for code in found if code != "recipe.shadowed"] == ["recipe.conflicting_keys"]


def test_read_only_around_a_group_narrows_everything_inside():
    action = only_step(
        "- id: g\n  posture: read_only\n  steps:\n    - {id: a, agent: worker, prompt: x}\n"
        "    - {id: h, steps: [{id: b, agent: worker, prompt: x}], depends_on: [a]}"
    ).action
    assert isinstance(action, GroupAction)
    assert [step.posture for step in action.steps] == ["read_only", "read_only"]


def test_a_group_writes_when_something_inside_does():
    step = only_step("- id: g\n  steps:\n    - {id: a, agent: worker, prompt: x}")
    assert step.posture == "writer"
    assert step.write_set == ()


# -- defaults, limits, inputs --------------------------------------------------------------------------


def test_defaults_reach_steps_that_do_not_say():
    steps = steps_of(
        """
- {id: a, prompt: x}
- {id: b, agent: worker, model: large, timeout: 1s, retry: {attempts: 1}, prompt: x, on_failure: skip}
- {id: c, approve: Ship?}
- {id: d, run: [ls]}
""",
        "defaults: {agent: explorer@1, model: small, timeout_ms: 9, retry: {attempts: 5}}\non_failure: stop",
    )
    assert (
        steps["a"].action
        == AgentBody(agent="explorer", agent_version="1", prompt="x", model="small").action()
    )
    assert (steps["a"].timeout_ms, steps["a"].retry, steps["a"].on_failure) == (
        9,
        RetryPolicy(attempts=5),
        "stop",
    )
    assert read_body(AgentBody, steps["b"]) == AgentBody(agent="worker", prompt="x", model="large")
    assert (steps["b"].timeout_ms, steps["b"].retry, steps["b"].on_failure) == (
        1000,
        RetryPolicy(attempts=1),
        "skip",
    )
    assert (steps["c"].timeout_ms, steps["c"].retry) == (None, RetryPolicy(attempts=1))
    assert (steps["d"].timeout_ms, steps["d"].retry) == (9, RetryPolicy(attempts=5))


@pytest.mark.parametrize(
    ("usd", "micro_usd"),
    [("0.1", 100_000), ("3", 3_000_000), ("0x10", 16_000_000), ("1e-9", 1), ("2.5e1", 25_000_000)],
)
def test_money_is_counted_exactly(usd: str, micro_usd: int):
    plan = plan_of(f"name: t\nlimits: {{budget: {{usd: {usd}}}}}\nsteps:\n- {{id: a, prompt: x}}\n")
    assert plan.limits.budget.micro_usd == micro_usd


@pytest.mark.parametrize("key", ["timeout", "max_steps"])
@pytest.mark.parametrize("number", [".inf", ".nan", "1e400"])
def test_a_number_that_is_none_is_one_mistake(key: str, number: str):
    text = f"name: r\nlimits: {{{key}: {number}}}\nsteps: [{{id: a, prompt: x}}]\n"
    assert codes(compile_text(text)) == ["recipe.bad_value"]


@pytest.mark.parametrize("usd", [".nan", ".inf", "-.inf", "1e400"])
def test_money_must_be_a_number_one_can_spend(usd: str):
    text = f"name: t\nlimits: {{budget: {{usd: {usd}}}}}\nsteps:\n- {{id: a, prompt: x}}\n"
    assert not compile_text(text).report.ok


def test_configuration_raises_the_ceilings():
    text = b"name: t\nlimits: {max_concurrency: 1024, max_agents: 9999}\nsteps:\n- {id: a, prompt: x}\n"
    around = surroundings()
    raised = CompileContext(
        around.roles, around.is_handler, around.handler_names, around.library, Ceilings(1024, 100_000)
    )
    assert compile_recipe(text, "t.yaml", raised).report.ok
    assert codes(compile_recipe(text, "t.yaml", around)) == ["recipe.limit", "recipe.limit"]


def test_a_thousand_steps_are_enough_unless_the_recipe_says_more():
    body = "".join(f"- {{id: s{i}, prompt: x}}\n" for i in range(1_001))
    (diagnostic,) = compile_text(f"name: t\nsteps:\n{body}").report.diagnostics
    assert (diagnostic.code, diagnostic.range.start.line) == ("recipe.limit", 1_003)
    assert compile_text(f"name: t\nlimits: {{max_steps: 1001}}\nsteps:\n{body}").report.ok


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("grep -n 'two words' {{inputs.x}}", ("grep", "-n", "two words", "{{inputs.x}}")),
        (
            "echo {{ inputs.x }}-{{inputs.x}} '{{inputs.x}} y'",
            ("echo", "{{ inputs.x }}-{{inputs.x}}", "{{inputs.x}} y"),
        ),
        ("echo \\\\{{inputs.x}} a\\\\ b", ("echo", "\\{{inputs.x}}", "a b")),
        ("echo \U000f0000 {{inputs.x}}", ("echo", "\U000f0000", "{{inputs.x}}")),
    ],
)
def test_text_is_split_into_arguments_and_holes_stay_whole(run: str, expected: tuple[str, ...]):
    step = only_step(f'- {{id: a, run: "{run}", env: {{X: "{{{{inputs.x}}}}"}}}}', "inputs: [{name: x}]")
    assert read_body(CommandBody, step).run == expected


@pytest.mark.parametrize(("top", "own"), [("", ", on_failure: inline"), ("on_failure: inline", "")])
def test_a_map_that_keeps_failed_items_may_hold_an_error_in_every_place(top: str, own: str):
    steps = (
        f"  - {{id: mi, agent: explorer, prompt: x, for_each: '[1, 2]'{own}}}\n"
        '  - {id: b, agent: explorer, depends_on: [mi], prompt: "{{steps.mi.output[0].error.message}}"}\n'
    )
    assert prompt_of(steps_of(steps, top)["b"]) == "{{steps.mi.output[0].error.message}}"
    assert codes(compile_text(f"name: t\n{top}\nsteps:\n{steps}".replace("output[0]", "output"))) == [
        "recipe.bad_template"
    ]


def test_a_map_that_fails_with_its_items_gives_a_list_of_texts():
    steps = (
        "  - {id: mi, agent: explorer, prompt: x, for_each: '[1, 2]'}\n"
        '  - {id: b, agent: explorer, depends_on: [mi], prompt: "{{steps.mi.output[0].error.message}}"}\n'
    )
    assert codes(compile_text(f"name: t\nsteps:\n{steps}")) == ["recipe.bad_template"]
