"""Workflow scripts and protoAgent's recipes, changed at every word: carried over or listed, and never run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.cli.main import main
from fanfold.errors import FanfoldError
from fanfold.language.convert.formats import convert
from fanfold.language.convert.javascript import JsWord, words_of
from fanfold.language.convert.source import ForeignFile, Loss
from tests.conversion.scripts import CLAUDE
from tests.conversion.workflows import PROTOAGENT
from tests.work import patience

MARK = "oddvalue7"


def converted(text: str) -> tuple[str, list[Loss]]:
    _, found = convert(ForeignFile(text.encode(), "w.js", lambda name: None), "claude")
    return json.dumps(found.recipe), found.lost


def refusal(text: str) -> str:
    """The code and the file of what is refused as a whole."""
    try:
        converted(text)
    except FanfoldError as refused:
        return f"{refused.code} {refused.message.split(':')[0]}"
    return ""


def changes(text: str, word: JsWord) -> Iterator[str]:
    before, after = text[: word.start], text[word.end :]
    yield before + MARK + after
    yield f"{before} {MARK} {word.text}{after}"
    yield f"{before}\n{MARK}();\n{word.text}{after}"
    yield f"{before}({MARK} ? {word.text} : {MARK}){after}"
    yield f"{before}`${{{MARK}(1)}}`{after}"
    yield f"{before}...{MARK}, {word.text}{after}"


def is_told(text: str, usual: tuple[str, list[Loss]]) -> bool:
    """In the recipe, or listed: by its name, at its line, or, for a variable renamed, where it is used."""
    try:
        recipe, lost = converted(text)
    except FanfoldError as refused:
        return refused.code == "convert.unreadable" and "w.js:" in refused.message
    line = text.count("\n", 0, text.index(MARK)) + 1
    if MARK in recipe or any(MARK in one.what or one.line == line for one in lost):
        return True
    return (recipe, [one.what for one in lost]) != (usual[0], [one.what for one in usual[1]])


@pytest.mark.full
@pytest.mark.parametrize("name", CLAUDE)
def test_a_script_changed_at_any_word_loses_nothing_in_silence(name: str) -> None:
    text = CLAUDE[name].text
    usual = converted(text)
    silent = [
        (usual[1] and word.text, changed)
        for word in words_of(text)
        for changed in changes(text, word)
        if not is_told(changed, usual)
    ]
    assert not silent


@pytest.mark.full
@pytest.mark.parametrize("name", CLAUDE)
def test_a_script_cut_anywhere_is_read_or_refused_with_its_line(name: str) -> None:
    text = CLAUDE[name].text
    for end in range(len(text)):
        assert refusal(text[:end]) in ("", "convert.unreadable w.js")


@pytest.mark.parametrize(
    "text",
    [
        "await agent('" * 5_000,
        "await agent('a')\n" * 5_000,
        "await parallel([" * 10_000,
        "`${" * 20_000,
        "=/[" * 20_000,
        "const a = " + "[" * 50_000,
        "{" * 50_000 + "}" * 50_000,
        "/*" * 40_000,
        "\\" * 50_000,
        "\x00\ud7ff\ufeff" * 10_000,
        "const x = args" + ".a" * 30_000,
    ],
    ids=range(11),
)
def test_a_hostile_script_comes_to_an_end(text: str) -> None:
    with patience():
        assert refusal(text) in ("", "convert.unreadable w.js")


def test_a_script_is_never_run_and_its_comments_and_texts_are_no_calls() -> None:
    recipe, lost = converted(
        "// await agent('one')\n/* await agent('two') */\n"
        "const a = await agent(\"say: await agent('three')\")\n"
        "require('child_process').execSync('touch ran')\n"
        "const b = `${await agent('four')}`\n"
    )
    assert [step["prompt"] for step in json.loads(recipe)["steps"]] == ["say: await agent('three')"]
    assert [one.line for one in lost] == [4, 5]
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", PROTOAGENT)
def test_an_unknown_key_of_a_protoagent_recipe_is_kept_and_listed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = PROTOAGENT[name].text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith("  - {id"):
            changed = line.replace("{id", f"{{{MARK}: 1, id", 1)
        elif line[0] != " ":
            changed = f"{MARK}: [1]\n{line}"
        else:
            continue
        text = "".join((*lines[:number], changed, *lines[number + 1 :]))
        Path("w.yaml").write_text(text)
        status = main(["convert", "w.yaml", "--from", "protoagent", "--json"])
        made = json.loads(capsys.readouterr().out)
        assert made["text"].startswith(text.rstrip())
        assert status != 0
        told = [one for one in made["diagnostics"] if MARK in one["message"]]
        assert [one["code"] for one in told] == ["recipe.unknown_key"], made["diagnostics"]
