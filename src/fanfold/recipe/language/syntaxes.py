"""How steps of each type are written.

What is done with them is in `recipe.types`, a module for each type, which is imported when a recipe has the
first step of it.
"""

from __future__ import annotations

from fanfold.recipe.language.keys import MAX_DURATION_MS
from fanfold.recipe.language.known_outputs import ANYTHING, TEXT, Known, ObjectOf, Text, Truth
from fanfold.recipe.language.step_syntax import ATTEMPT_KEYS, StepSyntax
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key
from fanfold.text.trees.tree import Scalar

AGENT = StepSyntax(
    name="agent",
    decided_by=("prompt", "prompt_file"),
    hinted_by=("agent",),
    keys=(
        Key(
            "agent",
            "text",
            "Role, `name` or `name@version`; or a template that gives one of `agents`.",
            default="default",
        ),
        Key("subagent", "text", "Another word for `agent`.", alias="agent"),
        Key("role", "text", "Another word for `agent`.", alias="agent"),
        Key("agents", "texts", "The roles that a template in `agent` may give."),
        Key("prompt", "template", "The task. Without one the role's own prompt template is used."),
        Key("task", "template", "Another word for `prompt`.", alias="prompt"),
        Key("prompt_file", "text", "The same from a file beside the recipe, frozen with the run."),
        Key(
            "continue",
            "id",
            "An agent step of this scope and role; this one goes on in a copy of its conversation, "
            "and only reads if that one does.",
        ),
        Key(
            "idle_timeout",
            "duration",
            "How long nothing may be heard of the agent: no word, no call, no result of one.",
            "none",
            1,
            MAX_DURATION_MS,
        ),
        Key("model", "text", "Model to use.", default="the role's"),
        Key("reasoning_effort", "text", "How hard the model thinks.", "the role's"),
        Key("max_turns", "integer", "Turns of the session.", "the role's", 1, 1_000),
        Key("tools", "texts", "Tools allowed; may only narrow the role's.", "the role's"),
    ),
    takes=ATTEMPT_KEYS | {"inputs"},
    workspace="own",
    writes=True,
    answers=True,
    gives=TEXT,
)

FUNCTION = StepSyntax(
    name="function",
    decided_by=("handler",),
    keys=(Key("handler", "text", "Registered name, or `package.module:callable`."),),
    takes=ATTEMPT_KEYS | {"inputs"},
    workspace="project",
)

COMMAND = StepSyntax(
    name="command",
    decided_by=("run", "shell"),
    keys=(
        Key("run", "arguments", "Command as a list of arguments; text is split, never given to a shell."),
        Key(
            "shell",
            "text",
            "Script for `sh -c`; its `inputs` are variables of that name, never part of its text.",
        ),
        Key("env", "variables", "Environment variables for the command."),
        Key(
            "env_vars",
            "texts",
            "Names of variables of the user's environment; their own configuration must list them.",
        ),
        Key("network", "boolean", "Allow the command to use the network.", "false"),
    ),
    takes=ATTEMPT_KEYS | {"inputs"},
    workspace="scratch",
    gives=TEXT,
    output_names=("exit_code", "stdout", "stderr"),
)

_INSIDE: dict[str, str] = dict.fromkeys(
    ("read_set", "write_set", "workspace_mode"), "put it on the steps inside"
)

WORKFLOW = StepSyntax(
    name="workflow",
    decided_by=("workflow",),
    keys=(Key("workflow", "text", "`name@version`, or `./file.yaml` relative to this file."),),
    takes=frozenset({"posture", "output_schema", "outputs", "inputs"}),
    instead=_INSIDE,
)


def _values(entries: Entries) -> Known:
    return ObjectOf({word.text: ANYTHING for word, _ in entries.pairs("set")})


SET = StepSyntax(
    name="set",
    decided_by=("set",),
    keys=(Key("set", "expressions", "Name to CEL expression; the output is the object of their values."),),
    gives_by=_values,
)


def _words(entries: Entries) -> Known:
    node = entries.nodes.get("choices")
    if isinstance(node, Scalar):
        return ANYTHING
    return Text(tuple(item.text for item in entries.scalars("choices"))) if node is not None else TEXT


ASK = StepSyntax(
    name="ask",
    decided_by=("ask",),
    keys=(
        Key("ask", "template", "The question put to a person, who answers in words or data."),
        Key("show", "template", "What the person sees with the question."),
        Key("choices", "choices", "The answers there are: a list, or an expression that gives one."),
        Key("default", "json", "The answer when `timeout` passes."),
    ),
    takes=frozenset({"output_schema"}),
    gives_by=_words,
)

WAIT = StepSyntax(
    name="wait",
    decided_by=("wait",),
    keys=(Key("wait", "moment", "A duration, or a CEL timestamp or duration; it has no output."),),
)

DELIVER = StepSyntax(
    name="deliver",
    decided_by=("deliver",),
    keys=(Key("deliver", "object", "What becomes of all that this run merged.", of="deliver"),),
    takes=frozenset({"retry"}),
    workspace="claims",
    writes=True,
    gives=ObjectOf({"branch": TEXT, "commit": TEXT, "pushed": Truth(), "url": ANYTHING}),
)

END = StepSyntax(
    name="end",
    decided_by=("end",),
    keys=(
        Key(
            "end",
            "word",
            "How the run ends here; what runs is cancelled, what waits is skipped.",
            words=("completed", "failed"),
            meant=(("success", "completed"), ("ok", "completed"), ("failure", "failed"), ("error", "failed")),
        ),
        Key("message", "template", "Why; of a failed run its error."),
        Key("output", "output", "Output of the run.", "the recipe's output"),
    ),
    gives=TEXT,
)

YES_OR_NO = ("approve", "reject")
"""The answers where a step names none."""


def _decision(entries: Entries) -> Known:
    choices = tuple(item.text for item in entries.scalars("choices")) or YES_OR_NO
    return ObjectOf({"decision": Text(choices), "by": TEXT, "comment": ANYTHING, "edited": ANYTHING})


APPROVAL = StepSyntax(
    name="approval",
    decided_by=("approve", "gate"),
    keys=(
        Key("approve", "template", "The question put to a person."),
        Key(
            "gate",
            "word",
            "`human`: an approval whose question is `prompt`, or the description.",
            words=("human",),
        ),
        Key("prompt", "template", "With `gate: human`: the question put to a person."),
        Key("show", "template", "What the person sees with the question."),
        Key("choices", "choices", "Answers that complete the step.", "approve or reject"),
        Key("default", "json", "The answer when `timeout` passes."),
    ),
    gives_by=_decision,
)

GROUP = StepSyntax(
    name="group",
    decided_by=("steps",),
    keys=(
        Key("steps", "objects", "Inner steps; they may refer to outer ones.", of="step"),
        Key("output", "output", "Output of the group.", "its last declared step's output"),
    ),
    takes=frozenset({"posture", "output_schema", "outputs"}),
    instead=_INSIDE,
)
