"""Drafting a spec from a task, and refining one: asked of the planner, checked by the compiler, shown first.

Rules
* A draft is a recipe like any other to the compiler. What is wrong with it goes back to the planner in the
  compiler's own words, at most `MAX_ROUNDS` times; then it is refused, never mended here.
* Nothing of a draft runs. Its size and price are those of its dry run.
* Where there is no model, a template of the task's kind is filled in and marked as one. A refinement needs a
  model. The small local model counts as none unless somebody names it: it takes minutes over a plan and has
  never made one that compiles.
* Each round is a run of one read-only step, with everything that runs have: log, price, transcript. Whoever
  waits hears what it does meanwhile; whoever stops waiting ends it.
"""

from __future__ import annotations

import asyncio
import difflib
import shlex
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, structs

from fanfold.agents.entries import Calling, News, Retrying
from fanfold.agents.local.weights import local_state
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.plan import JSON
from fanfold.recipe.builder import Recipe
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.runtime.model_choice import LOCAL_MODEL, choose_model
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import CheckedRecipe, check_found, renamed
from fanfold.runtime.operations.runs.handle import RunHandle
from fanfold.runtime.operations.runs.starting.creation import start
from fanfold.runtime.operations.runs.starting.dry_run import foresee_run
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.specs.intent_patterns import judge, kind_of
from fanfold.runtime.specs.planner import (
    LANGUAGE,
    MAX_DRAFT_CHARS,
    MAX_ROUNDS,
    PLANNER,
    STEP,
    planner_recipe,
    told_about,
    unfenced,
)
from fanfold.runtime.specs.project_shape import look_at
from fanfold.runtime.specs.template_files import fill_in
from fanfold.runtime.views.recipes.documents import recipe_document
from fanfold.runtime.views.recipes.specs import DraftedSpec, Source
from fanfold.sessions.insist import insist
from fanfold.text.terminal import visible

Narrate: TypeAlias = Callable[[str], None]
"""Hears what happens while a plan is made, in lines."""
MAX_TASK_CHARS = 20_000
NO_MODEL = "provider.none"
TOO_SMALL = "the local model is too small to plan"
_LOOKS = frozenset({"asking how", "looking", "question"})


class Wanted(Struct, frozen=True, kw_only=True):
    """What is to be drafted, or changed."""

    task: str
    name: str | None = None
    """What the recipe is to be called; else the planner, or the task, says."""
    refine: FoundRecipe | None = None
    """The recipe that `task` says how to change."""
    use_model: bool = True
    anyway: bool = False
    """Draft a template also for what looks like work for one agent."""
    no_model: str = "use_model=False"
    """How whoever asks says that no model is to be asked: hints speak the language of their surface."""


class _Drafted(Struct, frozen=True):
    """An answer of the planner that the compiler had nothing against."""

    fit: bool
    reason: str
    text: str
    runs: list[str]
    checked: CheckedRecipe | None


def checked_wish(wanted: Wanted) -> Wanted:
    """What is wanted, with a task that a recipe can hold; raises whatever can be said against it."""
    task = visible(wanted.task.strip(), keep="\n\t")  # a recipe holds no control characters
    if not task or len(task) > MAX_TASK_CHARS:
        message = "there is no task" if not task else f"the task is longer than {MAX_TASK_CHARS} characters"
        raise AuthorError("plan.bad_task", message, hint="say in a few sentences what is to be done")
    if wanted.refine is not None and not wanted.use_model:
        message = "a recipe is refined by a model, and none is to be asked"
        raise AuthorError(
            "plan.no_model", message, hint=f"leave {wanted.no_model} out, or edit the file yourself"
        )
    return structs.replace(wanted, task=task)


async def draft_spec(
    project: Project, wanted: Wanted, options: Options | None = None, *, narrate: Narrate = lambda _: None
) -> DraftedSpec:
    """A recipe for a task, checked and priced; or the reason why one agent does it better."""
    options = options or Options()
    wanted = checked_wish(wanted)
    if wanted.use_model and _is_left_to_the_small_model(project, options):
        if wanted.refine is not None:
            message = f"a recipe is refined by a model, and {TOO_SMALL}"
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
    return _from_template(project, wanted, options)


# The planner


def _is_left_to_the_small_model(project: Project, options: Options) -> bool:
    """Whether the planner would be the small local model, for want of any other and by nobody's choice."""
    config, role = project.config, project.roles.find(PLANNER)
    chosen = (options.script, options.model, options.backend, config.text("workflows.model"))
    if any(one is not None for one in chosen) or role is None or role.model or role.backend:
        return False
    try:
        return choose_model(config, local_state(config.home)).model == LOCAL_MODEL
    except FanfoldError:  # there is none at all, which the planner's run tells
        return False


async def _ask_planner(project: Project, wanted: Wanted, options: Options, narrate: Narrate) -> _Drafted:
    present = wanted.refine
    inputs: dict[str, JSON] = {
        "task": wanted.task,
        "language": LANGUAGE,
        "project": look_at(project.folder).described(),
        "roles": told_about([(name, _about_role(project, name)) for name in project.roles.names()]),
        "recipes": told_about([(one.name, one.description) for one in project.library.list()]),
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
            return _Drafted(False, str(answer["reason"]), "", runs, None)
        text = _named(unfenced(str(answer["recipe"])), wanted)
        checked, problems = _check(project, text, phased=present is None)
        if not problems:
            return _Drafted(True, str(answer["reason"]), text, runs, checked)
        if len(runs) == MAX_ROUNDS:
            raise _refused(problems, text, runs, wanted)
        narrate(f"the compiler does not take the draft; asking again, round {len(runs) + 1} of {MAX_ROUNDS}")
        inputs["problems"] = problems
        inputs["draft"] = text[:MAX_DRAFT_CHARS]


async def _round(
    project: Project,
    recipe: Recipe,
    inputs: dict[str, JSON],
    options: Options,
    wanted: Wanted,
    narrate: Narrate,
) -> tuple[str, dict[str, JSON]]:
    """One question to the planner: the run, and what it answered."""
    plan = project.plan_of(recipe, scripted=options.script is not None)
    names = {one.name for one in plan.inputs}
    given = {name: value for name, value in inputs.items() if name in names}

    def hear(_run: str, _step: str, news: News) -> None:
        if isinstance(news, Calling):
            narrate(f"{news.tool} {news.about}".rstrip())
        elif isinstance(news, Retrying):
            narrate(f"the provider is asked again in {news.wait_s:.0f} s ({news.kind})")

    handle = RunHandle(start(project, plan, given, options), leave_when_waiting=True, on_progress=hear)
    narrate(f"the planner works (fanfold transcript {handle.id} {STEP} --follow shows all of it)")
    try:
        result = await handle.result()
    except asyncio.CancelledError:
        await insist(handle.cancel())
        raise
    answer = result.steps[STEP].output
    if result.status == "completed" and isinstance(answer, dict):
        return result.run_id, answer
    error = result.steps[STEP].error or result.error
    why = result.status if error is None else error.message
    raise WorldError(
        "plan.failed",
        f"the planner gave no draft: {why}",
        hint=f"fanfold inspect {result.run_id} shows what happened; {wanted.no_model} fills in a template",
        details={"run_id": result.run_id, "status": result.status},
    )


def _named(text: str, wanted: Wanted) -> str:
    return text if wanted.name is None else renamed(text, wanted.name)


def _about_role(project: Project, name: str) -> str:
    role = project.roles.find(name)
    if role is None:
        return ""
    return f"{role.description} ({'reads' if role.read_only else 'writes'})"


def _check(project: Project, text: str, *, phased: bool) -> tuple[CheckedRecipe | None, str]:
    """The compiled draft, and what is wrong with it."""
    if len(text) > MAX_DRAFT_CHARS:
        return None, f"the recipe is longer than {MAX_DRAFT_CHARS} characters"
    found = FoundRecipe(text.encode("utf-8", "replace"), str(project.folder / "draft.yaml"))
    checked = check_found(project, "draft.yaml", found)
    if not checked.ok or checked.plan is None:
        return checked, checked.rendered(colour=False)
    if phased and not checked.plan.phased:
        return checked, "the recipe has `steps`; a plan has `phases`"
    return checked, ""


def _refused(problems: str, text: str, runs: list[str], wanted: Wanted) -> WorldError:
    return WorldError(
        "plan.invalid",
        f"after {MAX_ROUNDS} rounds the planner's draft is still not valid:\n{problems.rstrip()}",
        hint=f"another model may do better; {wanted.no_model} fills in a template",
        details={"draft": text, "runs": runs},
    )


# Templates


def _from_template(project: Project, wanted: Wanted, options: Options) -> DraftedSpec:
    told = judge(wanted.task)
    if not told.suitable and not wanted.anyway:
        drafted = _Drafted(False, told.reason, "", [], None)
        return _shown(project, wanted, drafted, options, source="template")
    kind = kind_of(wanted.task)
    own_tests = project.around.own_command("tests") is not None
    text = _named(fill_in(kind, wanted.task, has_tests=own_tests), wanted)
    checked, problems = _check(project, text, phased=True)
    if problems:
        raise WorldError("plan.invalid", f"the template does not fit this project:\n{problems.rstrip()}")
    reason = f"a template for this kind of task ({kind}), since no model planned it: {told.reason}"
    return _shown(project, wanted, _Drafted(True, reason, text, [], checked), options, source="template")


# What is shown


def _shown(
    project: Project, wanted: Wanted, drafted: _Drafted, options: Options, *, source: Source = "model"
) -> DraftedSpec:
    runs, task = drafted.runs, wanted.task
    if drafted.checked is None:
        return DraftedSpec(
            task=task, fit=False, reason=drafted.reason, suggestion=_one_agent(task), source=source,
            rounds=len(runs), runs=runs,
        )  # fmt: skip
    plan = drafted.checked.runnable()
    known = {one.name: one.default for one in plan.inputs if not one.required}
    missing = [f"input {one.name} has to be given" for one in plan.inputs if one.required]
    foreseen, _ = foresee_run(project, drafted.checked, known, options, missing)
    return DraftedSpec(
        task=task,
        fit=True,
        reason=drafted.reason,
        source=source,
        name=plan.name,
        recipe=drafted.text,
        rounds=len(runs),
        runs=runs,
        document=recipe_document(plan, ""),
        agents=foreseen.agents,
        cost=foreseen.cost,
        warnings=foreseen.warnings,
        difference=_difference(wanted.refine, drafted.text),
    )


def _one_agent(task: str) -> str:
    role = "explorer" if judge(task).pattern in _LOOKS else "worker"
    return f"fanfold spawn {role} {shlex.quote(task)}"


def _difference(before: FoundRecipe | None, after: str) -> str:
    if before is None:
        return ""
    old = before.data.decode("utf-8", "replace").splitlines(keepends=True)
    lines = difflib.unified_diff(
        old, after.splitlines(keepends=True), before.file, f"{before.file} (refined)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
