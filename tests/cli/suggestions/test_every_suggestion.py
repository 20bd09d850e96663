"""Every command that the product suggests is carried out by a test, and none has a gap in it."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click

from fanfold.cli.main import COMMANDS
from tests.cli.suggestions.following import commands
from tests.cli.suggestions.places import ABOUT, CLAIMS, Place, places

SUGGESTED = re.compile(r"(?<![\w/.-])fanfold ([a-z]+)((?: (?:--?[a-z][a-z-]*(?:=\S+)?|[\w@./{}…\[\]|=-]+))*)")
OPTION = re.compile(r"(?<!\S)(--?[a-z][a-z-]*)")
COMMON = {"--json", "--project", "--no-color", "--help"}
LITERAL = {"{}", "last", "bash", "zsh", "fish", "show", "adopt", "remove", "pull", "install", "init"}
"""Words that say what is meant."""
SCENARIOS = sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)})
PLACEHOLDER = re.compile(r"(?<![\w-])[A-Z]{2,}(?![\w-])")


for scenario in SCENARIOS:  # while tests are collected: some start a program to decide what they skip
    import_module(f"tests.cli.suggestions.{scenario.stem}")


def claimed() -> dict[Place, list[str]]:
    """Which tests carry out what each place suggests."""
    return {
        place: [test for test, claims in CLAIMS.items() if any(place.is_meant_by(one) for one in claims)]
        for place in places()
    }


def test_every_place_that_suggests_a_command_has_a_test_that_carries_it_out() -> None:
    left = [place.key for place, tests in claimed().items() if not tests]
    assert not left, "@suggested(…) no test carries these out:\n" + "\n".join(left)


def test_every_claim_and_every_exception_is_about_a_text_that_is_there() -> None:
    claimed()
    known = places()
    stale = [
        (test, claim)
        for test, claims in CLAIMS.items()
        for claim in claims
        if not any(place.is_meant_by(claim) for place in known)
    ]
    assert not stale
    assert all(": " in claim and why for claim, why in ABOUT.items())


def test_a_text_without_a_test_would_be_noticed() -> None:
    new = Place("cli/new.py", "do it: fanfold resume {} --yes")
    assert new.is_meant_by("new.py: fanfold resume")
    assert not new.is_meant_by("new.py: fanfold retry")
    assert new.is_in("hint: do it:\n  fanfold resume abc\n--yes")
    assert not new.is_in("do it: fanfold resume abc")


def test_a_suggested_command_exists_with_its_options_and_has_all_that_it_needs() -> None:
    wrong: list[str] = []
    for place in places():
        for found in SUGGESTED.finditer(place.text):
            name, rest = found[1], found[2]
            command = getattr(import_module(COMMANDS[name]), f"{name}_command")
            given = list(takewhile(lambda word: "{" in word or word in LITERAL, rest.split()))
            needed = [one for one in command.params if isinstance(one, click.Argument) and one.required]
            if len(given) < len(needed) and "--help" not in rest and "spawn {}" not in place.text:
                wrong.append(f"{place.key}: {name} lacks something")
            known = {
                word
                for one in command.params
                if isinstance(one, click.Option)
                for word in (*one.opts, *one.secondary_opts)
            }
            unknown = set(OPTION.findall(rest)) - known - COMMON - {"--words"}
            wrong += [f"{place.key}: {name} has no {word}" for word in unknown]
            if PLACEHOLDER.search(rest):
                wrong.append(f"{place.key}: {rest} has to be filled in")
    assert not wrong, "\n".join(wrong)


def test_the_commands_of_a_text_are_found_as_they_are_meant() -> None:
    assert commands("fanfold diff r1 'a[0] b' shows it; fanfold undo r1, or fanfold runs") == [
        ["diff", "r1", "a[0] b"], ["undo", "r1"], ["runs"],
    ]  # fmt: skip
    assert commands('{"hint": "see /usr/fanfold x"}') == []
    assert commands('did you mean "fanfold runs"?\nthe planner works (fanfold logs r1 shows it)') == [
        ["runs"], ["logs", "r1"],
    ]  # fmt: skip
