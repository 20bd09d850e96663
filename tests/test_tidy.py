"""The house rules hold for every file, and each rule is able to fail."""

import ast
import json
from functools import cache

import pytest

from tools import ratchet, set_order, tidy
from tools.tidy import Source

KERNEL = "src/fanfold/kernel/example.py"
MODULE = "src/fanfold/example.py"


def findings(rule: tidy.Rule, path: str, text: str) -> list[int]:
    return [finding.line for finding in rule(Source(path, text))]


@cache
def files() -> list[Source]:
    """Every file, read and parsed once for all rules."""
    return list(tidy.sources())


@pytest.mark.full
@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: tidy.Rule):
    broken = [str(finding) for source in files() for finding in rule(source)]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.full
def test_lines_and_dialect_of_each_package_only_fall():
    above = ratchet.exceeded(ratchet.counts(), json.loads(ratchet.RECORD.read_text()))
    assert not above, "\n".join(above)


def test_a_package_that_grew_or_speaks_dialect_is_named(tmp_path):
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "new.py").write_text('"""Nobody is told."""\n\n\nclass Kept: ...\n')
    counts = ratchet.counts(tmp_path)
    assert counts["kernel"] | {"goes on": 0} == counts["kernel"]
    record = {"kernel": {"files": 1, "lines": 3, "nobody": 1}}
    assert ratchet.exceeded(counts, record) == [
        "kernel: 4 lines, recorded 3",
        "kernel: 1 told, recorded 0",
        "kernel: 1 participles, recorded 0",
    ]


@pytest.mark.full
def test_the_rules_see_this_repository():
    paths = {source.path for source in files()}
    assert {"pyproject.toml", "src/fanfold/errors.py", "tests/test_tidy.py"} <= paths
    assert not any(path.startswith(".venv/") for path in paths)


def class_names() -> list[tuple[str, str]]:
    """Every class of the package at the top of a module, and the file that has it."""
    package = [source for source in files() if source.is_python and source.path.startswith("src/")]
    return [
        (node.name, source.path)
        for source in package
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


@pytest.mark.full
def test_no_two_classes_of_the_package_have_one_name():
    places: dict[str, list[str]] = {}
    for name, path in class_names():
        places.setdefault(name, []).append(path)
    assert len(places) > 500
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


LONG_BODY = "    x = 1\n" * tidy.MAX_FUNCTION_LINES

BAD = [
    (tidy.short_file, "src/fanfold/kernel/new.py", "x = 1\n", 1),
    (tidy.short_file, "src/fanfold/agents/models/deep/new.py", "x = 1\n" * tidy.MIN_FILE_LINES, 1),
    (tidy.file_length, MODULE, "x = 1\n" * 801, 801),
    (tidy.file_length, "tools/example.py", "x = 1\n" * 801, 801),
    (tidy.file_length, "tests/test_example.py", "x = 1\n" * 801, 801),
    (tidy.function_length, MODULE, f"x = 1\ndef f():\n{LONG_BODY}", 2),
    (tidy.function_length, MODULE, f"class A:\n  async def f():\n{LONG_BODY}", 2),
    (tidy.module_docstring, MODULE, "x = 1\n", 1),
    (tidy.module_docstring, "src/fanfold/kernel/__init__.py", "", 1),
    (tidy.vague_name, "src/fanfold/utils.py", "", 1),
    (tidy.vague_name, "src/fanfold/core/plan.py", "", 1),
    (tidy.vague_name, "tests/helpers.py", "", 1),
    (tidy.unexplained_silence, MODULE, "\nx = y  # type: ignore\n", 2),
    (tidy.unexplained_silence, MODULE, "x = y  # type: ignore[assignment]\n", 1),
    (tidy.unexplained_silence, MODULE, "x = y  # pyright: ignore[reportX]\n", 1),
    (tidy.unexplained_silence, MODULE, "x = y  # noqa: E501, F401\n", 1),
    (tidy.unexplained_silence, MODULE, "x = y  # noqa\n", 1),
    (tidy.unexplained_silence, MODULE, "x = y  # pragma: no cover\n", 1),
    (tidy.kernel_builtins, KERNEL, "x = 1\nprint(x)\n", 2),
    (tidy.kernel_builtins, KERNEL, "def f(x):\n    return open(x)\n", 2),
    (tidy.kernel_builtins, KERNEL, "def f(xs):\n    return sorted(xs, key=id)\n", 2),
    (tidy.kernel_builtins, KERNEL, "def f(x):\n    return hash('a') + x\n", 2),
    (tidy.kernel_builtins, KERNEL, "class A:\n    id: str\n    def key(self): return id(self)\n", 3),
    *[(tidy.kernel_builtins, KERNEL, f"{name}('x')\n", 1) for name in tidy.BANNED_IN_KERNEL],
    (tidy.kernel_async, KERNEL, "async def f():\n    pass\n", 1),
    (tidy.kernel_libraries, KERNEL, "import yaml\n", 1),
    (tidy.kernel_libraries, KERNEL, "def f():\n    from rich.table import Table\n", 2),
    (tidy.kernel_set_order, KERNEL, "x = {1, 2}\nfor y in x: ...\n", 2),
    (tidy.unfinished, "docs/example.md", "fine\nTO" + "DO: more\n", 2),
    (tidy.unfinished, MODULE, "x = 1  # FIX" + "ME\n", 1),
    (tidy.registry_host, "requirements/dev.txt", "--index-url https://py" + "pi.org/simple\n", 1),
    (tidy.registry_host, "Makefile", "x = https://files.python" + "hosted.org/x\n", 1),
    (tidy.registry_host, "a.json", '"https://registry.npm' + 'js.org/x"\n', 1),
    (tidy.machine_path, "docs/example.md", "see /wo" + "rk/main/x\n", 1),
    (tidy.machine_path, MODULE, "x = '/ro" + "ot/.cache'\n", 1),
    (tidy.machine_path, "a.yaml", "path: /ho" + "me/someone\n", 1),
    (tidy.impatience, "tests/test_x.py", "import asyncio\nasyncio.wait" + "_for(f(x), 20)\n", 2),
    (tidy.impatience, "tests/test_x.py", "x\nasync with asyncio.time" + "out(5.5): ...\n", 2),
    (tidy.impatience, "tests/test_x.py", "subprocess.run(x, time" + "out=60)\n", 1),
    (tidy.impatience, "tests/test_x.py", "process.wa" + "it(120)\n", 1),
    (tidy.impatience, "tests/test_x.py", "until = time.mono" + "tonic() + 10\n", 1),
    (tidy.final_newline, "docs/example.md", "one\ntwo", 2),
]


@pytest.mark.parametrize(("rule", "path", "text", "line"), BAD)
def test_a_rule_catches_what_it_is_for(rule: tidy.Rule, path: str, text: str, line: int):
    assert line in findings(rule, path, text)


def test_every_rule_is_shown_to_fail():
    assert {rule for rule, *_ in BAD} == set(tidy.RULES)


GOOD = [
    (tidy.short_file, "src/fanfold/agents/models/new.py", "x = 1\n" * tidy.MIN_FILE_LINES),
    (tidy.file_length, MODULE, "x = 1\n" * 800),
    (tidy.file_length, "docs/long.md", "x\n" * 2000),
    (tidy.function_length, MODULE, "def f():\n" + "    x = 1\n" * (tidy.MAX_FUNCTION_LINES - 1)),
    (
        tidy.unexplained_silence,
        MODULE,
        "x = y  # type: ignore[assignment]  # the tag is such a word\n",
    ),
    (tidy.unexplained_silence, MODULE, "x = y  # noqa: S310 - only ever the loopback address\n"),
    (tidy.unexplained_silence, MODULE, "x = '# noqa'\n"),
    (tidy.kernel_builtins, KERNEL, "class A:\n    id: str\n    def f(self): return self.id\n"),
    (tidy.kernel_builtins, KERNEL, "def f(id): return id\n"),
    (tidy.kernel_builtins, MODULE, "print(1)\n"),
    (
        tidy.kernel_libraries,
        KERNEL,
        "import re\nfrom msgspec import Struct\nfrom fanfold import x\n",
    ),
    (tidy.machine_path, MODULE, "x = 'docs/home/page'\ny = '/homework'\nz = '~/.fanfold'\n"),
    (tidy.impatience, "tests/test_x.py", "x.wait(timeout=PATIENCE_S)\nasyncio.timeout(0.01)\n"),
    (tidy.impatience, "tests/test_x.py", "x(timeout=1_200)\ny(timeout=3)\n"),
    (tidy.impatience, MODULE, "subprocess.run(x, time" + "out=60)\n"),
    (tidy.final_newline, "a.txt", ""),
]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_rule_leaves_good_code_alone(rule: tidy.Rule, path: str, text: str):
    assert findings(rule, path, text) == []


WALKS = [
    "for x in {1, 2}: ...",
    "for x in set(y): ...",
    "for x in frozenset(y): ...",
    "for x in {z for z in y}: ...",
    "[x for x in {1, 2}]",
    "{x: 1 for x in {1, 2}}",
    "f(x for x in {1, 2})",
    "list({1, 2})",
    "tuple(set(y))",
    "','.join({'a', 'b'})",
    "y.extend({1, 2})",
    "dict.fromkeys({1, 2})",
    "[*{1, 2}]",
    "f(*set(y))",
    "a, b = {1, 2}",
    "f'{ {1, 2} }'",
    "str({1, 2})",
    "next(iter({1, 2}))",
    "enumerate(set(y))",
    "{1, 2}.pop()",
    "def f(): yield from {1, 2}",
    "s = set()\nlist(s)",
    "s: set[str] = g()\nlist(s)",
    "s: 'frozenset[str]' = g()\nlist(s)",
    "s: set[str] | None = g()\nlist(s)",
    "def f(s: set[str]):\n    return list(s)",
    "def f(s: collections.abc.Set[str]):\n    return list(s)",
    "def f(*, s: frozenset[str]):\n    return [x for x in s]",
    "def f() -> set[str]: ...\nlist(f())",
    "class A:\n    ready: set[str]\n    def f(self):\n        for x in self.ready: ...",
    "class A:\n    def __init__(self):\n        self.ready = set()\n    def f(self): list(self.ready)",
    "class A:\n    def __init__(self):\n        self.ready: set[str] = make()\n        list(self.ready)",
    "for x in a.keys() & b.keys(): ...",
    "for x in set(a) - set(b): ...",
    "s = {1}\nfor x in s | t: ...",
    "s = {1}\nfor x in s.union(t): ...",
    "d: dict[str, set[str]] = {}\nlist(d['a'])",
    "d: dict[str, set[str]] = {}\nlist(d.get('a', ()))",
    "d: dict[str, set[str]] = {}\nfor v in d.values():\n    list(v)",
    "d: dict[str, set[str]] = {}\nfor k, v in d.items():\n    list(v)",
    "d = defaultdict(set)\nlist(d['a'])",
    "d: list[set[str]] = []\nlist(d[0])",
    "d: list[set[str]] = []\nf(list(s) for s in d)",
    "if (s := set(y)):\n    list(s)",
    "list(s if c else {1})",
    "a, b = set(), 1\nlist(a)",
    "sorted([list({1, 2})])",
]


@pytest.mark.parametrize("code", WALKS)
def test_walking_a_set_is_found(code: str):
    assert set_order.walks_over_sets(ast.parse(code))


QUESTIONS = [
    "x in {1, 2}",
    "len({1, 2})",
    "sorted({1, 2})",
    "for x in sorted(set(y)): ...",
    "any(x for x in {1, 2})",
    "sum(1 for x in {1, 2})",
    "sorted(f(x) for x in {1, 2})",
    "{x for x in {1, 2}}",
    "s = set()\ns = sorted(s)\nlist(s)",
    "s = set()\ns.add(1)\ns |= {2}\ns.update({3})",
    "s = set()\ns.discard(1)\nd.pop(1)",
    "for x in d.keys(): ...",
    "for x in d | e: ...",
    "d: dict[str, set[str]] = {}\nfor k in d: ...",
    "d: dict[str, set[str]] = {}\nfor k, v in d.items():\n    list(k)",
    "def f(s: list[str]): return list(s)",
    "def f(s: set[str]): ...\ndef g(s: list[str]): return list(s)",
    "class A:\n    ready: dict[str, None]\n    def f(self): return list(self.ready)",
]


@pytest.mark.parametrize("code", QUESTIONS)
def test_asking_a_set_or_walking_something_else_is_fine(code: str):
    assert set_order.walks_over_sets(ast.parse(code)) == []


def test_an_attribute_declared_in_another_module_is_known():
    state = ast.parse("class State:\n    ready: set[str]")
    use = ast.parse("def decide(state): return list(state.ready)")
    assert set_order.walks_over_sets(use) == []
    assert set_order.walks_over_sets(use, set_order.declarations([state, use]))


def test_an_attribute_on_which_modules_disagree_is_left_alone():
    one, other = ast.parse("class A:\n    names: set[str]"), ast.parse("class B:\n    names: list[str]")
    use = ast.parse("def f(b): return list(b.names)")
    assert set_order.walks_over_sets(use, set_order.declarations([one, other, use])) == []
