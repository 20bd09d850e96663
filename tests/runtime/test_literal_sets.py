"""Values put into sets of paths stand for themselves: only the author's wildcards are wildcards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.kernel.paths import GlobError, check_glob, escape, matches
from tests.recipe.known import codes, compile_text
from tests.runtime.running import run

WRITER = """\
name: writer
inputs: [{name: name, type: string, required: true}]
steps:
  - {id: w, agent: worker, write_set: ["src/{{inputs.name}}/*.py"], prompt: x}
"""


def write(folder: Path, name: str, path: str) -> tuple[str, str]:
    """How the step ends that may write `src/<name>/*.py` and writes `path`, and with which code."""
    (folder / "src").mkdir()
    result = run(
        folder, WRITER, f"steps: {{w: {{output: done, writes: {{{json.dumps(path)}: x}}}}}}", name=name
    )
    error = result.steps["w"].error
    return result.steps["w"].status, "" if error is None else error.code


@pytest.mark.full
@pytest.mark.parametrize("name", ["[id]", "*", "{a,b}", "a?", "**", "a]b", "a b", "{{x}}", "...", "a\nb"])
def test_a_folder_of_that_name_can_be_written(tmp_path: Path, name: str):
    assert write(tmp_path, name, f"src/{name}/m.py") == ("completed", "")
    assert (tmp_path / "src" / name / "m.py").read_text() == "x"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "other"), [("*", "b"), ("[ab]", "a"), ("{a,b}", "a"), ("?", "a"), ("**", "a/b"), ("a*", "ab")]
)
def test_a_value_does_not_widen_what_may_be_written(tmp_path: Path, name: str, other: str):
    status, code = write(tmp_path, name, f"src/{other}/m.py")
    assert status == "failed"
    assert code in ("tool.outside_write_set", "workspace.violation")
    assert not (tmp_path / "src" / other).exists()


@pytest.mark.parametrize("name", ["..", ".", "a/../b", "", "a//b", "a\\b", "/etc", "../x"])
def test_a_value_that_is_no_name_below_the_workspace_fails_the_step_before_it_starts(
    tmp_path: Path, name: str
):
    assert write(tmp_path, name, "src/a/m.py") == ("failed", "recipe.bad_glob")


@pytest.mark.parametrize("place", ["src/[{{inputs.name}}]", "src/[!a{{inputs.name}}]/*", "a[{{inputs.name}}"])
def test_a_value_cannot_stand_in_a_character_class(place: str):
    compiled = compile_text(WRITER.replace("src/{{inputs.name}}/*.py", place))
    assert codes(compiled) == ["recipe.bad_glob"]


def test_a_value_may_stand_in_braces_and_beside_wildcards():
    compiled = compile_text(
        WRITER.replace("src/{{inputs.name}}/*.py", "{src,{{inputs.name}}}/{{inputs.name}}-*")
    )
    assert codes(compiled) == []


@given(st.text("ab/*?[]{},!^-.\n ", min_size=1, max_size=12), st.text("ab*?[]{},!\n", min_size=1, max_size=6))
def test_an_escaped_text_matches_itself_and_nothing_else(text: str, other: str):
    pattern = escape(text)
    try:
        check_glob(pattern)
    except GlobError:  # it is no path: then it must not be one as it stands either
        assert any(part in ("", ".", "..") for part in text.split("/"))
        return
    assert matches([pattern], text)
    assert matches([pattern], other) == (other == text)
    assert matches([f"{{x,{pattern}}}"], text)
