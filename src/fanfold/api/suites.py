"""Test suites of cassettes: run them in parallel, report them, and compare runs and models.

Rules
* One process replays many cassettes. More processes are started only for suites that are worth it.
* A live run works on a copy of the project, never in the project itself. Its permission is asked like that of
  any run.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from fanfold.api.cassettes import CaseReport, Mode, Recorder, Suite, condition_names, project_in, shown_name
from fanfold.api.explain import plan_steps, recipe_path
from fanfold.api.history import find_run
from fanfold.api.overview import Comparison, compare_runs
from fanfold.api.project import Project
from fanfold.api.run_options import Options, micro_usd
from fanfold.api.start import start
from fanfold.engine.run_tree import wall_clock_ms
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON, LeafAction, Plan, Step
from fanfold.kernel.state import BUDGET, PAUSED
from fanfold.language.cassettes import (
    AttemptRecord,
    Cassette,
    Difference,
    Expectations,
    bytes_of,
    differences,
    find_cassettes,
    read_cassette,
    unmet,
    write_cassette,
)
from fanfold.language.json_text import misfits
from fanfold.project_files import write_beneath, write_whole
from fanfold.sessions.reaper import PR_SET_PDEATHSIG, prctl, warm_up
from fanfold.steps.executor import SKIPPED_FOLDERS
from fanfold.store.address import SqliteAddress

MAX_JOBS, MAX_REPEATS = 64, 1_000
MIN_SHARE = 12
"""The least number of cassettes for which another process is started."""
AT_ONCE = 4
"""How many cassettes one process replays at once: some wait for files while others work."""
MAX_COMPARISONS = 20
MAX_COPY_BYTES = 256 * 1024 * 1024


class TestRequest(Struct, frozen=True, kw_only=True):
    """The cassettes to test, and the options of the test."""

    __test__ = False  # for pytest: the name is no test

    paths: tuple[Path, ...]
    mode: Mode | None = None
    update: bool = False
    jobs: int | None = None
    coverage: bool = False
    generate: bool = False
    models: tuple[str, ...] = ()
    repeat: int = 1
    budget_usd: float | None = None
    budget_tokens: int | None = None
    yes: bool = False

    def check(self) -> None:
        """Raise `AuthorError` for a request that cannot be carried out."""
        for name, value, most in (
            ("jobs", 1 if self.jobs is None else self.jobs, MAX_JOBS),
            ("repeat", self.repeat, MAX_REPEATS),
        ):
            if not 1 <= value <= most:
                message = f"--{name} must be from 1 to {most:,}, not {value}"
                raise AuthorError("usage.out_of_range", message)
        if self.mode == "live-changed" and not (self.budget_usd or self.budget_tokens):
            hint = "add --budget-usd or --budget-tokens"
            raise AuthorError("usage.missing_option", "live-changed asks models and needs a limit", hint=hint)


class ModelRow(Struct, frozen=True, kw_only=True):
    """The results of one case on one model. `low` and `high` bound the pass rate (Wilson, 95 %)."""

    case: str
    model: str
    runs: int
    passed: int
    low: float
    high: float
    usd: float | None
    """The mean price of a run; None if a price is unknown."""
    seconds: float
    """The mean time of a run."""
    problems: list[str] = []
    """Why runs did not pass, each reason once."""


class ModelComparison(Struct, frozen=True, kw_only=True):
    """The rows of one live comparison, and when it ended, in milliseconds since the epoch."""

    at: int
    rows: list[ModelRow]


class ModelComparisons(Struct, frozen=True):
    """The latest live comparisons in a project, newest first."""

    items: list[ModelComparison]


class TestReport(Struct, frozen=True, kw_only=True):
    """The outcome of a suite."""

    __test__ = False  # for pytest: the name is no test

    ok: bool
    cases: list[CaseReport]
    ms: int
    coverage: list[RecipeCoverage] = []
    generated: list[str] = []
    models: list[ModelRow] = []

    @property
    def counts(self) -> Counter[str]:
        return Counter(case.status for case in self.cases)


def _find(paths: Sequence[Path], top: Path) -> tuple[list[Path], list[Path]]:
    """Return the cassettes in these paths, and the paths that do not exist."""
    return find_cassettes(paths, top), [path for path in paths if not os.path.lexists(path)]


async def run_suite(project: Project, request: TestRequest) -> TestReport:
    """Replay cassettes and report what changed; with `models`, run their inputs live instead."""
    request.check()
    files, missing = await asyncio.to_thread(_find, request.paths, project.folder)
    if missing or not files:
        named = ", ".join(map(shown_name, missing or request.paths))
        message = f"{named} does not exist" if missing else f"there is no cassette in {named}"
        raise AuthorError("cassette.none", message, hint="record a run first: fanfold record last")
    since = time.monotonic()
    generated: list[Path] = []
    budgets = {"budget_micro_usd": micro_usd(request.budget_usd), "budget_tokens": request.budget_tokens}
    with Suite(project, mode=request.mode, budgets=budgets, yes=request.yes) as suite:
        if request.models:
            rows = await compare_models(suite, files, request)
            await asyncio.to_thread(_keep, project, rows)
            ok, took = all(row.passed == row.runs > 0 for row in rows), time.monotonic() - since
            return TestReport(ok=ok, cases=[], ms=round(took * 1_000), models=rows)
        cases = await _replay_all(suite, files, request)
        bases = []
        for file, case in zip(files, cases, strict=True):
            if case.recipe and (request.coverage or request.generate):
                cassette = read_cassette(file, project.folder)
                bases.append((file, cassette, suite.plan_of(cassette, file)))
        if request.generate:
            generated = await generate(suite, bases, cases)
            cases += [await _case(suite, file) for file in generated]
        found = coverage((plan for _, _, plan in bases), cases)
    return TestReport(
        ok=all(case.status not in ("failed", "error") for case in cases),
        cases=cases,
        ms=round((time.monotonic() - since) * 1_000),
        coverage=found,
        generated=[shown_name(file) for file in generated],
    )


async def _case(suite: Suite, file: Path, *, update: bool = False) -> CaseReport:
    report, new = await suite.test(file, update=update)
    reached = [] if new is None else sorted(reached_points(suite.plan_of(new, file), new))
    return replace(report, reached=reached)


async def _replay_all(suite: Suite, files: Sequence[Path], request: TestRequest) -> list[CaseReport]:
    jobs = min(request.jobs or os.cpu_count() or 1, max(1, len(files) // MIN_SHARE))
    if jobs > 1 and request.mode != "live-changed":
        shares = (_elsewhere(suite.project, files[number::jobs], request) for number in range(jobs))
        by_file = {case.file: case for cases in await asyncio.gather(*shares) for case in cases}
        return [by_file[shown_name(file)] for file in files]
    slots = asyncio.Semaphore(1 if request.mode == "live-changed" else AT_ONCE)  # they share a budget

    async def test(file: Path) -> CaseReport:
        async with slots:
            return await _case(suite, file, update=request.update)

    return list(await asyncio.gather(*map(test, files)))


async def _elsewhere(project: Project, files: Sequence[Path], request: TestRequest) -> list[CaseReport]:
    """Replay a share of the cassettes in another process, which ends if this one is killed."""
    warm_up()
    words = [sys.executable, "-P", "-m", "fanfold.cli.main", "test", "--json", "--jobs", "1"]
    words += ["--project", str(project.folder), *(["--mode", request.mode] if request.mode else [])]
    words += ["--update"] if request.update else []
    process = await asyncio.create_subprocess_exec(
        *words,
        "--",
        *map(str, files),
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    out, _ = await process.communicate()
    try:
        return msgspec.json.decode(out, type=TestReport).cases
    except msgspec.DecodeError:
        message = f"a process that replays cassettes ended with status {process.returncode} and no report"
        raise WorldError("cassette.worker", message, hint="--jobs 1 uses one process") from None


def junit(report: TestReport) -> str:
    """Return a report as JUnit XML."""
    counts = report.counts
    found = f'tests="{len(report.cases)}" failures="{counts["failed"]}" errors="{counts["error"]}"'
    head = f'<testsuite name="fanfold" {found} time="{report.ms / 1_000:.3f}">'
    lines = ['<?xml version="1.0" encoding="utf-8"?>', head]
    for case in report.cases:
        text = "\n".join(f"{one.kind}: {one.message}\n{one.diff}" for one in case.differences)
        tag = {"failed": "failure", "error": "error"}.get(case.status, "system-out")
        about = f" message={quoteattr(_xml(case.differences[0].message))}" if tag != "system-out" else ""
        inner = f"<{tag}{about}>{escape(_xml(text))}</{tag}>" if text else ""
        named = f"name={quoteattr(_xml(case.file))} classname={quoteattr(_xml(case.recipe))}"
        lines.append(f'<testcase {named} time="{case.ms / 1_000:.3f}">{inner}</testcase>')
    return "\n".join((*lines, "</testsuite>", ""))


def _xml(text: str) -> str:
    """Return text without characters that XML cannot contain."""
    return "".join(c if c in "\t\n" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe" else "?" for c in text)


# -----------------------------------------------------------------------------------------------------------
# Comparisons of two runs, and of models


class RunComparison(Struct, frozen=True):
    """Two runs, step by step, and how the second one differs from the first."""

    runs: Comparison
    differences: list[Difference]


def compare(project: Project, a: str, b: str) -> RunComparison:
    """Compare two runs of one recipe, or of different ones."""
    trees = (find_run(project, name).tree for name in (a, b))
    one, other = (Recorder(project, tree).cassette(tree.root.plan.name) for tree in trees)
    runs = compare_runs(project, a, b)
    return RunComparison(runs, differences(one, other, (runs.a.run_id, runs.b.run_id)))


class _LiveRun(Struct, frozen=True):
    """The end of one live run. `problem` is empty if it passed."""

    problem: str
    usage: Usage
    seconds: float
    is_cut: bool
    """Whether the budget ended it."""


async def compare_models(suite: Suite, files: Sequence[Path], request: TestRequest) -> list[ModelRow]:
    """Run the inputs of cassettes live on several models, and judge the runs by status and expectations.

    The budget is for all runs together. Runs that it does not cover do not count.
    """
    rows: list[ModelRow] = []
    for file in files:
        cassette = read_cassette(file, suite.project.folder)
        plan = suite.plan_of(cassette, file)
        for model in request.models:
            runs: list[_LiveRun] = []
            problems = [] if _is_left(suite) else ["the budget is spent"]
            while len(runs) < request.repeat and _is_left(suite):
                run = await _run_live(suite, cassette, plan, model, request)
                suite.spend(run.usage)
                problems += [run.problem] if run.problem else []
                if run.is_cut:
                    break
                runs.append(run)
            passed, count = sum(not one.problem for one in runs), len(runs)
            prices = [one.usage.micro_usd for one in runs]
            low, high = wilson(passed, count)
            row = ModelRow(
                case=shown_name(file), model=model, runs=count, passed=passed, low=low, high=high,
                usd=None if None in prices else sum(one or 0 for one in prices) / 1e6 / max(1, count),
                seconds=sum(one.seconds for one in runs) / max(1, count),
                problems=list(dict.fromkeys(problems)),
            )  # fmt: skip
            rows.append(row)
    return rows


def list_comparisons(project: Project) -> ModelComparisons:
    """Return the live comparisons that are kept, for the console."""
    try:
        data = project.own_file("comparisons", "json").read_bytes()
        return msgspec.json.decode(data, type=ModelComparisons)
    except (FileNotFoundError, msgspec.DecodeError):
        return ModelComparisons([])


def _keep(project: Project, rows: list[ModelRow]) -> None:
    file = project.own_file("comparisons", "json")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = ModelComparison(at=wall_clock_ms(), rows=rows)
    kept = ModelComparisons([made, *list_comparisons(project).items][:MAX_COMPARISONS])
    write_whole(file, project.backends.machine.redactor.encoded(msgspec.json.encode(kept)))


def _is_left(suite: Suite) -> bool:
    return all(most > 0 for most in suite.left.values())


def wilson(passed: int, runs: int) -> tuple[float, float]:
    """Return the 95 % interval of a pass rate (Wilson's score interval).

    >>> [round(bound, 2) for bound in wilson(9, 10)]
    [0.6, 0.98]
    """
    if not runs:
        return 0.0, 1.0
    z, rate = 1.96, passed / runs
    middle, scale = rate + z * z / (2 * runs), 1 + z * z / runs
    spread = z * ((rate * (1 - rate) + z * z / (4 * runs)) / runs) ** 0.5
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


async def _run_live(
    suite: Suite, cassette: Cassette, plan: Plan, model: str, request: TestRequest
) -> _LiveRun:
    """Run a recipe on a model, in a copy of the project with the files of a cassette."""
    mine = suite.project
    folder = Path(tempfile.mkdtemp(prefix="fanfold-live-"))
    clean = mine.backends.machine.redactor.encoded
    store = SqliteAddress(folder=folder / "store", durability="normal", clean=clean).open()
    try:
        await asyncio.to_thread(_copy, mine.folder, folder / "project", cassette)
        project = project_in(folder / "project", mine, store, mine.config, mine.backends)
        since = time.monotonic()
        options = Options(model=model, **suite.limits)
        owned = start(project, plan, cassette.inputs, options, yes=request.yes)
        try:
            await owned.host(observed=False).start()
        finally:
            owned.let_go()
        seconds = time.monotonic() - since
        result = Recorder(project, owned.tree).cassette(cassette.recipe).result
        assert result is not None, "it was recorded"
        expect = replace(cassette.expect, status=cassette.expect.status or "completed")
        broken = next(unmet(expect, result, condition_names(owned.tree)), None)
        root = owned.tree.root
        problem = "" if broken is None else f"{broken.message} {result.error}".strip()
        is_cut = root.status == PAUSED and owned.tree.state.pausing == BUDGET
        return _LiveRun(problem, result.usage, seconds, is_cut)
    finally:
        store.close()
        await asyncio.to_thread(shutil.rmtree, folder, True)


def _copy(source: Path, target: Path, cassette: Cassette) -> None:
    """Copy a project without its history, state, dependencies and caches, with the files of a cassette."""
    total = 0

    def left_out(folder: str, names: list[str]) -> frozenset[str]:
        nonlocal total
        total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
        if total > MAX_COPY_BYTES:
            message = f"{source} is too large to be copied for a live run"
            raise WorldError("cassette.too_large", message, hint="test live in a smaller project")
        return SKIPPED_FOLDERS & set(names)

    try:
        shutil.copytree(source, target, symlinks=True, ignore=left_out)
    except shutil.Error as error:
        raise WorldError("cassette.copy", f"{source} cannot be copied: {str(error)[:200]}") from None
    for path, content in cassette.files.items():
        write_beneath(target, path, bytes_of(content))
    for path in cassette.changed:  # the recorded run added those that it did not start from
        added = Path(os.path.realpath(target), path)
        leads_out = os.path.realpath(added.parent) != str(added.parent)  # by a link of the project
        if path not in cassette.files and not leads_out:
            with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                added.unlink()


# -----------------------------------------------------------------------------------------------------------
# Recipe coverage: which branches of a recipe a suite of cassettes reaches, and cases for those it does not.
#
# Points of a recipe, by the path of a step without numbers
# * `when true`, `when false`, `until true`, `until false`: the verdicts of its condition and of its gate.
# * `for_each some`, `for_each empty`: its list. `exhausted`: its gate never passed.
# * `retry`: a second attempt. `fails`: it ends as failed, so its failure policy applies.
# * `answer X`: a decision of a person, one point for each choice.
#
# A generated case is a recorded one with some answers replaced. It is replayed, and kept only if it reaches
# its point. So what is written is always a test that passes.

MAX_TRIES = 24
"""How many cases are replayed for one point."""
_LITERAL = r"""'([^']*)'|"([^"]*)"|(?<![\w.])(\d+)(?![\w.])"""
_REFERENCE = r"(?:steps\.(\w+?)(?:\.output)?|(output)|inputs\.(\w+))\b(?:\.([a-z_]\w*)\b(?!\())?"


class RecipeCoverage(Struct, frozen=True, kw_only=True):
    """The points of one recipe."""

    recipe: str
    reached: list[str]
    missing: list[str]

    @property
    def percent(self) -> int:
        return round(100 * len(self.reached) / max(1, len(self.reached) + len(self.missing)))


def points_of(plan: Plan) -> dict[str, Step]:
    """Return the points of a recipe, each with its step."""
    points: dict[str, Step] = {}
    for path, step in plan_steps(plan.steps, called=plan.workflows):
        names = ["when true", "when false"] if step.when is not None else []
        names += ["for_each some", "for_each empty"] if step.for_each is not None else []
        names += ["until true", "until false", "exhausted"] if step.repeat is not None else []
        names += _leaf_points(step, step.action) if isinstance(step.action, LeafAction) else []
        points |= {f"{path}: {name}": step for name in names}
    return points


def _leaf_points(step: Step, action: LeafAction) -> list[str]:
    traits, choices = action.traits, action.body.get("choices")
    if traits.waits == "person":
        usual = ["approve", "reject"] if traits.rejectable else []
        return [f"answer {one}" for one in (choices if isinstance(choices, list | tuple) else usual) or usual]
    if traits.waits is not None or traits.ends is not None or action.type == "set":
        return []
    return ["fails", "retry"] if step.retry.attempts > 1 and traits.role is not None else ["fails"]


def reached_points(plan: Plan, replayed: Cassette) -> set[str]:
    """Return the points of a recipe that a recorded run reached."""
    points, result, found = points_of(plan), replayed.result, set[str]()
    assert result is not None, "a replay has a result"
    rounds: dict[str, list[str]] = {}
    for line in result.decisions:
        path, what, value = line.rsplit(" ", 2)
        value = value if what != "for_each" else "empty" if value == "0" else "some"
        found.add(f"{recipe_path(path)}: {what} {value}")
        rounds.setdefault(path, []).extend([value] if what == "until" else [])
    for path, verdicts in rounds.items():
        loop = points.get(point := f"{recipe_path(path)}: exhausted")
        if loop is not None and loop.repeat is not None and "true" not in verdicts:
            found |= {point} if len(verdicts) >= loop.repeat.max_iterations else set()
    for path, attempts in replayed.steps.items():
        for one in attempts:
            decided = one.output.get("decision") if isinstance(one.output, dict) else one.output
            found |= {f"{recipe_path(path)}: answer {decided}"} if one.question else set()
        found |= {f"{recipe_path(path)}: retry"} if len(attempts) > 1 else set()
    lines = (line.partition(" ") for line in result.order)
    found |= {f"{recipe_path(path)}: fails" for path, _, word in lines if word.startswith("failed")}
    return found & points.keys()


def coverage(plans: Iterable[Plan], cases: Sequence[CaseReport]) -> list[RecipeCoverage]:
    """Return the coverage of each recipe that the cases replay."""
    found = []
    for plan in {plan.name: plan for plan in plans}.values():
        reached = {point for case in cases if case.recipe == plan.name for point in case.reached}
        points = points_of(plan)
        missing = [point for point in points if point not in reached]
        done = [point for point in points if point in reached]
        found.append(RecipeCoverage(recipe=plan.name, reached=done, missing=missing))
    return found


# -----------------------------------------------------------------------------------------------------------
# Generated cases

Base = tuple[Path, Cassette, Plan]


async def generate(suite: Suite, bases: Sequence[Base], cases: Sequence[CaseReport]) -> list[Path]:
    """Write a case for each point that no case reaches, as far as one is found. Returns the new files."""
    written: list[Path] = []
    for one in coverage([plan for _, _, plan in bases], cases):
        missing = dict.fromkeys(one.missing)
        while missing:
            point = next(iter(missing))
            del missing[point]
            own = [base for base in bases if base[2].name == one.recipe]
            found = await _case_for(suite, point, own)
            if found is not None:
                file, case, plan = found
                write_cassette(case, file, suite.project.folder)
                written.append(file)
                for reached in reached_points(plan, case):
                    missing.pop(reached, None)
    return written


async def _case_for(suite: Suite, point: str, bases: Sequence[Base]) -> Base | None:
    for file, cassette, plan in bases:
        for variant in islice(_variants(cassette, plan, point), MAX_TRIES):
            try:
                new, _ = await suite.replay(variant, plan)
            except FanfoldError:
                continue  # for example: the recipe refuses these inputs
            if new.result is not None and point in reached_points(plan, new):
                name = re.sub(r"[^a-z0-9]+", "-", point.lower()).strip("-")
                expect = Expectations(status=new.result.status)
                return file.with_name(f"{file.stem}-{name}.yaml"), replace(new, expect=expect), plan
    return None


def _variants(cassette: Cassette, plan: Plan, point: str) -> Iterator[Cassette]:
    """Yield changed cassettes that may reach a point of a recipe."""
    base = replace(cassette, result=None, expect=Expectations())
    (path, _, what), step = point.partition(": "), points_of(plan)[point]
    own = [name for name in base.steps if recipe_path(name) == path]
    if what in ("fails", "retry"):
        kind = step.retry.on[0] if what == "retry" and step.retry.on else "agent"
        failure = Failure(kind, f"generated.{kind}", "generated to reach this branch")
        for name in own or [path]:
            first = base.steps.get(name, (AttemptRecord(output=""),))[0]
            failed = replace(_emptied(first), status="failed", fail=failure)
            yield _with(base, name, (failed,) if what == "fails" else (failed, first))
    elif what.startswith("answer "):
        choice = what.removeprefix("answer ")
        output: JSON = {"decision": choice, "by": "test"} if step.type == "approval" else choice
        for name in own:
            yield _with(base, name, (replace(base.steps[name][0], output=output, fail=None),))
    else:
        until = None
        if step.repeat is not None:
            steps = dict(base.steps)
            for name, attempts in base.steps.items():
                found = re.fullmatch(r"(.*)#\d+(.*)", name)
                if found is not None and recipe_path(found[1]) == path:
                    steps |= {
                        f"{found[1]}#{n}{found[2]}": steps.get(f"{found[1]}#{n}{found[2]}", attempts)
                        for n in range(1, step.repeat.max_iterations + 1)
                    }
            until, base = step.repeat.until, replace(base, steps=steps)
        text = {"when": step.when, "for_each": step.for_each}.get(what.split()[0], until) or ""
        yield from _with_other_values(base, plan, path, text, what)


def _with_other_values(base: Cassette, plan: Plan, path: str, text: str, what: str) -> Iterator[Cassette]:
    """Yield cassettes in which the values that an expression refers to are different."""
    above = path.rpartition("/")[0]
    schemas = {name: step.output_schema for name, step in plan_steps(plan.steps, called=plan.workflows)}
    for step, own, given, field in re.findall(_REFERENCE, text):
        for value in _candidates(text, what):
            if given:
                yield replace(base, inputs={**base.inputs, given: _at(base.inputs.get(given), field, value)})
                continue
            changed = base
            for name, attempts in base.steps.items():
                scope, _, last = recipe_path(name).rpartition("/")
                inside = recipe_path(name) == path or scope == path if own else scope in (above, path)
                if inside and (own or last.replace("-", "_") == step):
                    others = tuple(_valued(one, field, value) for one in attempts)
                    schema, output = schemas.get(recipe_path(name)), others[-1].output
                    if schema is None or output is UNSET or not misfits(schema, output):
                        changed = _with(changed, name, others)
            if changed is not base:
                yield changed


def _valued(one: AttemptRecord, field: str, value: JSON) -> AttemptRecord:
    """Return an attempt with another value in its output, or in one field of it."""
    if not one.command:
        return replace(_emptied(one), output=_at(None if one.output is UNSET else one.output, field, value))
    if field in ("stdout", "stderr"):
        return replace(one, **{field: str(value)})
    return replace(one, exit_code=value if type(value) is int else 1, fail=None)


def _at(before: Any, field: str, value: JSON) -> JSON:
    return value if not field else {**(before if isinstance(before, dict) else {}), field: value}


def _candidates(text: str, what: str) -> Iterator[JSON]:
    """Yield values that may decide an expression: its own literals, and simple values near them."""
    usual: dict[str, list[JSON]] = {"for_each empty": [[]], "for_each some": [["one"], [{}], [1]]}
    yield from usual.get(what, [True, False])
    for single, double, number in re.findall(_LITERAL, text):
        yield from (int(number), int(number) + 1, int(number) - 1) if number else (single or double,)
    yield from ("", "other", 0, 1, None, [], {})


def _with(base: Cassette, name: str, attempts: tuple[AttemptRecord, ...]) -> Cassette:
    return replace(base, steps={**base.steps, name: attempts})


def _emptied(one: AttemptRecord) -> AttemptRecord:
    asked = ("role", "prompt", "program", "command", "function", "question", "inputs", "ms")
    return AttemptRecord(**{name: getattr(one, name) for name in asked})
