"""Functions: registering handlers, and finding them without running the project."""

from pathlib import Path

import pytest

import fanfold
from fanfold.errors import AuthorError
from fanfold.steps import function_calls as handler_search
from fanfold.steps.function_calls import HandlerSearch, registered

BOOM = "raise SystemExit('imported!')\n"


def test_a_function_registers_under_its_own_name_or_another():
    @fanfold.function
    def prepare_example(x):
        return x

    @fanfold.function("count-example")
    async def count(x):
        return x

    @fanfold.function(name="third-example")
    def third(x):
        return x

    assert prepare_example(1) == 1
    names = registered()
    assert names["prepare_example"] is prepare_example
    assert names["count-example"] is count
    assert names["third-example"] is third


def test_two_functions_of_one_name_are_refused():
    @fanfold.function("clash-example")
    def one():
        pass

    def two():
        pass

    with pytest.raises(AuthorError, match="clash-example"):
        fanfold.function("clash-example")(two)


@pytest.mark.parametrize("name", ["", "a b", "module:name", "x" * 200])
def test_a_name_that_a_recipe_could_not_use_is_refused(name):
    with pytest.raises(AuthorError):
        fanfold.function(name=name or " ")(lambda: None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_decorated_names_are_found_without_importing(project):
    write(project, "a.py", f"{BOOM}import fanfold\n@fanfold.function\ndef one(): ...\n")
    write(project, "src/p/b.py", "import fanfold as ff\n@ff.function('two')\nasync def x(): ...\n")
    write(project, "c.py", "from fanfold import function as f\n@other\n@f(name='three')\ndef x(): ...\n")
    write(project, "d.py", "def function(f): return f\n@function\ndef not_ours(): ...  # fanfold\n")
    write(project, "e.py", "import fanfold\nN = 'x'\n@fanfold.function(N)\ndef unknown_name(): ...\n")
    assert HandlerSearch(project).names() == ("one", "three", "two")


@pytest.mark.parametrize("folder", [".git", ".venv", "node_modules", "build", "myenv"])
def test_folders_that_are_not_the_project_s_own_are_left_out(project, folder):
    write(project, f"{folder}/a.py", "import fanfold\n@fanfold.function\ndef hidden(): ...\n")
    write(project, "myenv/pyvenv.cfg", "")
    assert HandlerSearch(project).names() == ()


@pytest.mark.parametrize("text", ["def (", "\0", "(" * 3_000, "x = '''" + "a" * 1_100_000 + "'''"])
def test_files_that_cannot_be_parsed_are_skipped(project, text):
    write(project, "bad.py", "# fanfold\n" + text)
    write(project, "good.py", "import fanfold\n@fanfold.function\ndef fine(): ...\n")
    assert HandlerSearch(project).names() == ("fine",)


def test_a_project_with_too_many_files_is_read_in_part_and_says_so(project, monkeypatch):
    monkeypatch.setattr(handler_search, "MAX_FILES", 3)
    for i in range(5):
        write(project, f"m{i}.py", f"import fanfold\n@fanfold.function\ndef f{i}(): ...\n")
    search = HandlerSearch(project)
    assert search.names() == ("f0", "f1", "f2")
    assert not search.complete


@pytest.mark.parametrize(
    ("handler", "known"),
    [
        ("pkg.mod:work", True),
        ("pkg.mod:Tool.run", True),
        ("pkg.mod:Tool.stop", False),
        ("pkg.mod:CONSTANT", True),
        ("pkg.mod:reexported", True),
        ("pkg.mod:fallback", True),
        ("pkg.mod:missing", False),
        ("pkg:anything", True),
        ("inner.deep:f", True),
        ("nowhere.mod:f", False),
        ("json:dumps", True),
        ("json:nothing", False),
        ("math:sqrt", True),
        ("sys:exit", True),
        ("../pkg/mod:work", False),
        ("pkg.mod:", False),
        (":x", False),
    ],
)
def test_a_callable_in_a_module_is_found_by_reading_its_file(project, handler, known):
    write(
        project,
        "pkg/mod.py",
        f"{BOOM}def work(): ...\nclass Tool:\n    def run(self): ...\nCONSTANT = print\n"
        "from os import path as reexported\ntry:\n    import x\nexcept ImportError:\n    pass\n"
        "if True:\n    async def fallback(): ...\n",
    )
    write(project, "pkg/__init__.py", "def __getattr__(name): ...\n")
    write(project, "src/inner/deep.py", "f = 1\n")
    assert HandlerSearch(project).knows(handler) is known


def test_the_public_name_is_loaded_when_used():
    assert "function" in dir(fanfold)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = fanfold.nothing_like_it
