"""What the planner is asked for, and what counts as its answer.

The planner is an ordinary agent of the role `planner` in an ordinary run of one step: its sessions are
recorded, paid for and bounded like any other. It is told the task, the shape of the project, and which roles
and recipes there are; file contents it reads itself where it needs them. What it drafts is text that the
compiler checks like any recipe, and that executes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.kernel.plan import JSON
from fanfold.recipe.builder import Recipe
from fanfold.text.template import Hole, parse_template

MAX_ROUNDS = 3
RECIPE_NAME = "plan-workflow"
STEP = "draft"
PLANNER = "planner"
"""The role that drafts."""
MAX_DRAFT_CHARS = 64_000

ANSWER_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "required": ["fit", "reason", "recipe"],
    "additionalProperties": False,
    "properties": {
        "fit": {"type": "boolean", "description": "Whether several agents or phases are worth it"},
        "reason": {"type": "string", "description": "Why, in one or two sentences"},
        "recipe": {"type": "string", "description": "The whole recipe as YAML; empty when it is not fit"},
    },
}

LANGUAGE = """\
A recipe is one YAML document:
  name: lower-case-with-dashes
  description: one line
  inputs: [{name: topic, type: string, required: true, description: one line}]
      # type: string | integer | number | boolean | array | object; `default:` instead of `required:`
  phases:             # one after the other, unless a phase says depends_on: [ids]
    - id: audit       # letters, digits, _ and -
      kind: understand                # understand | execute | verify | review | custom;
                                      # understand and review only read
      goal: what the phase is to achieve
      for_each: inputs.packages       # optional, a CEL list: the tasks once per item, as {{item}};
                                      # or of an earlier phase: steps.survey.output.tasks.list.parts
      tasks:                          # at most 32 a phase
        - id: scan                    # not review, verify or fold
          agent: explorer             # one of the roles below
          prompt: "Look at {{item}} for {{inputs.topic}}."
          output_schema:              # optional, JSON Schema
            {type: object, required: [parts], properties: {parts: {type: array, items: {type: string}}}}
          write_set: ["src/**"]       # agents that write: the globs they may change, as narrow as possible
          timeout: 10m
      review: {reviewers: 2, agent: critic}     # optional: they try to refute what the phase claims
      verify: {gate: tests, on_fail: iterate}   # optional: tests, lint, critic, approval, or command with
                    # run: [program, argument]; tests and lint only where the project says how to run them
      converge: {max_iterations: 3}             # 1-5
  output: "{{steps.report.output.tasks.write}}" # a template; default: the last phase's
Templates know {{inputs.x}}, {{item}}, {{steps.PHASE.output.tasks.TASK}}, {{digest}} (what earlier phases
found; given to every task anyway) and {{feedback}} (what the gate said last time; given anyway). There is
no logic in them. At most 16 phases. Parts that are worked on side by side must not write the same files."""

_CIRCUMSTANCES = """\
The language:
<language>
{{inputs.language}}
</language>

The project (look into files only where the plan depends on it):
<project>
{{inputs.project}}
</project>

Roles:
<roles>
{{inputs.roles}}
</roles>

Recipes that exist already:
<recipes>
{{inputs.recipes}}
</recipes>"""

_DRAFT = """\
Draft a recipe in phases for the task below: several agents that work on parts of it side by side where the
parts are independent, and gates that tell whether it is done. Few phases with clear edges. Say `fit: false`,
with an empty recipe, when one agent would do it as well: a question, a single change, work that cannot be
split or checked."""
_REFINE = """\
Change the recipe below as asked, and nothing else in it. Give back the whole recipe. Say `fit: false`, with
an empty recipe, only when what is asked cannot be done in a recipe."""
_TASK = "Task:\n<task>\n{{inputs.task}}\n</task>"
_PRESENT = "\n\nThe recipe as it is:\n<recipe>\n{{inputs.present}}\n</recipe>"
_WRONG = """

Your last draft is not valid. The compiler says:
<problems>
{{inputs.problems}}
</problems>

The draft was:
<draft>
{{inputs.draft}}
</draft>

Give the whole recipe again, with these problems mended."""


def planner_recipe(*, refining: bool, again: bool, model: str | None) -> Recipe:
    """The recipe of one round."""
    asked = _TASK + (_PRESENT if refining else "") + (_WRONG if again else "")
    prompt = f"{_REFINE if refining else _DRAFT}\n\n{_CIRCUMSTANCES}\n\n{asked}"
    step: dict[str, JSON] = {
        "id": STEP,
        "agent": PLANNER,
        "timeout": "10m",
        "output_schema": ANSWER_SCHEMA,
        "prompt": prompt,
    }
    if model is not None:
        step["model"] = model
    return Recipe(
        name=RECIPE_NAME,
        description="Draft a recipe from a task",
        inputs=[{"name": name, "type": "string", "required": True} for name in _asked_for(prompt)],
        steps=[step],
    )


def _asked_for(prompt: str) -> list[str]:
    """The inputs that a prompt names."""
    paths = [part.path for part in parse_template(prompt) if isinstance(part, Hole)]
    return list(dict.fromkeys(str(path.parts[0]) for path in paths))


def told_about(names: Sequence[tuple[str, str]]) -> str:
    """Names with a line about each."""
    return "\n".join(f"{name}: {about}" for name, about in names) or "none"


def unfenced(text: str) -> str:
    """A draft without the fence that models like to put around YAML."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    return "\n".join(lines) + "\n" if lines else ""
