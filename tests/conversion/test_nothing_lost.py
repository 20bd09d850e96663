"""Odd values and odd keys in workflows of other systems: each is carried over or listed, never dropped."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from fanfold.errors import FanfoldError
from fanfold.language.builder import as_yaml
from fanfold.language.convert.formats import convert
from fanfold.language.convert.source import ForeignFile, Loss
from tests.conversion.scripts import Workflow
from tests.conversion.workflows import ALL

MARK = "oddvalue7"
ODD: tuple[Any, ...] = (MARK, {MARK: 1}, [MARK], 7777, [{MARK: 1}], [[MARK]])
READ = {name for name, (system, one) in ALL.items() if system != "protoagent" and one.file.endswith(".yaml")}
NOT_SAID = {("for_each", "type"), ("name",)}
"""`type: for_each` says what the key around it says. A name becomes one that recipes can have."""


def converted(workflow: Workflow, system: str, document: Any) -> tuple[str, list[Loss]]:
    text = yaml.safe_dump(document, sort_keys=False)
    source = ForeignFile(
        text.encode(), workflow.file, lambda name: workflow.others.get(name, "").encode() or None
    )
    _, found = convert(source, system)
    return as_yaml(found.recipe), found.lost


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(document: Any, at: tuple[str | int, ...], odd: Any) -> Any:
    made = copy.deepcopy(document)
    holder = made
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = odd
    return made


def is_told(text: str, lost: list[Loss], usual: set[str]) -> bool:
    """Whether an odd value is in the recipe, or something is listed at its key."""
    return MARK in text.lower() or "7777" in text or any(one.what not in usual for one in lost)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(READ))
def test_an_odd_value_is_carried_over_or_listed(name: str) -> None:
    system, workflow = ALL[name]
    document = yaml.safe_load(workflow.text)
    _, lost = converted(workflow, system, document)
    usual = {one.what for one in lost}
    given_up = {word for one in usual for word in one.replace(":", " ").split()}
    silent = []
    for at in places(document):
        words = tuple(word for word in at if isinstance(word, str))
        if any(word in given_up for word in words[-2:]) or {words[-2:], words[-1:]} & NOT_SAID:
            continue  # it is listed whatever it holds
        for odd in ODD:
            try:
                told = is_told(*converted(workflow, system, changed(document, at, odd)), usual)
            except FanfoldError:
                continue  # refused as a whole, with the line
            silent += [] if told else [(at, odd)]
    assert not silent


@pytest.mark.parametrize("name", sorted(READ))
def test_an_unknown_key_is_listed_wherever_it_stands(name: str) -> None:
    system, workflow = ALL[name]
    document = yaml.safe_load(workflow.text)
    silent = []
    for at in [(), *places(document)]:
        holder = document
        for key in at:
            holder = holder[key]
        if not isinstance(holder, dict):
            continue
        with_key = changed({"": document}, ("", *at), {**holder, MARK: MARK})[""]
        try:
            text, lost = converted(workflow, system, with_key)
        except FanfoldError:
            continue
        given_up = any(one.what.endswith(f": {at[-1]}") for one in lost) if at else False
        if MARK not in text and not given_up and not any(MARK in one.what for one in lost):
            silent.append(at)
    assert not silent
