"""The documentation is true: its commands run, its recipes check, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fanfold.api.run_options import Options
from tests.work import PATIENCE_S
from tools import docs, markdown
from tools.markdown import Block, Command
from tools.tidy import ROOT, sources

# Prompts that recipes take from files, and files of roles, are read by agents, not by people.
PAGES = [
    source
    for source in sources()
    if source.path.endswith(".md") and not {"prompts", "corpus"} & set(Path(source.path).parts)
]
BIN = Path(sys.executable).parent

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)


# -- commands


def named_file(block: Block) -> str | None:
    """The name that a block gives itself in a first-line comment: `# brief.yaml`, `# words.py`."""
    ending = {"yaml": "yaml", "python": "py", "toml": "toml"}.get(block.language)
    named = re.match(r"# (\S+\.(\w+))\n", block.text)
    return named[1] if named and named[2] == ending else None


def save(block: Block, project: Path, name: str) -> Path:
    file = project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text)
    return file


def is_recipe(block: Block) -> bool:
    value = yaml.safe_load(block.text)
    return isinstance(value, dict) and "name" in value and bool({"steps", "phases"} & value.keys())


def installed_agents(project: Path) -> Path:
    """A folder for PATH with the agents that readers of a page have installed; they do nothing."""
    folder = project.parent / f"{project.name}-agents"
    folder.mkdir(exist_ok=True)
    for name in ("claude", "codex"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def run(command: list[str], project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=project,
        env={
            **os.environ,
            "COLUMNS": "100",
            "PYTHONPATH": str(ROOT),  # how-to pages use the scripted provider of the tests
            "NO_COLOR": "1",
            "HOME": str(project / "home"),
            "FANFOLD_HOME": str(project / "user"),
            "PATH": f"{BIN}:{installed_agents(project)}:{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def same_output(expected: list[str], actual: str) -> bool:
    """`…` in the documentation stands for anything, also for several lines."""
    wanted = "\n".join(line.rstrip() for line in expected).strip()
    pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
    shown = "\n".join(line.rstrip() for line in actual.splitlines()).strip()
    return re.fullmatch(pattern, shown, re.DOTALL) is not None


def check_command(command: Command, project: Path) -> None:
    words = shlex.split(command.text)
    if words[0] == "make":
        goals = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        assert set(goals) <= make_targets()
        return
    assert words[0] == "fanfold", f"line {command.line}: only fanfold and make can be checked"
    done = run(words, project)
    assert done.returncode == command.status, f"line {command.line}: $ {command.text}\n{done.stdout}"
    if command.output:
        assert same_output(command.output, done.stdout), f"line {command.line}: it printed\n{done.stdout}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.full
@each_page
def test_commands_do_what_the_page_shows(page, tmp_path):
    for block in markdown.blocks(page.text):
        if name := named_file(block):
            save(block, tmp_path, name)
        elif block.language == "console":
            for command in markdown.transcript(block):
                check_command(command, tmp_path)
        elif block.language == "python":
            save(block, tmp_path, "page.py")
            done = run(["python", "page.py"], tmp_path)
            assert done.returncode == 0, f"line {block.line}:\n{done.stdout}"


@pytest.mark.full
@each_page
def test_recipes_on_the_page_pass_the_checker_without_a_warning(page, tmp_path):
    recipes: list[str] = []
    for block in markdown.blocks(page.text):
        name = named_file(block)
        if block.language in ("python", "toml") and name:  # a recipe may name a function of it, or a role
            save(block, tmp_path, name)
        if block.language in {"yaml", "yml"} and is_recipe(block):
            name = name or f"line-{block.line}.yaml"
            if name in recipes:  # shown twice, as it was and as it became
                check(recipes, tmp_path)
                recipes.remove(name)
            save(block, tmp_path, name)
            recipes.append(name)
    check(recipes, tmp_path)


def check(recipes: list[str], project: Path) -> None:
    """All at once: starting a program takes longer than reading a page of recipes."""
    if recipes:
        done = run(["fanfold", "check", *recipes], project)
        assert done.returncode == 0, done.stdout
        assert "warning[" not in done.stdout, done.stdout


@each_page
def test_make_commands_in_the_text_exist(page):
    named = re.findall(r"`make ([a-z-]+)[^`]*`", markdown.prose(page.text))
    assert set(named) <= make_targets()


# -- links


@each_page
def test_links_lead_somewhere(page):
    broken = []
    for line, target in markdown.links(page.text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (ROOT / page.path).parent / path if path else ROOT / page.path
        if not file.exists():
            broken.append(f"{page.path}:{line}: {target} does not exist")
        elif fragment and fragment not in markdown.anchors(file.read_text("utf-8")):
            broken.append(f"{page.path}:{line}: {target} names no heading")
    assert not broken, "\n" + "\n".join(broken)


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = (target.partition("#")[0] for _, target in markdown.links(page.read_text("utf-8")))
        waiting += [(page.parent / target).resolve() for target in targets if target]
    assert {ROOT / page.path for page in PAGES} <= reached


def test_every_decision_is_listed_in_the_index_by_its_title():
    listed = (ROOT / "docs" / "index.md").read_text("utf-8")
    for file in sorted((ROOT / "docs" / "adr").glob("*.md")):
        title = file.read_text("utf-8").splitlines()[0].removeprefix("# ")
        assert f"[{title}](adr/{file.name})" in listed


def test_the_readme_shows_code_before_line_30():
    assert min(block.line for block in markdown.blocks((ROOT / "README.md").read_text())) < 30


# -- generated parts


@pytest.mark.full
@pytest.mark.parametrize("name", docs.FILES)
def test_generated_parts_are_up_to_date(name):
    assert not docs.is_stale(name), "run `make fix`"


def test_a_section_is_replaced_between_its_markers_only():
    page = "before\n<!-- generated: x -->\nold\n<!-- end generated -->\nafter\n"
    assert docs.with_section(page, "x", "new") == (
        "before\n<!-- generated: x -->\n\nnew\n\n<!-- end generated -->\nafter\n"
    )
    with pytest.raises(ValueError, match="found 0"):
        docs.with_section(page, "y", "new")


# -- the checks themselves


def test_a_fenced_block_knows_its_language_text_and_line():
    page = "a\n\n```yaml\nx: 1\n```\n\n````md\n```\n````\n"
    assert list(markdown.blocks(page)) == [Block("yaml", "x: 1\n", 4), Block("md", "```\n", 8)]


@pytest.mark.parametrize(
    ("block", "name"),
    [
        (Block("yaml", "# a/brief.yaml\nname: x\n", 1), "a/brief.yaml"),
        (Block("python", "# words.py\nimport re\n", 1), "words.py"),
        (Block("python", "import re  # words.py\n", 1), None),
        (Block("console", "# words.py\n", 1), None),
    ],
)
def test_a_block_may_name_the_file_it_is_saved_as(block, name):
    assert named_file(block) == name


def test_a_transcript_is_read_as_commands_with_output_and_status():
    block = Block("console", "$ fanfold check a\nerror\n$ echo $?\n2\n$ make test\n", 10)
    assert markdown.transcript(block) == [
        Command("fanfold check a", 10, ["error"], 2),
        Command("make test", 14),
    ]


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a  "], "a\n\n", True),
        (["a", "…", "z"], "a\nb\nc\nz\n", True),
        (["took … ms"], "took 12 ms\n", True),
        (["a"], "a\nb\n", False),
        (["a", "…", "z"], "a\nb\n", False),
        (["a.c"], "abc\n", False),
    ],
)
def test_output_is_compared_line_by_line(expected, actual, same):
    assert same_output(expected, actual) is same


@pytest.mark.full
def test_a_command_that_does_what_it_says_passes(tmp_path):
    check_command(Command("fanfold --version", 1, ["fanfold …"]), tmp_path)
    check_command(Command("make sim SEED=1 N=20", 1), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (Command("fanfold no-such-command", 1), "no-such-command"),
        (Command("fanfold --version", 1, ["fanfold 9.9.9"]), "it printed"),
        (Command("fanfold --version", 1, status=2), "fanfold --version"),
        (Command("make no-such-target", 1), "no-such-target"),
        (Command("curl somewhere", 1), "can be checked"),
    ],
)
def test_a_command_that_does_something_else_is_caught(command, complaint, tmp_path):
    with pytest.raises(AssertionError, match=complaint):
        check_command(command, tmp_path)


def test_links_inside_code_are_not_links():
    page = "[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n[g](#h)\n"
    assert list(markdown.links(page)) == [(1, "b.md"), (5, "#h")]


def test_headings_answer_to_their_slugs():
    page = "# Where it's found\n## A `b`: c\n## A `b`: c\n```\n# not one\n```\n"
    assert markdown.anchors(page) == {"where-its-found", "a-b-c", "a-b-c-1"}


# -- the code tour


NAMED = re.compile(r"`([\w/]+\.py)(?::(\w+)(?:\.(\w+))?)?`")


def test_every_place_on_the_code_tour_exists():
    named = NAMED.findall((ROOT / "docs/architecture.md").read_text())
    assert len(named) > 50
    for path, name, method in named:
        file = ROOT / "src/fanfold" / path
        assert file.is_file(), f"there is no {path}"
        if name:
            defined = rf"^(?:(?:async )?(?:def|class) {name}\b|{name}(?:: [^=]+)? = )"
            found = re.search(rf"{defined}.*?(?=^\S|\Z)", file.read_text(), re.MULTILINE | re.DOTALL)
            assert found, f"{path} defines no {name}"
            assert re.search(rf"\bdef {method}\b", found[0]) or not method, f"{path}: {name} has no {method}"


def test_a_place_that_does_not_exist_would_be_noticed():
    assert NAMED.findall("`kernel/transitions.py:evolve`, `a/b.py:C.d` and `cli/main.py`") == [
        ("kernel/transitions.py", "evolve", ""),
        ("a/b.py", "C", "d"),
        ("cli/main.py", "", ""),
    ]


def test_every_option_of_a_run_is_on_the_page_about_python():
    rows = [line for line in (ROOT / "docs/python.md").read_text().splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    assert set(Options.__struct_fields__) <= named
