"""Every refusal: the right code at the right word, and nothing else, for recipes kept as files.

The first lines of each file in `bad/` say what is expected, `# expect: <code> <line>:<column>`, and that
is compared with everything that was reported, so a cascade of follow-up errors fails the test too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fanfold.language.diagnostics import render_text
from tests.recipe.known import HERE, compile_file, compile_text

FILES = sorted((HERE / "bad").glob("*.yaml"))
EXPECTED = re.compile(r"# expect: (\S+) (\d+):(\d+)")
CODES = """
    encoding syntax too_large too_deep alias tag duplicate_key unknown_key missing_key conflicting_keys
    bad_type bad_value bad_id duplicate_id unknown_step cycle unknown_role unknown_input missing_input
    bad_template bad_expression bad_glob bad_schema bad_duration limit unknown_workflow workflow_cycle depth
    unknown_handler implied_edge shadowed unused_input unused_step shell_syntax not_evaluated unnamed_field
    unused_key spelling
""".split()
GENERATED = {"recipe.encoding", "recipe.too_large"}
"""Codes whose recipes are built in `test_hostile_recipes`: no editor should touch them."""


def expectations(file: Path) -> list[tuple[str, int, int]]:
    found = []
    for line in file.read_text().splitlines():
        if (match := EXPECTED.fullmatch(line)) is None:
            break
        found.append((match[1], int(match[2]), int(match[3])))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_bad_recipe_is_refused_at_the_word_that_is_wrong(file: Path):
    compiled = compile_file(file)
    shown = render_text(compiled.report.diagnostics, compiled.sources)
    found = [(d.code, d.range.start.line, d.range.start.column) for d in compiled.report.diagnostics]
    assert sorted(found) == sorted(expectations(file)), shown
    only_warnings = all(d.severity == "warning" for d in compiled.report.diagnostics)
    assert (compiled.plan is not None) == only_warnings
    assert all(d.file == str(file) for d in compiled.report.diagnostics)
    assert all(d.message for d in compiled.report.diagnostics)


@pytest.mark.parametrize(
    ("said", "help"),
    [
        ("My Recipe", "write my-recipe"),
        ("Über 9!", "write uber-9"),
        ("日本 v2", "use lower-case letters"),
        ("!!", "use lower-case letters"),
    ],
)
def test_an_unusable_name_gets_a_suggestion_of_a_usable_one(said: str, help: str):
    text = f'name: "{said}"\nsteps: [{{id: a, agent: explorer, prompt: x}}]\n'
    (found,) = compile_text(text).report.diagnostics
    assert found.help.startswith(help)


def test_every_code_of_the_language_has_a_recipe():
    seen = {code for file in FILES for code, _, _ in expectations(file)} | GENERATED
    assert seen == {f"recipe.{code}" for code in CODES}


def test_there_are_enough_of_them():
    assert len(FILES) >= 60
    assert all(expectations(file) for file in FILES)


@pytest.mark.parametrize(
    ("inputs", "code", "help"),
    [
        ("{a: str}", "bad_type", "write {type: string}"),
        ("{a: Int}", "bad_type", "write {type: integer}"),
        ("{a: [string]}", "bad_type", "write {type: array}"),
        ("{a: [x, y]}", "bad_type", "write {default: […]} for a value, or {enum: […]} for one of several"),
        ("{a: true}", "bad_type", "write {default: true}"),
        ("{a: solid-state batteries}", "bad_type", "write {default: solid-state batteries}"),
        ('{a: "x, y: z"}', "bad_type", 'write {default: "x, y: z"}'),
        ("[a]", "bad_type", "write {name: a}"),
        ("[a b]", "bad_type", ""),
        ("[{a: int}]", "unknown_key", "write {name: a, type: integer}"),
        ("[{a: {type: string}}]", "unknown_key", "write {name: a, …}"),
        ("[{nmae: a}]", "unknown_key", 'did you mean "name"?'),
        ("[{type: string}]", "missing_key", ""),
    ],
)
def test_an_input_in_another_form_gets_ours_as_a_suggestion(inputs: str, code: str, help: str):
    report = compile_text(f"name: x\ninputs: {inputs}\nsteps: [{{id: a, prompt: x}}]\n").report
    (found,) = [one for one in report.diagnostics if one.severity == "error"]
    assert (found.code, found.help) == (f"recipe.{code}", help)


@pytest.mark.parametrize(
    ("recipe", "help"),
    [
        ("name: 1.0", 'write "1-0"'),
        ("name: .5", 'write "5"'),
        ("name: 12", 'write it in quotes: "12"'),
        ("name: x\ninputs: [{name: 1}]", "use letters"),
        ("name: x\nsteps: [{id: 1.5, prompt: x}]", "use letters"),
    ],
)
def test_quotes_are_proposed_only_where_they_make_it_right(recipe: str, help: str):
    steps = "" if "steps" in recipe else "steps: [{id: a, prompt: x}]\n"
    report = compile_text(f"{recipe}\n{steps}").report
    (found,) = [one for one in report.diagnostics if one.severity == "error"]
    assert found.code == "recipe.bad_type"
    assert found.help.startswith(help)


JUDGED = """\
name: x
inputs: {n: {type: integer, default: 1}, files: {type: array, default: [1]}, word: {type: string, default: a}}
steps:
  - {id: a, prompt: x, output_schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}}
  - {id: b, depends_on: a, when: '%s', prompt: "{{inputs.n}} {{inputs.files}} {{inputs.word}}"}
"""


@pytest.mark.parametrize(
    ("when", "message", "help"),
    [
        (
            'steps.a.output.ok == "True"',
            "true or false and text can never be equal",
            "write true without quotes",
        ),
        ("steps.a.output.ok is true", 'write "==" instead of "is"', ""),
        ("not steps.a.output.ok", 'write "!" instead of "not"', ""),
        ("inputs.n > 1 && not (inputs.n > 3)", 'write "!" instead of "not"', ""),
        ("inputs.files.length > 3", "inputs.files is a list", "size(inputs.files) says how many it has"),
        ("inputs.word.first == 3", "inputs.word is text and has no parts", ""),
        (
            "${{ steps.a.output.ok }}",
            "'$' cannot be read",
            "write the expression alone, without $ and braces",
        ),
        ("inputs.files | length > 3", "'| ' cannot be read", "there are no filters"),
        ("true if inputs.n > 1 else false", "'if' is not possible here", "write CONDITION ? VALUE : OTHER"),
    ],
)
def test_an_expression_of_another_language_gets_ours_as_a_suggestion(when: str, message: str, help: str):
    report = compile_text(JUDGED % when).report
    (found,) = [one for one in report.diagnostics if one.severity == "error"]
    assert (found.code, found.message) == ("recipe.bad_expression", message)
    assert found.help.startswith(help)
    assert bool(found.help) == bool(help)


@pytest.mark.parametrize(
    "when",
    [
        "inputs.files.size() > 1 && inputs.files.exists(x, x == 1) && inputs.files[0] == 1",
        'inputs.word.contains("x") && inputs.word.size() > 2 && inputs.word.split(",")[0] == "a"',
        "!steps.a.output.ok",
    ],
)
def test_methods_of_lists_and_texts_are_left_alone(when: str):
    assert [one.message for one in compile_text(JUDGED % when).report.diagnostics] == []
