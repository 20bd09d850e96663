"""The keys of the recipe language that belong to no step type and no kind of gate, once, as data.

See `text.shapes` for what a row means. What a type of step or a kind of gate adds stands with it, in `types`
and `gates`; `schema` puts everything together.
"""

from __future__ import annotations

from fanfold.kernel.plan import MAX_ITEMS
from fanfold.text.tables.shapes import Key, shape

RETRY_CLASSES = ("timeout", "transport", "rate_limit", "invalid_output", "agent")
MAX_DURATION_MS = 366 * 24 * 3_600_000


RECIPE = shape(
    "recipe",
    "The top level of a recipe file.",
    Key("name", "slug", "Name of the recipe; others refer to it as `name@version`.", required=True),
    Key("description", "text", "What the recipe is for, in a sentence."),
    Key("version", "integer", "Version of the recipe.", default="1", low=1, high=2**31 - 1),
    Key("inputs", "named_objects", "What the recipe takes, in order: a list, or a map by name.", of="input"),
    Key("steps", "objects", "The graph of steps. Either this or `phases`.", of="step"),
    Key("phases", "objects", "The same in the shape of phases. Either this or `steps`.", of="phase"),
    Key("output", "output", "What the run returns.", default="the last declared step's output"),
    Key("limits", "object", "Bounds on the whole run.", of="limits"),
    Key("max_concurrency", "integer", "Short for the limit of that name.", "configuration, 4", 1, 16),
    Key("defaults", "object", "Values for steps that do not say.", of="defaults"),
    Key(
        "on_failure",
        "word",
        "Default for steps: what becomes of the dependents of a failed step.",
        default="skip",
        words=("skip", "inline", "stop"),
    ),
    Key("metadata", "free", "Free data, kept and never looked into."),
    instead={
        **dict.fromkeys(("jobs", "tasks", "nodes", "stages"), "steps"),
        **dict.fromkeys(("params", "parameters", "variables", "vars", "arguments"), "inputs"),
        **dict.fromkeys(("concurrency", "max_parallel", "parallelism"), "max_concurrency"),
        **{
            name: f"it under limits: {{{name}: …}}"
            for name in ("timeout", "budget", "max_agents", "max_steps")
        },
        **{
            name: f"it under defaults: {{{name}: …}}"
            for name in ("model", "agent", "retry", "workspace_mode")
        },
        "agents": "roles as files in .fanfold/agents, and name them in steps",
        "result": "output",
    },
)

INPUT = shape(
    "input",
    "One input. With neither `required` nor `default` it is null when not given.",
    Key("name", "identifier", "Name of the input, used as `inputs.<name>`.", required=True),
    Key("required", "boolean", "Refuse to run without it.", default="false"),
    Key("default", "json", "Value when none is given."),
    Key(
        "type",
        "word",
        "Type of the value. Without one, text given on the command line stays text.",
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
    "Bounds on one run. Your own configuration may raise the ceilings.",
    Key("max_concurrency", "integer", "Attempts running at the same time.", "configuration, 4", 1, 16),
    Key(
        "max_agents",
        "integer",
        "Sessions in the whole run tree, retries and iterations included.",
        "64",
        1,
        500,
    ),
    Key("max_steps", "integer", "Step instances.", "1000", 1, 100_000),
    Key("timeout", "duration", "Wall clock of the run under a live owner.", "30m", 1, MAX_DURATION_MS),
    Key("budget", "object", "What the run may spend.", "none", of="budget"),
)

BUDGET = shape(
    "budget",
    "What the run tree may spend; it pauses when the next step would not fit.",
    Key("tokens", "integer", "Input and output tokens together.", low=1, high=10**12),
    Key("usd", "number", "US dollars.", low=0, high=10**6),
)

DEFAULTS = shape(
    "defaults",
    "Values for steps that do not say.",
    Key("agent", "text", "Role of agent steps.", default="default"),
    Key("model", "text", "Model of agent steps.", default="the role's"),
    Key(
        "timeout",
        "duration",
        "Per attempt, for agent, function and command steps.",
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
)

RETRY = shape(
    "retry",
    "When a failed attempt is tried again.",
    Key("attempts", "integer", "All tries, the first included.", "2", 1, 10),
    Key("backoff", "duration", "Wait before the second try; doubles with each.", "1s", 0, MAX_DURATION_MS),
    Key("max_backoff", "duration", "The longest wait.", "60s", 0, MAX_DURATION_MS),
    Key("on", "words", "Error classes that are tried again.", "[transport, rate_limit]", words=RETRY_CLASSES),
    short="attempts",
)

ON_EXHAUSTED = Key(
    "on_exhausted",
    "word",
    "Still false after the last iteration: fail, or continue with its output. Also beside `repeat`.",
    "fail",
    words=("fail", "continue"),
)

REPEAT = shape(
    "repeat",
    "Run again while `until` is false; still false after the last iteration, the step fails.",
    Key(
        "until", "expression", "Sees `output` of this iteration and, in a group, its `steps`.", required=True
    ),
    Key("max_iterations", "integer", "Iterations at most.", "2", 1, 50),
    ON_EXHAUSTED,
)

DELIVER = shape(
    "deliver",
    "What a deliver step makes of all that this run merged. It is asked for each time.",
    Key("branch", "template", "Name of the new branch.", required=True),
    Key("message", "template", "Message of the commit.", required=True),
    Key("paths", "globs", "Files of the project to deliver.", "what this run merged"),
    Key("push", "boolean", "Push the branch to `origin`.", "false; true with a pull request"),
    Key("pull_request", "object", "Open a pull request, through `gh`.", of="pull_request"),
)

PULL_REQUEST = shape(
    "pull_request",
    "A pull request for the branch.",
    Key("title", "template", "Its title.", required=True),
    Key("body", "template", "Its text."),
    Key("base", "template", "The branch it goes into, on which the commit is made.", "HEAD; the default"),
    Key("draft", "boolean", "Not ready for review yet.", "false"),
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
    "loop": "for_each for every item of a list, repeat for rounds until something holds",
}
"""What other languages call the keys of a step, and what is written here."""

STEP_KEYS = (
    Key("id", "id", "Unique in its scope; the step's address.", required=True),
    Key("description", "text", "What the step is for."),
    Key("type", "word", "Inferred from the other keys when not given."),
    Key("depends_on", "ids", "Steps of the same scope that come first. A reference implies its edge."),
    Key("when", "expression", "False skips the step; its dependents run and see null."),
    Key("for_each", "expression", "A list; one instance per item, addressed `id[0]`, `id[1]` …."),
    Key("as", "identifier", "Name of the item.", default="item"),
    Key("key", "text", "What an item is called in every view: a path such as `item.name`.", "its value"),
    Key("max_items", "integer", "The longest list `for_each` may give.", "1,000", 1, MAX_ITEMS),
    Key(
        "max_concurrency",
        "integer",
        "Of a map, group or loop: how many of its inside run at once.",
        "the run's",
        1,
        16,
    ),
    Key("repeat", "object", "Run again until an expression holds, addressed `id#1`, `id#2` ….", of="repeat"),
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
        "What becomes of an isolated writer's changes.",
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
        "output_schema",
        "schema",
        "JSON Schema of the output, which is then a value and not text.",
    ),
    Key(
        "outputs",
        "identifiers",
        "Names in the output object; `steps.x.name` then means `steps.x.output.name`.",
    ),
    Key(
        "inputs",
        "values",
        "Name to state path, template or literal (`{literal: …}`).",
    ),
    Key("timeout", "duration", "Per attempt, from its start.", "none; the run's holds", 1, MAX_DURATION_MS),
    Key("retry", "object", "When a failed attempt is tried again.", of="retry"),
    Key(
        "on_failure",
        "word",
        "What becomes of the dependents when the step fails.",
        default="skip",
        words=("skip", "inline", "stop"),
    ),
    Key(
        "cache",
        "boolean",
        "Reuse the output of an equal step; read-only steps only.",
        "false",
    ),
)
"""Keys of every step. The types add their own (`types`), and the words of `type` are their names."""

TAKEN_BY_SOME = frozenset(
    (
        "read_set", "write_set", "posture", "workspace_mode", "merge", "on_conflict", "output_schema",
        "outputs", "inputs", "retry", "cache",
    )
)  # fmt: skip
"""Those of them that a step has only if its type takes them."""

PHASE = shape(
    "phase",
    "A phase: a loop group of tasks with an optional review and gate. Its output is `{tasks, summary}`.",
    Key("id", "id", "Unique among the phases.", required=True),
    Key("goal", "text", "What the phase is to achieve; given to reviewers, critics and the summary."),
    Key(
        "kind",
        "word",
        "`understand` and `review` force read-only tasks.",
        default="custom",
        words=("understand", "execute", "verify", "review", "custom"),
    ),
    Key("depends_on", "ids", "Phases that come first.", default="the phase before"),
    Key("for_each", "expression", "A list; each task runs once per item."),
    Key("as", "identifier", "Name of the item.", default="item"),
    Key("max_items", "integer", "The longest list `for_each` may give.", "1,000", 1, MAX_ITEMS),
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
    "Reviewers who each try to refute the phase's result.",
    Key("reviewers", "integer", "How many.", "1", 1, 16),
    Key("agent", "text", "Their role.", default="critic"),
)

VERIFY_KEYS = (
    Key("gate", "word", "Who decides.", required=True),
    Key("on_fail", "word", "What a failing gate does.", default="iterate", words=("iterate", "stop")),
)
"""Keys of every gate. The kinds add their own (`gates`), and the words of `gate` are their names."""

CONVERGE = shape(
    "converge",
    "How often a phase may iterate until its gate passes.",
    Key("max_iterations", "integer", "Iterations at most.", "2", 1, 5),
)
