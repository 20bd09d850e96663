"""Small mistakes, one per line: the code of each, and that no second error follows from it."""

from __future__ import annotations

import pytest

from tests.recipe.known import codes, compile_text

STEP = "name: t\nsteps:\n- {{id: a, {}}}\n"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("prompt: null", "recipe.bad_type"),
        ("prompt: [x]", "recipe.bad_type"),
        ("prompt: ''", "recipe.bad_value"),
        ("prompt: x, when: null", "recipe.bad_type"),
        ("prompt: x, when: {a: 1}", "recipe.bad_type"),
        ("prompt: x, when: [true]", "recipe.bad_type"),
        ("prompt: x, when: ''", "recipe.bad_expression"),
        ("prompt: x, max_turns: 1.5", "recipe.bad_type"),
        ("prompt: x, max_turns: true", "recipe.bad_type"),
        ("prompt: x, cache: yes", "recipe.bad_type"),
        ("prompt: x, timeout: null", "recipe.bad_type"),
        ("prompt: x, timeout: [5s]", "recipe.bad_type"),
        ("prompt: x, timeout: 1.5h", "recipe.bad_duration"),
        ("prompt: x, timeout: true", "recipe.bad_duration"),
        ("prompt: x, timeout: 99999h", "recipe.limit"),
        ("prompt: x, timeout_ms: 0", "recipe.limit"),
        ("prompt: x, timeout_ms: 5s", "recipe.bad_type"),
        ("prompt: x, depends_on: [null]", "recipe.bad_type"),
        ("prompt: x, depends_on: {a: b}", "recipe.bad_type"),
        ("prompt: x, depends_on: ['b c']", "recipe.bad_id"),
        ("prompt: x, outputs: ['a b']", "recipe.bad_value"),
        ("prompt: x, outputs: [a, a]", "recipe.bad_value"),
        ("prompt: x, outputs: [1]", "recipe.bad_type"),
        ("prompt: x, output_schema: text", "recipe.bad_schema"),
        ("prompt: x, output_schema: [1]", "recipe.bad_schema"),
        ("prompt: x, output_schema: {anyOf: [{type: string}, {type: nope}]}", "recipe.bad_schema"),
        ("prompt: x, output_schema: {allOf: [{$ref: other.json}]}", "recipe.bad_schema"),
        ("prompt: x, output_schema: {pattern: '('}", "recipe.bad_schema"),
        ("prompt: x, output_schema: {$schema: 'https://example.com/none'}", "recipe.bad_schema"),
        ("prompt: x, inputs: [a]", "recipe.bad_type"),
        ("prompt: x, inputs: {'a b': 1}", "recipe.bad_value"),
        ("prompt: x, repeat: 3", "recipe.bad_type"),
        ("prompt: x, repeat: {until: 3}", "recipe.bad_type"),
        ("prompt: x, retry: [1]", "recipe.bad_type"),
        ("prompt: x, retry: {attempts: 11}", "recipe.limit"),
        ("prompt: x, retry: {on: timeout}", "recipe.bad_type"),
        ("prompt: x, tools: [1]", "recipe.bad_type"),
        ("prompt: x, write_set: [1]", "recipe.bad_type"),
        ("agent: worker, prompt: x, write_set: ['{{inputs.x']", "recipe.bad_template"),
        ("agent: worker, prompt: x, write_set: ['a/{b']", "recipe.bad_glob"),
        ("agent: worker, prompt: x, write_set: ['']", "recipe.bad_glob"),
        ("prompt: x, as: a-b, for_each: '[1]'", "recipe.bad_value"),
        ("prompt: x, as: int, for_each: '[1]'", "recipe.bad_value"),
        ("prompt: x, type: agnet", "recipe.bad_value"),
        ("prompt: x, agent: explorer@", "recipe.unknown_role"),
        ("prompt: x, agent: worker@1", "recipe.unknown_role"),
        ("prompt: x, posture: readonly", "recipe.bad_value"),
        ("run: []", "recipe.bad_value"),
        ("run: ''", "recipe.bad_value"),
        ("run: ['', x]", "recipe.bad_value"),
        ("run: [[ls]]", "recipe.bad_type"),
        ("run: 5", "recipe.bad_type"),
        ("run: 'ls {{x'", "recipe.bad_template"),
        ("run: [ls], env: [A]", "recipe.bad_type"),
        ("run: [ls], env: {A: [1]}", "recipe.bad_type"),
        ("run: [ls], env: {'A-B': c}", "recipe.bad_value"),
        ("run: [ls], network: 1", "recipe.bad_type"),
        ("approve: Ship?, choices: []", "recipe.bad_value"),
        ("approve: Ship?, choices: [a, a]", "recipe.bad_value"),
        ("approve: Ship?, choices: a", "recipe.bad_type"),
        ("approve: Ship?, default: later", "recipe.bad_value"),
        ("approve: Ship?, choices: 3, default: later", "recipe.bad_type"),
        ("approve: '{{nothing}}'", "recipe.bad_template"),
        ("steps: []", "recipe.bad_value"),
        ("steps: {a: b}", "recipe.bad_type"),
        ("steps: [a]", "recipe.bad_type"),
        ("steps: [{id: b, prompt: x}], output: 3", "recipe.bad_type"),
        ("steps: [{id: b, prompt: x}], output: '{{steps.c.output}}'", "recipe.unknown_step"),
        ("workflow: 3", "recipe.bad_type"),
        ("workflow: ''", "recipe.unknown_workflow"),
    ],
)
def test_a_mistake_in_a_step_is_reported_once(step: str, code: str):
    assert codes(compile_text(STEP.format(step))) == [code]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "recipe.syntax"),
        ("just text\n", "recipe.bad_type"),
        ("name: t\nsteps: []\n", "recipe.bad_value"),
        ("name: t\nphases: []\n", "recipe.bad_value"),
        ("name: t\nphases: [x]\n", "recipe.bad_type"),
        ("name: t\nversion: one\nsteps: [{id: a, prompt: x}]\n", "recipe.bad_type"),
        ("name: t\nmetadata: 3\nsteps: [{id: a, prompt: x}]\n", "recipe.bad_type"),
        ("name: t\ninputs: {topic: 1}\nsteps: [{id: a, prompt: '{{inputs.topic}}'}]\n", "recipe.bad_type"),
        ("name: t\ninputs: [topic]\nsteps: [{id: a, prompt: '{{inputs.topic}}'}]\n", "recipe.bad_type"),
        (
            "name: t\ninputs: [{type: string}]\nsteps: [{id: a, prompt: '{{inputs.topic}}'}]\n",
            "recipe.missing_key",
        ),
        (
            "name: t\ninputs: [{name: x, enum: []}]\nsteps: [{id: a, prompt: '{{inputs.x}}'}]\n",
            "recipe.bad_value",
        ),
        (
            (
                "name: t\ninputs: [{name: x, type: string, enum: [a, 1]}]\n"
                "steps: [{id: a, prompt: '{{inputs.x}}'}]\n"
            ),
            "recipe.bad_type",
        ),
        (
            "name: t\ninputs: [{name: a-b}, {name: a_b}]\nsteps: [{id: a, prompt: '{{inputs.a-b}}'}]\n",
            "recipe.duplicate_id",
        ),
        ("name: t\nlimits: 3\nsteps: [{id: a, prompt: x}]\n", "recipe.bad_type"),
        ("name: t\nlimits: {budget: 3}\nsteps: [{id: a, prompt: x}]\n", "recipe.bad_type"),
        ("name: t\nlimits: {budget: {usd: lots}}\nsteps: [{id: a, prompt: x}]\n", "recipe.bad_type"),
        ("name: t\nlimits: {budget: {usd: -1}}\nsteps: [{id: a, prompt: x}]\n", "recipe.limit"),
        ("name: t\ndefaults: [x]\nsteps: [{id: a, prompt: x}]\n", "recipe.bad_type"),
        ("name: t\nsteps: [{id: a, prompt: x}]\noutput: {r: steps.b.output}\n", "recipe.unknown_step"),
        ("name: t\nsteps: [{id: a, prompt: x}]\noutput: '{{steps.a}}'\n", "recipe.bad_template"),
        ("name: t\nsteps: [{id: a, prompt: x}]\noutput: [x]\n", "recipe.bad_type"),
        ("name: t\nsteps: [{id: a, prompt: x}]\noutput: '{{index}}'\n", "recipe.bad_template"),
        (
            "name: t\nsteps: [{id: a, approve: Ok?}]\noutput: '{{steps.a.output.decison}}'\n",
            "recipe.bad_template",
        ),
        ("name: t\nsteps: [{id: a, approve: Ok?}]\noutput: '{{steps.a.output[0]}}'\n", "recipe.bad_template"),
        (
            "name: t\nsteps: [{id: a, run: [ls]}]\noutput: '{{steps.a.output.stdout}}'\n",
            "recipe.bad_template",
        ),
        (
            (
                "name: t\nsteps: [{id: a, prompt: x}, "
                "{id: b, depends_on: [a], when: steps.a == 'x', prompt: y}]\n"
            ),
            "recipe.bad_expression",
        ),
        (
            (
                "name: t\nsteps: [{id: a, approve: Ok?}, "
                "{id: b, depends_on: [a], when: steps.a.by == 'x', prompt: y}]\n"
            ),
            "recipe.bad_expression",
        ),
        ("name: t\nphases: [{id: p, tasks: []}]\n", "recipe.bad_value"),
        ("name: t\nphases: [{id: p, tasks: {a: b}}]\n", "recipe.bad_type"),
        ("name: t\nphases: [{id: p, tasks: [{id: a, prompt: x}], verify: tests}]\n", "recipe.bad_type"),
    ],
)
def test_a_mistake_elsewhere_is_reported_once(text: str, code: str):
    assert codes(compile_text(text)) == [code]


@pytest.mark.parametrize(
    "step",
    [
        "prompt: x, when: true",
        "prompt: x, repeat: {until: false}",
        "id: 5",
        "agent: templated",
        "agent: templated, inputs: {}",
        "agent: guide, inputs: {place: Rome}",
        "agent: summarizer, inputs: {a: 1}",
        "prompt: x, output_schema: true",
        "run: [sleep, 1, 2.5, true]",
        "run: [ls], output_schema: {type: object}, outputs: [anything]",
        "approve: Ship?, default: reject, timeout: 1h",
        "prompt: x, retry: {backoff: 0ms}",
        "prompt: x, for_each: '[1, 2].map(n, n + 1)'",
    ],
)
def test_these_are_no_mistakes(step: str):
    text = STEP.format(step) if not step.startswith("id") else f"name: t\nsteps:\n- {{{step}, prompt: x}}\n"
    assert codes(compile_text(text)) == []


def test_a_step_that_says_nothing_lacks_its_id_and_what_it_does():
    assert codes(compile_text("name: t\nsteps:\n- {}\n")) == ["recipe.missing_key", "recipe.missing_key"]


def test_a_step_called_by_a_number_can_be_referred_to():
    text = "name: t\nsteps:\n- {id: 1, prompt: x}\n- {id: 2, depends_on: [1], prompt: '{{steps.1.output}}'}\n"
    assert codes(compile_text(text)) == []


def test_paths_into_what_may_be_anything_are_left_to_the_run():
    text = """
name: t
steps:
- {id: f, handler: prepare_data}
- {id: s, prompt: x, output_schema: {type: object}}
- {id: w, workflow: writing}
- {id: m, for_each: "[1]", handler: prepare_data}
- id: g
  steps: [{id: f, handler: prepare_data}]
- id: h
  steps: [{id: a, approve: Ok?}]
- id: i
  steps: [{id: a, approve: Ok?}]
  output: "{{steps.a.output}}"
- id: use
  depends_on: [f, s, w, m, g, h, i]
  prompt: >-
    {{steps.f.output.a.b[0]}} {{steps.s.output.x}} {{steps.w.output}} {{steps.m.output[0].z}}
    {{steps.g.output.a}} {{steps.h.output.decision}} {{steps.i.output.comment}} {{steps.f.error.code}}
"""
    assert codes(compile_text(text)) == []


def test_a_very_long_word_is_cut_in_messages():
    (diagnostic,) = compile_text(STEP.format(f"prompt: x, on_failure: {'y' * 5_000}")).report.diagnostics
    assert len(diagnostic.message) < 200
