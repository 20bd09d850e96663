"""Draft a recipe from a task, or refine one: the planner writes it, the compiler checks it, the user sees it.

Also decide whether a request suits a workflow at all.

Rules of drafts
* The compiler treats a draft like any other recipe. Its errors are sent back to the planner unchanged, at
  most `MAX_ROUNDS` times. Then the draft is refused; it is never fixed here.
* Nothing of a draft runs. Its size and price are those of its dry run.
* Without a model, a template for the kind of task is filled in and marked as a template. A refinement needs a
  model. The small local model counts as no model unless the user names it: it takes minutes for a plan and
  has never made one that compiles.
* Each round is a run of one read-only step, with log, price and transcript like any run. The caller receives
  progress lines meanwhile. Cancelling the call cancels the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct, structs

from fanfold.agents.backend import SessionRequest
from fanfold.agents.backend_registry import MODEL, BackendSetup
from fanfold.agents.entries import Calling, Entry, FailedRequest, News
from fanfold.agents.local.weights import local_state
from fanfold.agents.role import Role
from fanfold.agents.spending import Account
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.api.display import RunUsage, run_usage, unified_difference
from fanfold.api.project import Project
from fanfold.api.recipes import (
    CheckedRecipe,
    DraftedSpec,
    DraftRequest,
    DraftSource,
    check_found,
    recipe_document,
    renamed,
)
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.api.start import forecast_run, start
from fanfold.engine.config import LOCAL_MODEL, choose_model
from fanfold.engine.driver import DailyCaps
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import Usage
from fanfold.kernel.plan import JSON
from fanfold.language.builder import Recipe
from fanfold.language.draft import FoundRecipe
from fanfold.language.project_commands import find_own_command
from fanfold.language.template import Hole, parse_template
from fanfold.language.terminal import one_line, visible
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.workspace.ignored import CACHES, DEPENDENCIES

_FOLDER = Path(__file__).parent / "templates"

# -----------------------------------------------------------------------------------------------------------
# Decide by text patterns alone whether a request suits a workflow: no model, no clock, no project
#
# A workflow suits work in several phases, or over many parts. For everything else one agent is better and
# cheaper. So a request only suits a workflow if a pattern matches.
#
# Rules
# * There is one table, `templates/intents.toml`, read from top to bottom. The first matching row decides and
#   gives the reason.
# * Rows for one thing come before rows for many: "fix all errors in this file" is one file.
# * Only an explicit request for several agents or a workflow comes before that.
# * Rows match how requests are phrased, not their subjects. They are tested with requests that were labelled
#   before any row was written (`tests/planning`).

MAX_CHARS = 4_000
"""Limit for the examined text: the beginning of a request shows its intent."""

Kind: TypeAlias = Literal["audit", "migrate", "research", "review", "build", "general"]


class IntentPattern(Struct, frozen=True):
    """One pattern: what a match means, and why."""

    name: str
    suitable: bool
    reason: str
    pattern: str


class Suitability(Struct, frozen=True):
    """Whether a request suits a workflow of several agents."""

    suitable: bool
    reason: str
    by: Literal["model", "patterns"]
    pattern: str = ""
    """The name of the row that decided, if patterns answered."""
    note: str = ""
    """Why the model was not asked, or gave no answer."""
    usage: RunUsage | None = None
    """The usage of the model's answer."""


class _Table(Struct, frozen=True):
    polite: str
    patterns: list[IntentPattern]
    kinds: dict[Kind, str]


@cache
def _table() -> _Table:
    """Return the patterns of `templates/intents.toml`, in which the names of parts are replaced."""
    given = tomllib.loads((_FOLDER / "intents.toml").read_text("utf-8"))
    parts = {f"<{name}>": "".join(texts) for name, texts in given["parts"].items()}

    def expression(texts: Iterable[str]) -> str:
        text = "".join(texts)
        for name, part in parts.items():
            text = text.replace(name, part)
        return text

    rows = [IntentPattern(**row | {"pattern": expression(row["pattern"])}) for row in given["patterns"]]
    kinds = {kind: expression(texts) for kind, texts in given["kinds"].items()}
    return _Table(expression(given["polite"]), rows, kinds)


def patterns() -> list[IntentPattern]:
    """Return the table, from top to bottom."""
    return _table().patterns


def judge(request: str) -> Suitability:
    """Return whether a request suits a workflow, and the row of the table that decided.

    >>> judge("Audit this function").pattern
    'one place'
    >>> judge("Migrate all 500 tests to pytest").suitable
    True
    """
    text = re.sub(_table().polite, "", _even(request)).lower()
    for row in patterns():
        if _compiled(row.pattern).search(text):
            return Suitability(row.suitable, row.reason, "patterns", row.name)
    reason = "the request mentions no parts or phases"
    return Suitability(False, reason, "patterns", "no sign")


def kind_of(request: str) -> Kind:
    """Return the kind of work: it selects the template of a plan without a model."""
    text = _even(request).lower()
    for kind, pattern in _table().kinds.items():
        if _compiled(pattern).search(text):
            return kind
    return "general"


def _even(request: str) -> str:
    """Return the request as one line, with plain apostrophes."""
    return " ".join(request[:MAX_CHARS].replace("\u2019", "'").split())


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# -----------------------------------------------------------------------------------------------------------
# The shape of a project for the planner: languages, size, folders, tests. Names only, never contents
#
# Rules
# * Files are counted by their names. Only files that may define the test command are read
#   (`language.project_commands`). Only the command is passed on.
# * The search is bounded: a tree that is too large is reported as such.
# * A project may be hostile: links are not followed, and names are shown as text.

MAX_FILES = 20_000
MAX_ENTERED = 5_000
"""Maximum of visited folders, at any depth."""
MAX_FOLDERS = 40
"""Maximum of named top-level folders."""
MAX_LANGUAGES = 8
NAME_CHARS = 60

_LANGUAGES = {
    "py": "Python", "js": "JavaScript", "jsx": "JavaScript", "mjs": "JavaScript", "ts": "TypeScript",
    "tsx": "TypeScript", "rs": "Rust", "go": "Go", "java": "Java", "kt": "Kotlin", "c": "C", "h": "C",
    "cpp": "C++", "cc": "C++", "hpp": "C++", "cs": "C#", "rb": "Ruby", "php": "PHP", "swift": "Swift",
    "scala": "Scala", "sh": "Shell", "sql": "SQL", "vue": "Vue", "svelte": "Svelte", "ex": "Elixir",
    "md": "Markdown", "rst": "reStructuredText", "html": "HTML", "css": "CSS",
}  # fmt: skip


class ProjectShape(Struct, frozen=True):
    """A short description of a project."""

    files: int
    whole: bool
    """False: there are more files than were counted."""
    languages: dict[str, int]
    """Number of files per language, most frequent first."""
    folders: tuple[str, ...]
    """The top-level folders."""
    tests: str
    """The project's own test command; empty if none is known."""
    lint: str

    def described(self) -> str:
        """Return the description for a prompt."""
        many = f"{self.files} files" if self.whole else f"more than {self.files} files"
        spoken = ", ".join(f"{name} ({count})" for name, count in self.languages.items()) or "none known"
        lines = (
            f"size: {many}",
            f"languages: {spoken}",
            f"folders: {', '.join(self.folders) or 'none'}",
            f"tests: {self.tests or 'nothing says how to run them'}",
            f"lint: {self.lint or 'nothing says how to run it'}",
        )
        return "\n".join(lines)


def look_at(folder: Path) -> ProjectShape:
    """Return the shape of the project in a folder."""
    names = list(_file_names(str(folder)))
    known = [name for name in names if name is not None]
    languages = (_LANGUAGES.get(name.rpartition(".")[2].lower()) for name in known)
    counted = Counter(language for language in languages if language is not None)
    folders = [entry.name for entry in _entries(str(folder)) if entry.is_dir(follow_symlinks=False)]
    usual = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    return ProjectShape(
        files=len(known),
        whole=len(known) == len(names),
        languages=dict(usual[:MAX_LANGUAGES]),
        folders=tuple(one_line(name, NAME_CHARS) for name in folders[:MAX_FOLDERS]),
        tests=_own(folder, "tests"),
        lint=_own(folder, "lint"),
    )


def _own(folder: Path, gate: str) -> str:
    found = find_own_command(folder, gate)
    return "" if found is None else " ".join(found.run)


def _file_names(top: str) -> Iterator[str | None]:
    """Yield names of files, folder by folder; None at the end if the limit was reached."""
    waiting, seen, entered = [top], 0, 0
    while waiting:
        entered += 1
        if entered > MAX_ENTERED:
            yield None
            return
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                seen += 1
                yield entry.name if seen <= MAX_FILES else None
                if seen > MAX_FILES:
                    return


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List the entries of a folder, without hidden folders, dependencies and caches."""
    try:
        with os.scandir(folder) as listing:
            found = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        entry
        for entry in found
        if not entry.name.startswith(".") and entry.name not in DEPENDENCIES and entry.name not in CACHES
    ]


# -----------------------------------------------------------------------------------------------------------
# The prompt of the planner, and the schema of its answer
#
# The planner is an ordinary agent of the role `planner` in an ordinary run of one step: its sessions are
# recorded, paid for and limited like any other. Its prompt has the task, the shape of the project, and the
# existing roles and recipes. It reads file contents itself if it needs them. Its draft is text that the
# compiler checks like any recipe, and that executes nothing.

MAX_ROUNDS = 3
RECIPE_NAME = "plan-workflow"
STEP = "draft"
PLANNER = "planner"
"""The role that drafts recipes."""
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


@cache
def _texts() -> dict[str, str]:
    """Return the parts of the planner's prompt, and the question of `_ask`."""
    return tomllib.loads((_FOLDER / "planner.toml").read_text("utf-8"))


def _text(name: str) -> str:
    return _texts()[name]


def planner_recipe(*, refining: bool, again: bool, model: str | None) -> Recipe:
    """Return the recipe of one round."""
    asked = _text("task") + (_text("present") if refining else "") + (_text("wrong") if again else "")
    prompt = f"{_text('refine' if refining else 'draft')}\n\n{_text('circumstances')}\n\n{asked}"
    step: dict[str, JSON] = {
        "id": STEP,
        "agent": PLANNER,
        "timeout": "10m",
        "output_schema": ANSWER_SCHEMA,
        "prompt": prompt,
    }
    if model is not None:
        step["model"] = model
    named = dict.fromkeys(str(one.path.parts[0]) for one in parse_template(prompt) if isinstance(one, Hole))
    return Recipe(
        name=RECIPE_NAME,
        description="Draft a recipe from a task",
        inputs=[{"name": name, "type": "string", "required": True} for name in named],
        steps=[step],
    )


def unfenced(text: str) -> str:
    """Remove the code fence that models often put around YAML."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    return "\n".join(lines) + "\n" if lines else ""


# -----------------------------------------------------------------------------------------------------------
# Recipes without a model: a template for the kind of task, filled in and marked as a template
#
# Rules
# * The templates are complete recipes (`templates/`), valid in any project. A gate that the project does not
#   support (`tests` without a known test command) is replaced by a critic.
# * The task is an input with the given text as its default, so the recipe works for the next task, too.
# * The first phase finds the parts, and exactly one agent writes each part.

MARK = (
    "# Filled in from a template, without a model: read it, and change what does not fit, before it runs.\n"
)
MAX_NAME_CHARS = 40
NAME_WORDS = 4
_STOP = frozenset("a an the and or of for to in on with from our my all every each this that it".split())


def fill_in(kind: Kind, task: str, *, has_tests: bool) -> str:
    """Return the recipe's text for a task."""
    recipe = Recipe.from_yaml((_FOLDER / f"{kind}.yaml").read_bytes())
    value: Any = recipe.value
    value["name"] = name_for(task, kind)
    value["inputs"][0]["default"] = task
    for phase in value["phases"]:
        if phase.get("verify", {}).get("gate") == "tests" and not has_tests:
            phase["verify"]["gate"] = "critic"
    return MARK + recipe.to_yaml()


def name_for(task: str, kind: Kind) -> str:
    """Return a name made of the first significant words of the task."""
    words = [word for word in re.findall("[a-z0-9]+", task.lower()) if word not in _STOP]
    return "-".join(words[:NAME_WORDS])[:MAX_NAME_CHARS].strip("-") or f"{kind}-task"


Narrate: TypeAlias = Callable[[str], None]
"""Receives progress lines while a plan is made."""
MAX_TASK_CHARS = 20_000
NO_MODEL = "provider.none"
TOO_SMALL = "the local model is too small to plan"
_LOOKS = frozenset({"asking how", "looking", "question"})


_Draft: TypeAlias = tuple[str, str, list[str], CheckedRecipe | None]
"""The reason, the text, the planner's runs, and the recipe without errors; None if one agent is better."""


def checked_request(wanted: DraftRequest) -> DraftRequest:
    """Return the request with a task that a recipe can contain; raises if the request is refused."""
    task = visible(wanted.task.strip(), keep="\n\t")  # a recipe contains no control characters
    if not task or len(task) > MAX_TASK_CHARS:
        message = "there is no task" if not task else f"the task is longer than {MAX_TASK_CHARS} characters"
        raise AuthorError("plan.bad_task", message, hint="describe the task in a few sentences")
    if wanted.refine is not None and not wanted.use_model:
        message = "only a model can refine a recipe, and --no-model excludes one"
        raise AuthorError(
            "plan.no_model", message, hint=f"leave {wanted.no_model} out, or edit the file yourself"
        )
    return structs.replace(wanted, task=task)


async def draft_spec(
    project: Project,
    wanted: DraftRequest,
    options: Options | None = None,
    *,
    narrate: Narrate = lambda _: None,
) -> DraftedSpec:
    """Return a recipe for a task, checked and priced; or the reason why one agent is better."""
    options = options or Options()
    wanted = checked_request(wanted)
    if wanted.use_model and _uses_small_model(project, options):
        if wanted.refine is not None:
            message = f"only a model can refine a recipe, and {TOO_SMALL}"
            hint = "name another one with FANFOLD_WORKFLOW_MODEL, or edit the file yourself"
            raise AuthorError("plan.no_model", message, hint=hint)
        narrate(f"{TOO_SMALL}: a template is filled in")
    elif wanted.use_model:
        try:
            drafted = await _ask_planner(project, wanted, options, narrate)
        except FanfoldError as error:
            if error.code != NO_MODEL or wanted.refine is not None:
                raise
        else:
            return _shown(project, wanted, drafted, options)
    verdict = judge(wanted.task)
    if not verdict.suitable and not wanted.anyway:
        return _shown(project, wanted, (verdict.reason, "", [], None), options, source="template")
    kind = kind_of(wanted.task)
    own_tests = project.compile_context().own_command("tests") is not None
    text = renamed(fill_in(kind, wanted.task, has_tests=own_tests), wanted.name)
    checked, problems = _check(project, text, phased=True)
    if problems:
        raise WorldError("plan.invalid", f"the template is not valid in this project:\n{problems.rstrip()}")
    reason = f"a template for this kind of task ({kind}), since no model planned it: {verdict.reason}"
    return _shown(project, wanted, (reason, text, [], checked), options, source="template")


# The planner


def _uses_small_model(project: Project, options: Options) -> bool:
    """Whether the planner would be the small local model, although the user did not choose it."""
    config, role = project.config, project.roles.find(PLANNER)
    chosen = (options.script, options.model, options.backend, config.text("workflows.model"))
    if any(one is not None for one in chosen) or role is None or role.model or role.backend:
        return False
    try:
        return choose_model(config, local_state(config.home)).model == LOCAL_MODEL
    except FanfoldError:  # the planner's run reports that there is no model
        return False


async def _ask_planner(project: Project, wanted: DraftRequest, options: Options, narrate: Narrate) -> _Draft:
    present = wanted.refine
    roles = [
        f"{name}: {role.description} ({'reads' if role.read_only else 'writes'})"
        for name in project.roles.names()
        if (role := project.roles.find(name)) is not None
    ]
    recipes = [f"{one.name}: {one.description}" for one in project.library.list()]
    inputs: dict[str, JSON] = {
        "task": wanted.task,
        "language": _text("language"),
        "project": look_at(project.folder).described(),
        "roles": "\n".join(roles) or "none",
        "recipes": "\n".join(recipes) or "none",
    }
    if present is not None:
        inputs["present"] = present.data.decode("utf-8", "replace")
    runs: list[str] = []
    model = project.config.text("workflows.model") if options.model is None else None
    while True:
        recipe = planner_recipe(refining=present is not None, again=bool(runs), model=model)
        run_id, answer = await _round(project, recipe, inputs, options, wanted, narrate)
        runs.append(run_id)
        if not answer["fit"]:
            return str(answer["reason"]), "", runs, None
        text = renamed(unfenced(str(answer["recipe"])), wanted.name)
        checked, problems = _check(project, text, phased=present is None)
        if not problems:
            return str(answer["reason"]), text, runs, checked
        if len(runs) == MAX_ROUNDS:
            raise WorldError(
                "plan.invalid",
                f"after {MAX_ROUNDS} rounds the planner's draft is still not valid:\n{problems.rstrip()}",
                hint=f"another model may do better; {wanted.no_model} fills in a template",
                details={"draft": text, "runs": runs},
            )
        narrate(f"the compiler does not take the draft; asking again, round {len(runs) + 1} of {MAX_ROUNDS}")
        inputs["problems"] = problems
        inputs["draft"] = text[:MAX_DRAFT_CHARS]


async def _round(
    project: Project,
    recipe: Recipe,
    inputs: dict[str, JSON],
    options: Options,
    wanted: DraftRequest,
    narrate: Narrate,
) -> tuple[str, dict[str, JSON]]:
    """Run one round of the planner; return the run and its answer."""
    plan = project.plan_of(recipe, scripted=options.script is not None)
    names = {one.name for one in plan.inputs}
    given = {name: value for name, value in inputs.items() if name in names}

    def hear(_run: str, _step: str, news: News) -> None:
        if isinstance(news, Calling):
            narrate(f"{news.tool} {news.about}".rstrip())
        elif isinstance(news, FailedRequest):
            narrate(f"a request to the provider failed: {news.words}")

    handle = RunHandle(
        start(project, plan, given, options, at_home=True), leave_when_waiting=True, on_progress=hear
    )
    narrate(f"the planner works (fanfold transcript {handle.id} {STEP} --follow shows all of it)")
    try:
        result = await handle.result()
    except asyncio.CancelledError:
        await finish_despite_cancel(handle.cancel())
        raise
    answer = result.steps[STEP].output
    if result.status == "completed" and isinstance(answer, dict):
        return result.run_id, answer
    error = result.steps[STEP].error or result.error
    why = result.status if error is None else error.message
    raise WorldError(
        "plan.failed",
        f"the planner returned no draft: {why}",
        hint=f"fanfold inspect {result.run_id} shows what happened; {wanted.no_model} fills in a template",
        details={"run_id": result.run_id, "status": result.status},
    )


def _check(project: Project, text: str, *, phased: bool) -> tuple[CheckedRecipe | None, str]:
    """Return the compiled draft and its problems."""
    if len(text) > MAX_DRAFT_CHARS:
        return None, f"the recipe is longer than {MAX_DRAFT_CHARS} characters"
    found = FoundRecipe(text.encode("utf-8", "replace"), str(project.folder / "draft.yaml"))
    checked = check_found(project, "draft.yaml", found)
    if not checked.ok or checked.plan is None:
        return checked, checked.rendered(colour=False)
    if phased and not checked.plan.phased:
        return checked, "the recipe has `steps`; a plan has `phases`"
    return checked, ""


def _shown(
    project: Project,
    wanted: DraftRequest,
    drafted: _Draft,
    options: Options,
    *,
    source: DraftSource = "model",
) -> DraftedSpec:
    (reason, text, runs, checked), task = drafted, wanted.task
    if checked is None:
        role = "explorer" if judge(task).pattern in _LOOKS else "worker"
        return DraftedSpec(
            task=task,
            fit=False,
            reason=reason,
            suggestion=f"fanfold spawn {role} {shlex.quote(task)}",
            source=source,
            rounds=len(runs),
            runs=runs,
        )
    plan = checked.runnable()
    known = {one.name: one.default for one in plan.inputs if not one.required}
    missing = [f"input {one.name} has to be given" for one in plan.inputs if one.required]
    foreseen, _ = forecast_run(project, checked, known, options, missing)
    difference = ""
    if (old := wanted.refine) is not None:
        before = old.data.decode("utf-8", "replace")
        difference = unified_difference(before, text, old.file, f"{old.file} (refined)")
    return DraftedSpec(
        task=task,
        fit=True,
        reason=reason,
        source=source,
        name=plan.name,
        recipe=text,
        rounds=len(runs),
        runs=runs,
        document=recipe_document(plan, ""),
        agents=foreseen.agents,
        cost=foreseen.cost,
        warnings=foreseen.warnings,
        difference=difference,
    )


# -----------------------------------------------------------------------------------------------------------
# Whether a request suits a workflow: answered by the fast model, else by patterns
#
# Rules
# * The model gets one question without tools, and a short time. On any failure the patterns answer, and the
#   result says so. So there is always an answer with a reason.
# * The small local model is not asked unless the user chose it for such questions (`FANFOLD_WORKFLOW_MODEL`):
#   it is slower than the patterns and less accurate.
# * The question is not a session of a run and is not recorded. The answer triggers nothing by itself.

PATIENCE_S = 20.0
MAX_ANSWER_TOKENS = 300
MAX_REASON_CHARS = 300
_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "required": ["suitable", "reason"],
    "additionalProperties": False,
    "properties": {"suitable": {"type": "boolean"}, "reason": {"type": "string"}},
}


async def workflow_suitable(
    project: Project, text: str, *, model: str | None = None, patience_s: float = PATIENCE_S
) -> Suitability:
    """Return whether a request suits a workflow, with the reason."""
    verdict = judge(text)
    config, chosen = project.config, None
    named = model or config.text("workflows.model")
    note = "the local model is used for this only if you choose it"
    try:
        choice = choose_model(config, local_state(config.home), flag=named)
        if choice.provider is not None or named is not None:
            chosen, note = choice.fast_model or choice.model, ""
    except FanfoldError as error:
        note = error.message
    if chosen is not None and verdict.pattern != "nothing":
        try:
            answer, spent = await asyncio.wait_for(_ask(project, chosen, text), patience_s)
            reason = str(answer["reason"])[:MAX_REASON_CHARS]
            usage = None if spent is None else run_usage(spent, 1)
            return Suitability(bool(answer["suitable"]), reason, "model", usage=usage)
        except TimeoutError:
            note = f"{chosen} gave no answer within {patience_s:.0f} s"
        except FanfoldError as error:
            note = f"{chosen} gave no answer: {error.message}"
    return structs.replace(verdict, note=note)


async def _ask(project: Project, model: str, text: str) -> tuple[dict[str, JSON], Usage | None]:
    setup = BackendSetup(
        machine=project.backends.machine, toolbox=SessionTools, find_role=lambda _: None, model=model
    )
    backends = project.backends.open(setup)
    request = SessionRequest(
        session_id="intent",
        run_id="intent",
        step="intent",
        attempt=1,
        execution=1,
        role=Role(
            name="intent",
            description="",
            instructions=_text("judge"),
            sandbox_mode="read-only",
            tools=(),
            max_turns=3,
        ),
        prompt=f"The request, as a JSON string:\n{json.dumps(text[:MAX_CHARS], ensure_ascii=False)}",
        max_output_tokens=MAX_ANSWER_TOKENS,
        output_schema=_SCHEMA,
        account=Account(caps=DailyCaps.of(project.config)),
    )
    try:
        result = await backends.named(MODEL).run(request, _forget, lambda _: None)
    finally:
        await backends.aclose()
    request.account.paid(result.usage)
    assert isinstance(result.output, dict), "the session held its answer against the schema"
    return result.output, result.usage


async def _forget(entry: Entry, *, may_wait: bool = False) -> None:
    del entry, may_wait
