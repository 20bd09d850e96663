"""Recipes for tasks that no model planned: a template of the task's kind, filled in and marked as one.

Rules
* The templates are recipes (`templates/`), complete and valid in any project: a gate that the project cannot
  feed (`tests` where nothing says how to run them) is left to a critic.
* The task is an input with the given words as its default, so the recipe serves for the next one too.
* Parts are found by the first phase, and each is written by one agent alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fanfold.recipe.builder import Recipe
from fanfold.runtime.specs.intent_patterns import Kind

MARK = (
    "# Filled in from a template, without a model: read it, and change what does not fit, before it runs.\n"
)
MAX_NAME_CHARS = 40
NAME_WORDS = 4
_FOLDER = Path(__file__).parent / "templates"
_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset("a an the and or of for to in on with from our my all every each this that it".split())


def fill_in(kind: Kind, task: str, *, has_tests: bool) -> str:
    """The recipe's text for a task."""
    recipe = Recipe.from_yaml((_FOLDER / f"{kind}.yaml").read_bytes())
    value: Any = recipe.value
    value["name"] = name_for(task, kind)
    value["inputs"][0]["default"] = task
    for phase in value["phases"]:
        if phase.get("verify", {}).get("gate") == "tests" and not has_tests:
            phase["verify"]["gate"] = "critic"
    return MARK + recipe.to_yaml()


def name_for(task: str, kind: Kind) -> str:
    """A name made of the task's first words that say something."""
    words = [word for word in _WORD.findall(task.lower()) if word not in _STOP]
    return "-".join(words[:NAME_WORDS])[:MAX_NAME_CHARS].strip("-") or f"{kind}-task"
