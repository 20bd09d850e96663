"""Conditions are checked before a run and evaluated within limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.plan import JSON
from fanfold.language.expression_work import FUNCTIONS
from fanfold.language.expressions import Reference, check_expression, evaluate
from fanfold.language.template import ExpressionError
from tests.work import count_calls, patience

VALUES: dict[str, JSON] = {
    "inputs": {
        "n": 3, "f": 2.5, "s": "x", "none": None, "list": [1, 2, 3], "dash-ed": True,
        "objects": [{"z": 1, "a": 2}, {"z": 5, "a": 6}],
    },
    "steps": {
        "a-b": {"output": {"x": [1, {"y": None}], "title": "T"}, "status": "completed", "error": None},
        "skipped": {"output": None, "status": "skipped", "error": None},
    },
    "item": {"name": "core"},
    "index": 2,
}  # fmt: skip


def check(text: str, wants: Literal["bool", "list"] = "bool") -> tuple[Reference, ...]:
    kinds = {"n": "integer", "s": "string", "list": "array", "flag": "boolean", "any": None}
    return check_expression(text, inputs=kinds, steps=["a-b", "gather"], names=["item", "index"], wants=wants)


def words(text: str) -> list[str]:
    """References as they are written, by their place in the text."""
    return [f"{r.name}:{text[r.start : r.end]}" for r in check(text)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inputs.n == 3", True),
        ("inputs.n == 3.0 && inputs.n > 2.5 && inputs.f > 2", True),
        ("inputs.none == null", True),
        ("has(inputs.missing)", False),
        ("inputs.dash_ed", True),
        ("steps.a_b.status == 'completed'", True),
        ("steps.a_b.title == 'T'", True),
        ("steps.a_b.output.title + steps.a_b.title", "TT"),
        ("steps['a_b'].output.x[1].y == null", True),
        ("steps.skipped.output == null", True),
        ("steps.skipped.title == null", True),
        ("steps.skipped == steps.skipped", True),
        ("{'k': inputs.list}['k'].map(x, x)", [1, 2, 3]),
        ("[1, 2].exists(x, [x].exists(y, y == 2))", True),
        ("steps.a_b.output.title == 'T' && steps.a_b.title == 'T' && steps.a_b.status != ''", True),
        ("has(steps.a_b.nope) || has(steps.a_b.output.nope)", False),
        ("inputs.list.filter(x, x > 1)", [2, 3]),
        ("inputs.list.map(inputs, inputs * 2)", [2, 4, 6]),
        ("item.name.startsWith('co') && index == 2", True),
        ("size(inputs.list) > 2 // enough", True),
        ("[inputs.n]", [3]),
        ("(inputs.n)", 3),
        ("{'a': [1u, 2.0, null]}", {"a": [1, 2.0, None]}),
    ],
)
def test_expressions_give_plain_json(text: str, value: JSON) -> None:
    assert evaluate(text, VALUES) == value


def test_a_path_gives_the_value_itself_and_keeps_the_order_of_fields() -> None:
    assert list(evaluate("inputs.objects[0]", VALUES)) == ["z", "a"]
    assert evaluate("steps.a_b.output.x", VALUES) == [1, {"y": None}]


def test_computed_objects_have_sorted_fields_so_that_runs_agree() -> None:
    assert [list(o) for o in evaluate("inputs.objects.filter(o, o.z > 1)", VALUES)] == [["a", "z"]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("inputs.missing", "missing"),
        ("inputs.none.x", "null"),
        ("inputs.n / 0", "divide by zero"),
        ("inputs.list[9]", "index"),
        ("inputs.n > 'a'", "> cannot be applied to (int64, string)"),
        ("inputs.n * 9223372036854775807", "overflow"),
        ("0.0 / 0.0", "JSON"),
        ("b'bytes'", "JSON"),
        ("duration('1s')", "JSON"),
        ("{1: 2}", "JSON"),
        ("iteration > 1", "is unknown"),
        ("inputs.list[0].map(x, x)", "looped over"),
    ],
)
def test_a_failure_at_run_time_states_its_cause(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, VALUES)
    assert says in caught.value.message


@pytest.mark.parametrize("value", [2**70, "\ud800", {"deep": None}])
def test_values_that_cel_cannot_hold_are_errors_not_crashes(value: JSON) -> None:
    if isinstance(value, dict):
        for _ in range(200_000):
            value = [value]
    with pytest.raises(ExpressionError):
        evaluate("[inputs.v]", {"inputs": {"v": value}})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("steps.gahter.output == 'x'", ["steps:gahter"]),
        ("steps['gather'].output == inputs.topic", ["steps:'gather'", "inputs:topic"]),
        ("'steps.no' == \"inputs.no\" || inputs.yes // steps.no", ["inputs:yes"]),
        ("r'\\d' == inputs.a && 'it\\'s steps.no' == ''", ["inputs:a"]),
        ("'''it's steps.no''' == inputs.a", ["inputs:a"]),
        ("item.steps.no == item.inputs", []),
        ("inputs.list.exists(steps, steps.no == 1)", ["inputs:list"]),
        ("inputs.list.exists(x, x == steps.a_b.output)", ["inputs:list", "steps:a_b"]),
        ("inputs.a.all(inputs, inputs.b) && inputs.c", ["inputs:a", "inputs:c"]),
        ("has(steps.a_b.error)", ["steps:a_b"]),
        ("[steps.a_b.output, {'k': inputs.n}].size() > 0", ["steps:a_b", "inputs:n"]),
        ("steps.a_b.output.items.map(x, x.inputs).size() > 0", ["steps:a_b"]),
        ("inputs.list[inputs.n] == 1", ["inputs:list", "inputs:n"]),
        ("!inputs.a\n && -inputs.b < 1", ["inputs:a", "inputs:b"]),
        (".inputs.a", ["inputs:a"]),
    ],
)
def test_references_are_found_and_nothing_else_is_taken_for_one(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_a_reference_carries_the_path_behind_its_key() -> None:
    (reference,) = check("steps.a_b.output.items[0]['k'].size() > 1")
    assert (reference.key, reference.parts) == ("a_b", ("output", "items", 0, "k"))


@pytest.mark.parametrize(
    ("text", "under", "says"),
    [
        ("gahter.output == 'x'", "gahter", "is unknown"),
        ("'é' == stesp.x", "stesp", 'did you mean "steps"'),
        ("inputs.list.exists(x, y > 2)", "y", "is unknown"),
        ("steps.a-b.output == 1", "a-b", '"a_b"'),
        ("inputs.n +", "", "ends too early"),
        ("inputs.n == ) 3", ")", "not possible"),
        ("inputs.n == 'open", "'", "cannot be read"),
        ("inputs.s.lowerascii() == 'x'", "lowerascii", 'did you mean "lowerAscii"'),
        ("inputs.s.frobnicate() == 'x'", "frobnicate", "there are all, bool"),
        ("foo(1)", "foo", "no function"),
        ("\n\n  foo.bar", "foo", "is unknown"),
        ("1 + 'a' == 2", "+", "int, string"),
        ("size(steps) > 1", "steps", "name the step"),
        ("steps[inputs.s].output", "steps", "name the step"),
        ("inputs.exists(x, true)", "inputs", "name the input"),
        ("   ", "   ", "empty"),
        ("true " + "|| true " * 600, None, "4,096"),
        ("(" * 50 + "true" + ")" * 50, None, "deep"),
        ("'\ud800' == ''", None, "Unicode"),
        ("size(inputs.s) == '1'", "==", "a number and text can never be equal"),
        ("size(inputs.s) > '1'", ">", "a number and text can never be compared"),
        ("inputs.s.lower() == 'x'", "lower", 'did you mean "lowerAscii"? there are all, bool'),
        ("inputs.s = 'x'", "=", 'write "=="'),
    ],
)
def test_mistakes_are_found_before_a_run_at_their_place(text: str, under: str | None, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        check(text)
    assert says in f"{caught.value.message} {caught.value.hint}"
    if under is not None:
        assert text[caught.value.position : caught.value.end] == under


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        ("'text'", "bool"), ("inputs.n + 1", "bool"), ("[true]", "bool"), ("{}", "bool"), ("null", "bool"),
        ("inputs.s", "bool"), ("inputs.list", "bool"), ("true", "list"), ("'a'", "list"),
        ("inputs.n", "list"), ("inputs.flag", "list"), ("size(inputs.list)", "list"),
    ],
)  # fmt: skip
def test_a_type_that_is_certainly_wrong_is_refused(text: str, wants: Literal["bool", "list"]) -> None:
    with pytest.raises(ExpressionError, match="where"):
        check(text, wants)


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        ("inputs.any", "bool"), ("inputs.flag", "bool"), ("steps.a_b.output", "bool"), ("item", "bool"),
        ("inputs.any", "list"), ("inputs.list", "list"), ("[1]", "list"), ("inputs.s == null", "bool"),
        ("inputs.list.map(x, x)", "list"), ("item.x ? [1] : []", "list"), ("type(inputs.n) == int", "bool"),
    ],
)  # fmt: skip
def test_checks_that_depend_on_values_happen_at_run_time(text: str, wants: Literal["bool", "list"]) -> None:
    check(text, wants)


def doubling(levels: int, width: int) -> str:
    text, name = "", "inputs.s"
    for letter in "abcdefghij"[:levels]:
        text += f"[{'+'.join([name] * width)}].map({letter}, "
        name = letter
    return f"{text}{name}.size(){')' * levels}"


def sharing(levels: int, width: int) -> str:
    text, name = "", "1"
    for letter in "abcdefghij"[:levels]:
        text += f"[[{','.join([name] * width)}]].map({letter}, "
        name = letter
    return f"{text}{name}{')' * levels}"


TOO_MUCH = [
    doubling(8, 10),
    sharing(4, 50),
    f"{sharing(4, 50)} == {sharing(4, 50)}",
    "inputs.many.map(a, inputs.many.map(b, inputs.many.map(c, a + b + c)))",
    "inputs.many.filter(a, a in inputs.many)",
    "inputs.many.map(a, a + 1)",
    "inputs.some.map(a, inputs.big + inputs.big)",
    "inputs.some.exists(a, inputs.big.matches('(x+x+)+y'))",
    "[inputs].map(i, 1)",
]
TOO_MUCH_OVER = {
    "inputs": {"s": "x" * 1_000, "big": "x" * 1_000_000, "many": list(range(10_000)), "some": [1] * 1_000}
}


@pytest.mark.parametrize("text", TOO_MUCH)
def test_expressions_that_would_take_too_much_are_refused(text: str) -> None:
    with patience(), pytest.raises(ExpressionError):
        evaluate(text, TOO_MUCH_OVER)


@pytest.mark.parametrize(
    "text",
    [
        "inputs.files.map(f, 'src/' + f)",
        "inputs.files.filter(f, f in inputs.files)",
        "(inputs.files + inputs.files).filter(f, f.endsWith('.py'))",
        "inputs.objects.filter(o, inputs.others.exists(p, p.id == o.id))",
        "inputs.objects.filter(o, o.tags.exists(t, t == 'a')).map(o, o.id)",
        "inputs.huge == inputs.huge ? [inputs.huge.size()] : []",
    ],
)
def test_expressions_that_people_write_stay_within_the_limits(text: str) -> None:
    objects = [{"id": i, "text": "x" * 2_000, "tags": ["a", "b"]} for i in range(90)]
    files = [f"packages/core/module_{i}.py" for i in range(1_000)]
    huge = "x" * 1_000_000
    values = {"inputs": {"files": files, "objects": objects, "others": objects, "huge": huge}}
    assert evaluate(text, values)


def test_too_many_rounds_are_refused_even_when_each_is_cheap() -> None:
    values = {"inputs": {"some": list(range(300))}}
    with pytest.raises(ExpressionError, match="10,000 times"):
        evaluate("inputs.some.all(a, inputs.some.all(b, a + b >= 0))", values)


def test_a_result_is_not_larger_than_its_limit() -> None:
    with pytest.raises(ExpressionError, match="100,000 values"):
        evaluate("[inputs.some, inputs.some]", {"inputs": {"some": [0] * 60_000}})


def test_long_lists_pass_through_untouched() -> None:
    many = [{"i": i} for i in range(100_000)]
    assert evaluate("inputs.many", {"inputs": {"many": many}}) is many


def test_the_two_hundredth_expression_is_checked_like_the_second() -> None:
    def check_one(i: int) -> None:
        check(f"steps.step_{i}.output.score > {i} && inputs.n < 5")

    check_one(0)
    calls = [count_calls(check_one, i) for i in range(1, 200)]
    assert max(calls) < 2 * min(calls)


def failure(run: Callable[[], object]) -> ExpressionError | None:
    try:
        run()
    except ExpressionError as error:
        return error
    return None


@given(st.text(alphabet="inputs.steps[]()'\"{}<>=!&|+- ax1,:?\n/`r", max_size=40))
def test_any_text_is_an_expression_or_an_error_with_a_place(text: str) -> None:
    for error in (failure(lambda: check(text)), failure(lambda: evaluate(text, VALUES))):
        if error is not None:
            assert 0 <= error.position < error.end <= len(text) + 1
            assert error.message


PRINTED = "a.py\n\nb.txt\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lines(item)", ["a.py", "", "b.txt"]),
        ("lines(item).filter(l, l != '').map(l, l.replace('.', '_'))", ["a_py", "b_txt"]),
        (r"item.split('\n').size()", 4),
        ("json('{\"files\": [1, 2.5, null]}').files", [1, 2.5, None]),
        ("json('[9223372036854775807, 1e300]')", [9223372036854775807, 1e300]),
        ("['a', 'b'].join(', ')", "a, b"),
        ("'  x '.trim().upperAscii()", "X"),
        ("'%s-%d'.format(['a', 3])", "a-3"),
        ("strings.quote('a\"b')", '"a\\"b"'),
        ("[3, 1, 2].sort().reverse()", [3, 2, 1]),
        ("[{'n': 2}, {'n': 1}].sortBy('n').map(e, e.n)", [1, 2]),
        ("[1, 1.0, 'a', 'a', [1], [1.0]].distinct()", [1, "a", [1]]),
        ("[1, [2, [3]]].flatten()", [1, 2, [3]]),
        ("[1, [2, [3]]].flatten(2)", [1, 2, 3]),
        ("['a', 'b', 'c'].slice(1, 3)", ["b", "c"]),
        ("lists.range(3)", [0, 1, 2]),
        ("'abc'.reverse()", "cba"),
        ("math.greatest(inputs.list)", 3),
    ],
)
def test_functions_take_texts_lists_and_numbers_apart(text: str, value: JSON) -> None:
    assert evaluate(text, VALUES | {"item": PRINTED}) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("json('{')", "the text is not JSON"),
        ("json('[NaN]')", "NaN is not a number"),
        ("json('[12345678901234567891]')", "an integer of more than 64 bits"),
        ("json('-9223372036854775809')", "an integer of more than 64 bits"),
        ("json('[1e400]')", "the text is not JSON: inf"),
        ("json('" + "1" * 4_000 + "')", "an integer of more than 64 bits"),
        ("json(item)", "nests more than"),
        ("[1].slice(0, 2)", "outside a list of 1"),
        ("[1, 'a'].sort()", "can be sorted"),
        ("[{'a': 1}].sortBy('b')", "all have the field"),
        ("lists.range(100000)", "10,000"),
        ("[1].flatten(0)", "at least 1"),
        ("item" + ".replace('[', '[[[[[[[[[[')" * 9, "too many values"),
        ("lists.range(5000).map(i, item).map(i, i.replace('[', item))", "too many values"),
        ("[item, item].join(item).replace('[', item)", "too many values"),
    ],
)
def test_functions_refuse_what_they_cannot_or_may_not_do(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, {"item": "[" * 5_000})
    assert says in caught.value.message


def test_the_lines_of_what_a_program_printed_may_be_many() -> None:
    printed = "\n".join(f"src/package/module_{i}.py" for i in range(3_000))
    files = evaluate(
        "lines(steps.a.output).map(f, f.replace('src/', ''))", {"steps": {"a": {"output": printed}}}
    )
    assert files == [f"package/module_{i}.py" for i in range(3_000)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lists.range(inputs.n).map(i, 'part ' + string(i))", [f"part {i}" for i in range(300)]),
        ("lists.range(size(item)).map(i, item[i].name)", [f"m{i}.py" for i in range(300)]),
        (
            "lists.range((size(item) + 99) / 100).map(i, item.slice(i * 100, i * 100 + 100).size())",
            [100, 100, 100],
        ),
        ("item.filter(o, o.big).map(o, o.name).join(', ')", ", ".join(f"m{i}.py" for i in range(0, 300, 2))),
    ],
)
def test_counting_and_joining_a_few_hundred_items_is_little_work(text: str, value: JSON) -> None:
    items = [{"name": f"m{i}.py", "big": i % 2 == 0, "about": "words " * 20} for i in range(300)]
    assert evaluate(text, {"inputs": {"n": 300}, "item": items}) == value


@pytest.mark.parametrize(
    "text",
    [
        "lists.range(inputs.n).map(i, item)",
        "lists.range(inputs.n).map(i, lists.range(i)).size()",
        "lists.range(size(lists.range(inputs.n))).map(i, i)",
        "lists.range(inputs.n).map(i, 'x').join(item)",
    ],
)
def test_a_range_that_an_input_makes_long_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, {"inputs": {"n": 10_000}, "item": "x" * 5_000})
    assert "too many values" in caught.value.message


def test_every_function_of_the_table_is_one_that_the_library_knows() -> None:
    for function in FUNCTIONS:
        head, _, arguments = function.call.partition("(")
        named = [f"inputs.{word}" for word in arguments.strip("()").split(", ") if word]
        if "x" in arguments.split(", "):
            named[0] = "x"  # what a loop binds
        applied = head if head == function.name else f"inputs.{head}"
        text = f"[{applied}({', '.join(named)})]"
        assert check_expression(text, inputs={}, steps=(), names=(), wants="list") is not None, text
