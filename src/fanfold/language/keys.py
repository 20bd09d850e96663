"""The keys of the recipe language, as data: of recipes, steps, step types and phases.

`tables.Key` explains a row. The kinds of gates add their own keys (`phases`). `schema` lists all objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.plan import JSON, MAX_ITEMS
from fanfold.language.tables import Entries, Key, Shape, shape
from fanfold.language.tree import Scalar

RETRY_CLASSES = ("timeout", "transport", "rate_limit", "invalid_output", "agent")
MAX_DURATION_MS = 366 * 24 * 3_600_000


RECIPE = shape(
    "recipe",
    "The top level of a recipe file.",
    Key("name", "slug", "Name of the recipe; others refer to it as `name@version`.", "the file's name"),
    Key("description", "text", "What the recipe is for, in a sentence."),
    Key("version", "integer", "Version of the recipe.", default="1", low=1, high=2**31 - 1),
    Key("inputs", "named_objects", "What the recipe takes, in order: a list, or a map by name.", of="input"),
    Key("steps", "objects", "The graph of steps. Either this or `phases`.", of="step"),
    Key("phases", "objects", "The same in the shape of phases. Either this or `steps`.", of="phase"),
    Key("output", "output", "What the run returns.", default="the last declared step's output"),
    Key("limits", "object", "Bounds on the whole run.", of="limits"),
    Key("max_concurrency", "integer", "Short for the limit of that name.", "configuration, 4", 1, 16),
    Key("defaults", "object", "Default values for steps.", of="defaults"),
    Key(
        "on_failure",
        "word",
        "Default for steps: what happens to the dependents of a failed step.",
        default="skip",
        words=("skip", "inline", "stop"),
    ),
    Key("metadata", "free", "Free data that Fanfold stores and ignores."),
    instead={
        **dict.fromkeys(("jobs", "tasks", "nodes", "stages"), "steps"),
        **dict.fromkeys(("params", "parameters", "variables", "vars", "arguments"), "inputs"),
        **dict.fromkeys(("concurrency", "max_parallel", "parallelism"), "max_concurrency"),
        **{
            name: f"it under limits: {{{name}: …}}"
            for name in ("timeout", "outage", "budget", "max_agents", "max_steps")
        },
        **{
            name: f"it under defaults: {{{name}: …}}"
            for name in ("model", "agent", "retry", "workspace_mode")
        },
        "agents": "roles as files in .fanfold/agents, and name them in steps",
        "result": "output",
        "maxAgents": "it under limits: {max_agents: …}",
    },
)

INPUT = shape(
    "input",
    "One input. Without a value, `required` and `default` it is null.",
    Key("name", "identifier", "Name of the input, used as `inputs.<name>`.", required=True),
    Key("required", "boolean", "The run is refused without a value.", default="false"),
    Key("default", "json", "Value if none is given."),
    Key(
        "type",
        "word",
        "Type of the value. Without it, text from the command line stays text.",
        words=("string", "integer", "number", "boolean", "array", "object"),
        meant=(
            ("str", "string"),
            ("text", "string"),
            ("int", "integer"),
            ("float", "number"),
            ("bool", "boolean"),
            ("list", "array"),
            ("sequence", "array"),
            ("dict", "object"),
            ("map", "object"),
            ("json", "object"),
        ),
    ),
    Key("enum", "jsons", "The allowed values."),
    Key("description", "text", "What to give, in a sentence."),
)

LIMITS = shape(
    "limits",
    "Limits of one run. A value in your environment or your own configuration is a cap.",
    Key("max_concurrency", "integer", "Attempts that run at the same time.", "configuration, 4", 1, 16),
    Key(
        "max_agents",
        "integer",
        "Sessions in the whole run tree, retries and iterations included.",
        "64",
        1,
        500,
    ),
    Key("max_steps", "integer", "Step instances.", "1000", 1, 100_000),
    Key("timeout", "duration", "Time limit of the run while it has a live owner.", "30m", 1, MAX_DURATION_MS),
    Key(
        "outage",
        "duration",
        "How long to wait for an unavailable provider before the run pauses.",
        "1h",
        0,
        MAX_DURATION_MS,
    ),
    Key("budget", "object", "What the run may spend.", "none", of="budget"),
)

BUDGET = shape(
    "budget",
    "Budget of the run tree; it pauses when the next step would exceed it.",
    Key("tokens", "integer", "Input and output tokens together.", low=1, high=10**12),
    Key("usd", "number", "US dollars.", low=0, high=10**6),
)

DEFAULTS = shape(
    "defaults",
    "Default values for steps.",
    Key("agent", "text", "Role of agent steps.", default="default"),
    Key("model", "text", "Model of agent steps.", default="the role's"),
    Key(
        "timeout",
        "duration",
        "Limit of one attempt of agent, function and command steps.",
        "none",
        1,
        MAX_DURATION_MS,
    ),
    Key("retry", "object", "For agent, function and command steps.", of="retry"),
    Key(
        "workspace_mode",
        "word",
        "For agent, function and command steps.",
        default="by posture",
        words=("shared", "isolated"),
    ),
    Key("runs_on", "slug", "Tag of the workers that execute agent, function and command steps.", "default"),
)

RETRY = shape(
    "retry",
    "Which failed attempts are retried, and when.",
    Key("attempts", "integer", "Attempts, including the first.", "2", 1, 10),
    Key(
        "backoff", "duration", "Wait before the second attempt; doubles each time.", "1s", 0, MAX_DURATION_MS
    ),
    Key("max_backoff", "duration", "The longest wait.", "60s", 0, MAX_DURATION_MS),
    Key("on", "words", "Failure classes that are retried.", "[transport, rate_limit]", words=RETRY_CLASSES),
    short="attempts",
)

ON_EXHAUSTED = Key(
    "on_exhausted",
    "word",
    "If `until` is false after the last iteration: fail, or continue with its output.",
    "fail",
    words=("fail", "continue"),
)

REPEAT = shape(
    "repeat",
    "Repeat while `until` is false.",
    Key(
        "until",
        "expression",
        "Condition over `output` of this iteration and, in a group, its `steps`.",
        required=True,
    ),
    Key("max_iterations", "integer", "Maximum iterations.", "2", 1, 50),
    ON_EXHAUSTED,
)

DELIVER = shape(
    "deliver",
    "How a deliver step publishes all merges of the run. It asks for permission each time.",
    Key("branch", "template", "Name of the new branch.", required=True),
    Key("message", "template", "Message of the commit.", required=True),
    Key("paths", "globs", "Files to deliver.", "what this run merged"),
    Key("push", "boolean", "Push the branch to `origin`.", "false; true with a pull request"),
    Key("pull_request", "object", "Open a pull request, through `gh`.", of="pull_request"),
)

PULL_REQUEST = shape(
    "pull_request",
    "A pull request for the branch.",
    Key("title", "template", "Its title.", required=True),
    Key("body", "template", "Its text."),
    Key("base", "template", "Target branch, and parent of the commit.", "HEAD; the default"),
    Key("draft", "boolean", "Open it as a draft.", "false"),
)

STEP_WORDS = {
    **dict.fromkeys(("needs", "after", "depends", "dependsOn", "dependencies", "requires"), "depends_on"),
    **dict.fromkeys(("if", "condition", "only_if"), "when"),
    **dict.fromkeys(("foreach", "forEach", "for", "with_items", "matrix"), "for_each"),
    **dict.fromkeys(("command", "cmd", "exec"), "run"),
    **dict.fromkeys(("script", "bash", "sh"), "shell"),
    **dict.fromkeys(("instruction", "instructions", "user_prompt"), "prompt"),
    **dict.fromkeys(("with", "input", "params", "arguments"), "inputs"),
    **dict.fromkeys(("uses", "recipe", "subworkflow", "sub_workflow"), "workflow"),
    **dict.fromkeys(("function", "call"), "handler"),
    **dict.fromkeys(("approval", "confirm"), "approve"),
    **dict.fromkeys(("sleep", "delay"), "wait"),
    **dict.fromkeys(("schema", "response_format", "output_type"), "output_schema"),
    **dict.fromkeys(("writes", "write"), "write_set"),
    **dict.fromkeys(("reads", "read"), "read_set"),
    **dict.fromkeys(("cwd", "workdir", "working_dir", "working-directory"), "shell: cd FOLDER && …"),
    **dict.fromkeys(("until", "max_iterations"), "repeat: {until: …, max_iterations: …}"),
    **dict.fromkeys(
        ("continue_on_error", "continue-on-error", "ignore_errors", "allow_failure"), "on_failure: inline"
    ),
    "name": "id",
    "question": "ask",
    "retries": "retry",
    "environment": "env",
    "parallel": "nothing: steps without an edge between them run side by side by themselves",
    "to_be_written": "what the step does: it could not be converted",
    "loop": "for_each for every item of a list, repeat for rounds until something holds",
}
"""Names of step keys in other languages, and the keys or hints for them here."""

STEP_KEYS = (
    Key("id", "id", "Unique in its scope; part of the step's path.", required=True),
    Key("description", "text", "What the step is for."),
    Key("type", "word", "Inferred from the other keys when not given."),
    Key("depends_on", "ids", "Steps of the same scope that must finish first. A reference implies its edge."),
    Key("when", "expression", "False skips the step; its dependents run and see null."),
    Key("for_each", "items", "A list; one instance per item, addressed `id[0]`, `id[1]` …."),
    Key("as", "identifier", "Name of the item.", default="item"),
    Key("key", "text", "Label of an item in every view: a path such as `item.name`.", "its value"),
    Key("max_items", "integer", "Maximum length of the list.", "1,000", 1, MAX_ITEMS),
    Key(
        "max_concurrency",
        "integer",
        "Of a map, group or loop: inner steps that run at once.",
        "the run's",
        1,
        16,
    ),
    Key("repeat", "object", "Repeat until an expression is true; addressed `id#1`, `id#2` ….", of="repeat"),
    ON_EXHAUSTED,
    Key("read_set", "globs", "Files the step reads.", default="`**/*`"),
    Key("write_set", "globs", "Files the step may change.", "`**/*` for writers"),
    Key(
        "posture",
        "word",
        "`read_only` narrows the step and, on a group or workflow, everything inside.",
        default="derived from the role",
        words=("read_only", "writer"),
    ),
    Key(
        "workspace_mode",
        "word",
        "Work in the shared workspace or in a snapshot of it.",
        default="shared for readers, isolated for writers",
        words=("shared", "isolated"),
    ),
    Key(
        "merge",
        "word",
        "What happens to an isolated writer's changes.",
        default="auto",
        words=("auto", "propose", "discard"),
    ),
    Key(
        "on_conflict",
        "word",
        "What happens when the merge of an isolated writer conflicts.",
        default="fail",
        words=("fail", "resolve"),
    ),
    Key(
        "require_changes",
        "boolean",
        "Fail an isolated writer of which nothing was merged or proposed.",
        "false",
    ),
    Key("output_schema", "schema", "JSON Schema of the output, which is then a value instead of text."),
    Key(
        "outputs",
        "identifiers",
        "Fields of the output object; `steps.x.name` is then short for `steps.x.output.name`.",
    ),
    Key("inputs", "values", "Values by name: a path, a template or a literal (`{literal: …}`)."),
    Key("timeout", "duration", "Limit of one attempt.", "none; the run's holds", 1, MAX_DURATION_MS),
    Key("retry", "object", "Which failed attempts are retried, and when.", of="retry"),
    Key(
        "on_failure",
        "word",
        "What happens to the dependents if the step fails.",
        default="skip",
        words=("skip", "inline", "stop"),
    ),
    Key("cache", "boolean", "Reuse the output of an equal step; read-only steps only.", "false"),
    Key("runs_on", "slug", "Tag of the workers that execute the step in a cluster.", default="default"),
)
"""Keys of every step. The types add their own, and `type` takes their names."""

TAKEN_BY_SOME = frozenset(
    (
        "read_set", "write_set", "posture", "workspace_mode", "merge", "on_conflict",
        "require_changes", "output_schema",
        "outputs", "inputs", "retry", "cache", "runs_on",
    )
)  # fmt: skip
"""The keys of `STEP_KEYS` that a step has only if its type takes them."""

PHASE = shape(
    "phase",
    "A phase: a loop group of tasks with an optional review and gate. Its output is `{tasks, summary}`.",
    Key("id", "id", "Unique among the phases.", required=True),
    Key("goal", "text", "Aim of the phase; part of the prompts of reviewers, critics and summary."),
    Key(
        "kind",
        "word",
        "`understand` and `review` force read-only tasks.",
        default="custom",
        words=("understand", "execute", "verify", "review", "custom"),
    ),
    Key("depends_on", "ids", "Phases that come first.", default="the phase before"),
    Key("for_each", "items", "A list; each task runs once per item."),
    Key("as", "identifier", "Name of the item.", default="item"),
    Key("max_items", "integer", "Maximum length of the list.", "1,000", 1, MAX_ITEMS),
    Key("when", "expression", "False skips the phase."),
    Key("max_concurrency", "integer", "Attempts of this phase at the same time.", "the run's", 1, 16),
    Key("max_agents", "integer", "Sessions of this phase.", "the run's", 1, 500),
    Key("tasks", "objects", "Steps of the phase; every step key is allowed.", of="step", required=True),
    Key("review", "object", "Adversarial review of the phase's result.", of="review"),
    Key("verify", "object", "The gate that decides pass, iterate or stop.", of="verify"),
    Key("converge", "object", "How often the phase may iterate.", of="converge"),
)

REVIEW = shape(
    "review",
    "Reviewers who try to refute the phase's result independently.",
    Key("reviewers", "integer", "Number of reviewers.", "1", 1, 16),
    Key("agent", "text", "Role of the reviewers.", default="critic"),
)

VERIFY_KEYS = (
    Key(
        "gate",
        "word",
        "Kind of gate.",
        required=True,
        meant=(("run_tests", "tests"), ("run_lint", "lint"), ("human", "approval")),
        lenient=True,
    ),
    Key("on_fail", "word", "What happens if the gate fails.", default="iterate", words=("iterate", "stop")),
)
"""Keys of every gate. The kinds of gates add their own, and `gate` takes their names."""

CONVERGE = shape(
    "converge",
    "How often a phase may iterate until its gate passes.",
    Key("max_iterations", "integer", "Maximum iterations.", "2", 1, 5),
)

# -----------------------------------------------------------------------------------------------------------
# The type information about an output before the run.

Known: TypeAlias = "Anything | Text | Number | Truth | ListOf | ObjectOf"

_MAX_SCHEMA_DEPTH = 20
_OPEN_KEYWORDS = frozenset("$ref $dynamicRef anyOf oneOf allOf not if patternProperties".split())
"""With one of these keywords next to `type`, only the validator knows the type of the value."""


class Anything(Struct, frozen=True):
    """Nothing is known."""


class Text(Struct, frozen=True):
    """Text, which has no fields; with `choices` it is one of them."""

    choices: tuple[str, ...] = ()


class Number(Struct, frozen=True):
    """An integer or another number."""


class Truth(Struct, frozen=True):
    """True or false."""


class ListOf(Struct, frozen=True):
    """A list, one element per item."""

    element: Known


class ObjectOf(Struct, frozen=True):
    """An object with these fields, and others too when it is `open`."""

    fields: dict[str, Known]
    open: bool = False


ANYTHING = Anything()
TEXT = Text()


def known_from_schema(schema: JSON, depth: int = 0) -> Known:
    """Return the type that a JSON Schema guarantees."""
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH or _OPEN_KEYWORDS & schema.keys():
        return ANYTHING
    enum = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(enum, list) and enum and all(isinstance(value, str) for value in enum):
        return Text(tuple(cast(list[str], enum)))
    match schema.get("type"):
        case "string":
            return TEXT
        case "integer" | "number":
            return Number()
        case "boolean":
            return Truth()
        case "array":
            return ListOf(known_from_schema(schema.get("items"), depth + 1))
        case "object":
            properties = schema.get("properties")
            fields = properties if isinstance(properties, dict) else {}
            return ObjectOf(
                {str(name): known_from_schema(one, depth + 1) for name, one in fields.items()},
                open=schema.get("additionalProperties") is not False,
            )
    return ANYTHING


def known_from_type(kind: str | None, enum: tuple[JSON, ...] | None) -> Known:
    """Return the type that the declaration of an input guarantees."""
    if enum and all(isinstance(value, str) for value in enum):
        return Text(cast(tuple[str, ...], enum))
    return known_from_schema({"type": kind} if kind is not None else None)


def described(known: Known) -> str:
    """Return the type as text for messages."""
    return _WORDS[type(known)]


def part_of(known: Known, parts: tuple[str | int, ...]) -> Known:
    """Return the type at the end of a path, which must be possible."""
    for part in parts:
        if isinstance(known, ListOf) and isinstance(part, int):
            known = known.element
        elif isinstance(known, ObjectOf) and isinstance(part, str):
            known = known.fields.get(part, ANYTHING)
        else:
            return ANYTHING
    return known


_WORDS: dict[type[Struct], str] = {
    Anything: "anything",
    Text: "text",
    Number: "a number",
    Truth: "true or false",
    ListOf: "a list",
    ObjectOf: "an object",
}

# -----------------------------------------------------------------------------------------------------------
# The syntax of steps of one type, as data for the compiler.
#
# Rules
# * The deciding key of a step determines its type. Some types can also be recognized by a weaker key
#   (`agent`), and then do not need the deciding one.
# * Some common keys make sense only for steps with attempts, files or data. `takes` names those that a type
#   has.

ATTEMPT_KEYS = TAKEN_BY_SOME - {"inputs"}
"""Keys of steps with their own attempts: they can be retried, cached, and use a workspace."""


class StepSyntax(Struct, frozen=True, kw_only=True):
    name: str
    keys: tuple[Key, ...]
    """The keys of this type."""
    decided_by: tuple[str, ...]
    """Keys that decide that a step has this type."""
    hinted_by: tuple[str, ...] = ()
    """Keys that decide it if no other key determines the type."""
    takes: frozenset[str] = frozenset()
    """The optional common keys that this type has."""
    instead: Mapping[str, str] = {}
    """Hints for keys that have no meaning in this type."""
    workspace: Literal["own", "scratch", "project", "claims", "none"] = "none"
    """See `kernel.plan.Traits`."""
    writes: bool = False
    """Whether it can write without a declared `write_set`."""
    answers: bool = False
    """Whether its purpose is its output if it only reads. An unused output then causes a warning."""
    gives: Known = ANYTHING
    """The type of its output if it declares neither a schema nor names."""
    gives_by: Callable[[Entries], Known] | None = None
    """The same, if it depends on the step's keys."""
    output_names: tuple[str, ...] = ()
    """All names that `outputs` can use without a schema; empty: any."""

    @property
    def attempts(self) -> bool:
        return "retry" in self.takes


def step_shape(types: Mapping[str, StepSyntax]) -> Shape:
    """Return the table of a step's keys: those of every step, then those of each type."""
    every = [_with_types(key, types) for key in STEP_KEYS]
    own: dict[str, Key] = {}
    for syntax in types.values():
        for key in syntax.keys:
            known = own.get(key.name, replace(key, only=()))
            assert known.kind == key.kind, f"{known.only} and {syntax.name} give {key.name} another form"
            own[key.name] = replace(known, only=(*known.only, syntax.name))
    doc = "One step. Its type follows from its keys."
    return shape("step", doc, *every, *own.values(), instead=STEP_WORDS)


def _with_types(key: Key, types: Mapping[str, StepSyntax]) -> Key:
    if key.name == "type":
        return replace(key, words=tuple(types))
    if key.name not in TAKEN_BY_SOME:
        return key
    return replace(key, only=tuple(name for name, syntax in types.items() if key.name in syntax.takes))


# -----------------------------------------------------------------------------------------------------------
# The syntax of each step type.
#
# Their behavior is in other modules, imported for the first step of the type in a recipe.

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
        Key("subagent", "text", "Alias of `agent`.", alias="agent"),
        Key("role", "text", "Alias of `agent`.", alias="agent"),
        Key("agents", "texts", "The roles that a template in `agent` may give."),
        Key("prompt", "template", "The task. Default: the prompt template of the role."),
        Key("task", "template", "Alias of `prompt`.", alias="prompt"),
        Key("prompt_file", "text", "File with the prompt, relative to the recipe; read when the run starts."),
        Key(
            "continue",
            "id",
            "An agent step of the same scope and role, whose conversation this step continues in a copy. "
            "The copy is read-only if that step is.",
        ),
        Key(
            "idle_timeout",
            "duration",
            "Maximum silence of the agent: no text, tool call or result.",
            "none",
            1,
            MAX_DURATION_MS,
        ),
        Key("model", "text", "Model to use.", default="the role's"),
        Key("reasoning_effort", "text", "Reasoning effort of the model.", "the role's"),
        Key("max_turns", "integer", "Maximum turns of the session.", "the role's", 1, 1_000),
        Key("tools", "texts", "Allowed tools; may only narrow the role's.", "the role's"),
        Key("skills", "texts", "Skills of the agent by name, in addition to its role's."),
        Key("may_ask", "boolean", "Whether the agent may ask a person (tool `ask_user`).", "the role's"),
        Key(
            "context",
            "word",
            "`none`: append no summaries of dependencies to the prompt.",
            "a summary of each dependency that neither the prompt nor `for_each` uses",
            words=("none",),
        ),
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
        Key("run", "arguments", "Command as a list of arguments; text is split without a shell."),
        Key(
            "shell",
            "text",
            "Script for `sh -c`; `inputs` become variables, never part of its text.",
        ),
        Key("env", "variables", "Environment variables for the command."),
        Key(
            "env_vars",
            "texts",
            "Variables of the user's environment; the user's configuration must allow them.",
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
    keys=(Key("set", "expressions", "CEL expressions by name; the output is the object of their values."),),
    takes=frozenset({"output_schema"}),
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
        Key("ask", "template", "The question to a person, who answers with text or data."),
        Key("show", "template", "Text shown with the question."),
        Key("choices", "choices", "The possible answers: a list, or an expression with a list."),
        Key("default", "json", "The answer after `timeout`."),
    ),
    takes=frozenset({"output_schema"}),
    gives_by=_words,
)

WAIT = StepSyntax(
    name="wait",
    decided_by=("wait",),
    keys=(Key("wait", "moment", "A duration, or a CEL timestamp or duration. The step has no output."),),
)

SYNTAXES_DELIVER = StepSyntax(
    name="deliver",
    decided_by=("deliver",),
    keys=(
        Key(
            "deliver",
            "object",
            "The branch, commit and pull request for all merges of the run.",
            of="deliver",
        ),
    ),
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
            "Status with which the run ends. Running steps are cancelled, waiting steps skipped.",
            words=("completed", "failed"),
            meant=(("success", "completed"), ("ok", "completed"), ("failure", "failed"), ("error", "failed")),
        ),
        Key("message", "template", "The reason; the error of a failed run."),
        Key("output", "output", "Output of the run.", "the recipe's output"),
    ),
    gives=TEXT,
)

YES_OR_NO = ("approve", "reject")
"""The default answers of a step."""


def _decision(entries: Entries) -> Known:
    choices = tuple(item.text for item in entries.scalars("choices")) or YES_OR_NO
    return ObjectOf({"decision": Text(choices), "by": TEXT, "comment": ANYTHING, "edited": ANYTHING})


APPROVAL = StepSyntax(
    name="approval",
    decided_by=("approve", "gate"),
    keys=(
        Key("approve", "template", "The question to a person."),
        Key(
            "gate",
            "word",
            "`human`: an approval whose question is `prompt`, or the description.",
            words=("human",),
        ),
        Key("prompt", "template", "With `gate: human`: the question to a person."),
        Key("show", "template", "Text shown with the question."),
        Key("choices", "choices", "Answers that complete the step.", "approve or reject"),
        Key("default", "json", "The answer after `timeout`."),
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
