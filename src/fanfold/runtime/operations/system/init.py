"""A project's first files: configuration, an example recipe and its script."""

from __future__ import annotations

from pathlib import Path

from fanfold.errors import WorldError
from fanfold.runtime.views.installation import Initialised
from fanfold.store.database.folder import GITIGNORE
from fanfold.trust.project_files import write_beneath

RECIPE_NAME = "first-steps"
SCRIPT_FILE = f".fanfold/workflows/{RECIPE_NAME}/script.yaml"

CONFIG = """\
# Settings of this project. Every line shows a default; remove the # in front of one to change it.
# `fanfold doctor` lists every setting with its value and where that comes from.

[workflows]
# enabled = true          # false: `fanfold run` refuses
# max_concurrent = 4      # steps at once, 1 to 16
# max_agents = 64         # sessions in one run, 1 to 500
# timeout_ms = 1800000    # half an hour
# model = "provider:name" # the fast model, which makes the summaries of phases

[agents]
# project_instructions = true   # false: AGENTS.md and CLAUDE.md do not reach agents

[store]
# durability = "full"     # "normal" is faster and may lose the last moments in a power cut
"""

RECIPE = f"""\
# Try it without any model:  fanfold run {RECIPE_NAME} --script .fanfold/workflows/{RECIPE_NAME}/script.yaml
name: {RECIPE_NAME}
description: Look at something from three sides at once, then sum it up
inputs:
  - name: topic
    default: this project
steps:
  - id: sides
    agent: explorer
    for_each: '["what it does", "what is missing", "what to do next"]'
    prompt: "Look at {{{{inputs.topic}}}} and say briefly: {{{{item}}}}."
  - id: answer
    agent: summarizer
    depends_on: [sides]
    prompt: "Sum up in one paragraph:\\n{{{{steps.sides.output}}}}"
"""

SCRIPT = """\
# What each agent says when this script stands in for a model; `{{step}}` is the path of the step.
default: "an answer from {{step}}"
steps:
  "sides[*]": {output: "a short remark from {{step}}", delay_ms: 400}
  answer: {output: "Three agents looked at it, and this one summed it up.", delay_ms: 300}
"""

FILES = {
    ".gitignore": GITIGNORE,
    "config.toml": CONFIG,
    f"workflows/{RECIPE_NAME}/recipe.yaml": RECIPE,
    f"workflows/{RECIPE_NAME}/script.yaml": SCRIPT,
}


def initialise(folder: Path) -> Initialised:
    """Make a project's first files; none of them replaces one that is there."""
    created: list[str] = []
    kept: list[str] = []
    for name, text in FILES.items():
        path = f".fanfold/{name}"
        try:
            made = write_beneath(folder, path, text.encode(), replace=False)
        except OSError as error:
            message = f"{folder / path} cannot be written: {error.strerror}"
            raise WorldError("world.io", message, hint="no link is followed there") from None
        (created if made else kept).append(path)
    return Initialised(created, kept)
