"""Recipes as prompts: a person picks one in their client, and the model is told how to run it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from mcp_types import GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent

from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.recipe.inputs import parse_input_text
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import check_recipe

MAX_PROMPTS = 200


def list_prompts(project: Project) -> list[Prompt]:
    """The recipes that can be run; of several versions the highest."""
    found: list[Prompt] = []
    for name in dict.fromkeys(one.name for one in project.library.list()):
        try:
            plan = check_recipe(project, name).runnable()
        except FanfoldError:
            continue  # `fanfold check` tells what is wrong with it
        arguments = [
            PromptArgument(name=one.name, description=one.description or None, required=one.required)
            for one in plan.inputs
        ]
        described = plan.description or f"Run the workflow {name}"
        found.append(Prompt(name=name, title=name, description=described, arguments=arguments))
    return found[:MAX_PROMPTS]


def get_prompt(project: Project, name: str, given: Mapping[str, str]) -> GetPromptResult:
    """What the model is told when a person picked a recipe."""
    plan = check_recipe(project, name).runnable()
    inputs: dict[str, JSON] = {}
    for one in plan.inputs:
        if one.name in given:
            inputs[one.name] = parse_input_text(one, given[one.name])
    call = msgspec.json.encode({"name": name, "inputs": inputs}).decode()
    missing = [one.name for one in plan.inputs if one.required and one.name not in given]
    lines = [
        f"Run the Fanfold workflow `{name}` for me. {plan.description}".rstrip(),
        f"Call the tool `run_workflow` with {call}",
    ]
    if missing:
        lines.append(f"First ask me for: {', '.join(missing)}.")
    lines.append("Then tell me what came of it in a few sentences, with the run id.")
    message = PromptMessage(role="user", content=TextContent(type="text", text="\n".join(lines)))
    return GetPromptResult(description=plan.description or None, messages=[message])
