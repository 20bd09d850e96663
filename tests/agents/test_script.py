"""Scripts: which answer a step gets, and what is said about a file that cannot be used."""

import pytest

from fanfold.agents.script import FORMAT, Answer, Script, ScriptedCall
from fanfold.errors import AuthorError
from fanfold.kernel.events import FAILURE_CLASSES
from tests.work import count_calls

EXAMPLE = """\
default: "OK from {{step}}"
steps:
  gather: three sources
  angles: {output: "a, b, c", delay_ms: 50, usage: {input_tokens: 10, output_tokens: 5}}
  brief:
    - {fail: {class: transport, message: connection reset}}
    - {output: {title: x}}
  "per_package[1]/confirm": {output: done, writes: {"src/a.py": "x = 1\\n"}, deletes: ["src/b.py"]}
  fix: {output: ok, tool_calls: [{tool: read_file, args: {path: README.md}}]}
"""


def answer(script: str, path: str, attempt: int = 1) -> Answer:
    found = Script.load(script, "script.yaml").answer(path, attempt)
    assert found is not None
    return found


def refusal(script: str | bytes) -> AuthorError:
    with pytest.raises(AuthorError) as caught:
        Script.load(script, "script.yaml")
    return caught.value


def test_text_is_what_the_agent_says():
    assert answer(EXAMPLE, "gather").output == "three sources"


def test_the_default_answers_for_every_other_step_and_names_it():
    assert answer(EXAMPLE, "kids[0]/up").output == "OK from kids[0]/up"


def test_the_step_s_name_is_filled_in_everywhere_in_a_value_and_nothing_else_is():
    found = answer("default: {output: {a: ['{{ step }}'], b: '{{inputs.x}}'}}", "x")
    assert found.output == {"a": ["x"], "b": "{{inputs.x}}"}


def test_without_a_default_a_step_that_is_not_named_has_no_answer():
    assert Script.load("steps: {a: b}", "s").answer("c", 1) is None


def test_delay_and_usage_are_read():
    found = answer(EXAMPLE, "angles")
    assert (found.output, found.delay_ms) == ("a, b, c", 50)
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.micro_usd) == (10, 5, 0)


def test_cost_is_given_in_dollars():
    assert answer("steps: {a: {output: b, usage: {cost_usd: 0.25}}}", "a").usage.micro_usd == 250_000


def test_each_attempt_has_its_entry_and_the_last_repeats():
    failure = answer(EXAMPLE, "brief").fail
    assert failure is not None
    assert (failure.kind, failure.message, failure.retryable) == ("transport", "connection reset", True)
    assert [answer(EXAMPLE, "brief", attempt).output for attempt in (2, 3, 9)] == [{"title": "x"}] * 3


def test_writes_and_deletes_become_tool_calls_behind_those_asked_for():
    found = answer("steps: {a: {writes: {f: t}, deletes: [g], tool_calls: [{tool: list_files}]}}", "a")
    assert found.calls == (
        ScriptedCall("list_files", {}),
        ScriptedCall("write_file", {"path": "f", "content": "t"}),
        ScriptedCall("delete_file", {"path": "g"}),
    )


def test_an_answer_that_only_acts_speaks_by_default():
    assert answer("default: hello\nsteps: {a: {delay_ms: 1}}", "a").output == "hello"
    assert answer("steps: {a: {delay_ms: 1}}", "a").output == ""


@pytest.mark.parametrize("value", ["1", "true", "null", "1.5", "{title: x, tags: [a]}", "{}"])
def test_any_other_value_is_the_output_itself(value):
    import json

    import yaml

    assert answer(f"steps: {{a: {value}}}", "a").output == yaml.safe_load(value)
    assert json.dumps(answer(f"steps: {{a: {value}}}", "a").output)


def test_words_that_old_yaml_takes_for_booleans_are_text():
    assert answer("steps: {a: yes, b: on}", "a").output == "yes"


def test_json_is_a_script_too():
    text = '{"default": "\\ud83d\\ude00", "steps": {"a": {"output": [1, 2]}}}'
    assert answer(text, "a").output == [1, 2]
    assert answer(text, "b").output == "😀"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pages[1]/check", "exact"),
        ("pages[2]/check", "any page"),
        ("pages[12]/check", "any page"),
        ("heal#3/fix", "any round"),
        ("grid[0]/cell[1]", "row zero"),
        ("grid[1]/cell[1]", "column one"),
        ("grid[2]/cell[2]", "any cell"),
        ("pages/check", "default"),
        ("pages[1]/checks", "default"),
        ("heal[3]/fix", "default"),
    ],
)
def test_the_most_specific_pattern_answers(path, expected):
    script = """
default: default
steps:
  "grid[*]/cell[*]": any cell
  "grid[*]/cell[1]": column one
  "grid[0]/cell[*]": row zero
  "pages[*]/check": any page
  "pages[1]/check": exact
  "heal#*/fix": any round
"""
    assert answer(script, path).output == expected


def test_the_hint_for_a_missing_answer_names_the_path_and_the_pattern_that_would_do():
    script = Script.load("steps: {audit: x}", "s")
    assert '"audit[3]"' in script.hint("audit[3]")
    assert '"audit[*]" would' in script.hint("audit[3]")


@pytest.mark.parametrize("kind", FAILURE_CLASSES)
def test_every_class_of_failure_can_be_scripted(kind):
    failure = answer(f"steps: {{a: {{fail: {{class: {kind}}}}}}}", "a").fail
    assert failure is not None
    assert failure.kind == kind


@pytest.mark.parametrize(
    ("script", "code", "place", "hint"),
    [
        ("", "script.syntax", (1, 1), "begin with default: or steps:"),
        ("just text", "script.bad_type", (1, 1), "write `default: an answer`"),
        ("default: x\nstep: {}", "script.unknown_key", (2, 1), '"steps"'),
        ("steps: [a]", "script.bad_type", (1, 8), ""),
        ("steps:\n  a: {output: x, dealy_ms: 3}", "script.unknown_key", (2, 18), '"delay_ms"'),
        ("steps:\n  a: {output: x, title: y}", "script.unknown_key", (2, 18), "under `output:`"),
        ("steps: {a: {delay_ms: -1}}", "script.limit", (1, 23), ""),
        ("steps: {a: {delay_ms: 1.5}}", "script.bad_type", (1, 23), ""),
        ("steps: {a: {delay_ms: true}}", "script.bad_type", (1, 23), ""),
        ("steps:\n  a:\n    - x\n    - {fail: {class: tired}}", "script.bad_value", (4, 22), "transport"),
        ("steps: {a: {fail: {message: x}}}", "script.missing_key", (1, 20), "transport"),
        ("steps: {a: {fail: {class: agent}, output: x}}", "script.bad_value", (1, 13), "keep one"),
        ("steps: {a: {fail: {class: agent, message: [x]}}}", "script.bad_type", (1, 43), ""),
        ("steps: {a: {fail: {class: agent, retryable: maybe}}}", "script.bad_type", (1, 45), ""),
        ("steps: {a: []}", "script.bad_value", (1, 12), "output:"),
        ("steps: {a: {usage: {tokens: 1}}}", "script.unknown_key", (1, 21), "_tokens"),
        ("steps: {a: {usage: {cost_usd: -1}}}", "script.limit", (1, 31), ""),
        ("steps: {a: {writes: [x]}}", "script.bad_type", (1, 21), ""),
        ("steps: {a: {writes: {f: 1}}}", "script.bad_type", (1, 25), "writes:"),
        ("steps: {a: {deletes: f}}", "script.bad_type", (1, 22), "write [f]"),
        ("steps: {a: {deletes: [1]}}", "script.bad_type", (1, 23), 'write it in quotes: "1"'),
        ("steps: {a: {tool_calls: {}}}", "script.bad_type", (1, 25), ""),
        ("steps: {a: {tool_calls: [{args: {}}]}}", "script.missing_key", (1, 27), "tool_calls:"),
        ("steps: {'a b': x}", "script.bad_path", (1, 9), "*"),
        ("steps: {'a*': x}", "script.bad_path", (1, 9), "*"),
        ("steps: {'a/': x}", "script.bad_path", (1, 9), "log"),
        ("steps: {a: x, a: y}", "script.duplicate_key", (1, 15), "remove one of them"),
        ("steps: {a: &x 1, b: *x}", "script.alias", (1, 12), "repeat the value"),
        ("steps: {a: !!python/object:os.system x}", "script.tag", (1, 12), "remove the tag"),
        ("steps: {a: [}", "script.syntax", (1, 13), ""),
        ("a: b\n---\nc: d", "script.unknown_key", (1, 1), "write `default: an answer`"),
        ("steps: {a: 99999999999999999999}", "script.bad_value", (1, 12), "quote"),
        ("steps: {a: 1e999}", "script.bad_value", (1, 12), "quote"),
        ("steps: {[a]: x}", "script.bad_type", (1, 9), ""),
        ("x: " + "[" * 64, "script.too_deep", (1, 4 + FORMAT.max_depth - 1), ""),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_a_way_out(script, code, place, hint):
    error = refusal(script)
    assert error.code == code
    assert error.message.startswith(f"script.yaml:{place[0]}:{place[1]}: "), error.message
    assert hint in error.hint


def test_a_file_that_is_not_utf_8_is_refused_with_the_line():
    error = refusal(b"default: x\nsteps: {a: \xff}")
    assert (error.code, error.message[:16]) == ("script.encoding", "script.yaml:2:12")


def test_a_file_that_is_too_large_is_refused_unread():
    assert refusal(b"#" * (FORMAT.max_bytes + 1)).code == "script.too_large"


def test_ten_thousand_steps_are_found_without_trying_each():
    def find_all(script: Script, count: int) -> None:
        for i in range(count):
            found = script.answer(f"s{i}[{i}]/x", 1)
            assert found is not None
            assert found.output == str(i)

    def calls(count: int) -> int:
        lines = ["steps:", *(f'  "s{i}[*]/x": "{i}"' for i in range(count))]
        script = Script.load("\n".join(lines), "s")
        return count_calls(find_all, script, count)

    assert calls(10_000) < 15 * calls(1_000)
