"""Handlers: those of a project's files in processes of their own, all of them with values of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fanfold
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.cli.main import main
from fanfold.store.protocol import LeaseLost
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

HANDLERS = """
import asyncio, ctypes, os, sys, time

import fanfold

print("imported", flush=True)
COUNTED = []


@fanfold.function
def add(items, item):
    items.append(item)
    COUNTED.append(item)
    print("on stdout")
    os.system("echo from a program")
    return {"items": items, "counted": len(COUNTED), "pid": os.getpid(), "folder": os.getcwd()}


@fanfold.function
async def add_later(items):
    items.clear()
    return items


@fanfold.function
def environment():
    return dict(os.environ)


@fanfold.function
async def cancelled():
    raise asyncio.CancelledError


@fanfold.function
def leaves():
    sys.exit(3)


@fanfold.function
async def leaves_later():
    sys.exit(4)


@fanfold.function
def interrupted():
    raise KeyboardInterrupt


@fanfold.function
async def closed():
    raise GeneratorExit


@fanfold.function
def dies():
    print("last words")
    os._exit(7)


@fanfold.function
def crashes():
    ctypes.string_at(0)


@fanfold.function
def forks():
    os.fork()
    return "once"


@fanfold.function
def large():
    return "x" * 100_000_000


@fanfold.function
def huge():
    return 10 ** 10_000


@fanfold.function
def deep():
    value = []
    for _ in range(5_000):
        value = [value]
    return value


@fanfold.function
def cyclic():
    value = {}
    value["self"] = value
    return value


@fanfold.function
def half_a_character():
    return {"\\ud800": 1}


@fanfold.function
def says_half_a_character():
    raise ValueError("\\ud800")


def write_to_all(data):
    for number in range(3, 64):
        try:
            os.write(number, data)
        except OSError:
            pass


@fanfold.function
def claims_gigabytes():
    write_to_all(b"\\xff" * 4)
    time.sleep(300)


@fanfold.function
def replies_nonsense():
    write_to_all(b"\\x00\\x00\\x00\\x02{x")
    time.sleep(300)


@fanfold.function
def hangs(file):
    child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "300")
    with open(file, "w") as opened:
        opened.write(f"{os.getpid()} {child}")
    time.sleep(300)
"""
ODD = {
    "cancelled": "step.exception",
    "leaves": "step.exception",
    "leaves_later": "step.exception",
    "interrupted": "step.exception",
    "closed": "step.exception",
    "dies": "function.died",
    "crashes": "function.died",
    "claims_gigabytes": "function.died",
    "replies_nonsense": "function.died",
    "large": "output.too_large",
    "huge": "output.not_json",
    "deep": "output.not_json",
    "cyclic": "output.not_json",
    "half_a_character": "output.not_json",
    "says_half_a_character": "step.exception",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


@pytest.mark.full
def test_a_handler_that_changes_its_arguments_changes_nothing_else(project: Path) -> None:
    recipe = """
name: adding
inputs: [{name: items, type: array, required: true}]
steps:
  - {id: first, handler: add, inputs: {items: inputs.items, item: {literal: a}}}
  - id: second
    handler: add
    inputs: {items: steps.first.output.items, item: {literal: b}}
    depends_on: [first]
  - {id: third, handler: add_later, inputs: {items: steps.first.output.items}, depends_on: [second]}
output: "{{inputs.items}} {{steps.first.output.items}}"
"""
    result = run(project, recipe, items=[1])
    assert result.output == '[1] [1,"a"]'
    assert result.steps["second"].output["items"] == [1, "a", "b"]
    assert result.steps["third"].output == []


@pytest.mark.full
def test_one_process_that_is_not_ours_serves_one_step_after_another(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = "".join(
        f"  - {{id: s{n}, handler: add, inputs: {{items: {{literal: []}}, item: {{literal: {n}}}}},"
        f" depends_on: [{f's{n - 1}' if n else ''}]}}\n"
        for n in range(5)
    )
    result = run(project, f"name: row\nsteps:\n{steps}")
    outputs = [result.steps[f"s{n}"].output for n in range(5)]
    assert [one["counted"] for one in outputs] == [1, 2, 3, 4, 5]
    assert {one["pid"] for one in outputs} != {os.getpid()}
    assert {one["folder"] for one in outputs} == {str(project)}
    assert "handlers" not in sys.modules
    assert str(project) not in sys.path
    assert capfd.readouterr() == ("", "")
    assert not _lives(outputs[0]["pid"])


@pytest.mark.full
def test_a_handler_sees_no_key_and_only_the_variables_that_the_user_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    monkeypatch.setenv("DATABASE", "here")
    monkeypatch.setenv("OTHER", "there")
    monkeypatch.setenv("FANFOLD_ENVIRONMENT_ALLOW", "DATABASE,OPENAI_API_KEY")
    seen = run(project, "name: e\nsteps: [{id: e, handler: environment}]").steps["e"].output
    assert seen["DATABASE"] == "here"
    assert not {"OPENAI_API_KEY", "OTHER"} & seen.keys()


@pytest.mark.full
def test_any_misbehaviour_of_a_handler_fails_its_step_alone(project: Path) -> None:
    steps = "".join(f"  - {{id: {name}, handler: {name}}}\n" for name in (*ODD, "forks"))
    result = run(project, f"name: odd\nsteps:\n{steps}")
    errors = {name: step.error for name, step in result.steps.items() if step.error is not None}
    assert {name: error.code for name, error in errors.items()} == ODD
    assert "status 7: " in errors["dies"].message
    assert "last words" in errors["dies"].message
    assert "signal 11" in errors["crashes"].message
    assert result.steps["forks"].output == "once"


@pytest.mark.full
def test_a_handler_that_is_out_of_time_is_killed_with_all_it_started(project: Path) -> None:
    recipe = f"""
name: late
steps:
  - id: hang
    handler: hangs
    timeout: 4s
    inputs: {{file: {{literal: "{project}/pids"}}}}
    on_failure: inline
  - {{id: after, handler: add, inputs: {{items: {{literal: []}}, item: {{literal: 1}}}}, depends_on: [hang]}}
"""
    result = run(project, recipe)
    assert result.steps["hang"].status == "timed_out"
    assert result.steps["after"].status == "completed"
    assert not any(map(_lives, _pids(project)))


DRIVER = """
import asyncio, sys
from pathlib import Path
from tests.runtime.running import run
run(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.full
def test_a_handler_does_not_outlive_the_process_of_its_run(project: Path) -> None:
    pids = project / "pids"
    os.mkfifo(pids)
    recipe = f"name: k\nsteps: [{{id: h, handler: hangs, inputs: {{file: {{literal: '{pids}'}}}}}}]"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(project), recipe])
    handles = [os.pidfd_open(pid) for pid in _pids(project)]
    assert len(handles) == 2
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    for handle in handles:
        assert _ends(handle)


@pytest.mark.full
def test_a_file_that_changed_since_the_run_was_permitted_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "__init__.py").write_text("")
    (tmp_path / "steps" / "words.py").write_text("WORD = 'as permitted'\n")
    (tmp_path / "steps" / "handlers.py").write_text(
        "import fanfold\nfrom . import words\n\n@fanfold.function\ndef say():\n    return words.WORD\n\n"
        "@fanfold.function\ndef look():\n    from . import late\n"
    )
    recipe = """
name: change
steps:
  - {id: before, handler: say}
  - {id: late, run: [bash, -c, "echo > steps/late.py"], write_set: [steps/late.py], depends_on: [before]}
  - {id: look, handler: look, depends_on: [late], on_failure: inline}
  - {id: edit, run: [bash, -c, "echo \\"WORD='new'\\" > steps/words.py"], write_set: ["**"],
     depends_on: [look]}
  - {id: after, handler: "steps.handlers:say", depends_on: [edit]}
"""
    result = run(tmp_path, recipe)
    assert result.steps["before"].output == "as permitted"
    _refused(result, "look", "steps/late.py did not exist when this run was permitted")
    _refused(result, "after", "steps/words.py changed since this run was permitted")
    again = ["fork", result.run_id, "--from", "after", "--project", str(tmp_path), "--yes"]
    assert main(again) == 0
    assert capsys.readouterr().out == "new\n"


@pytest.mark.full
def test_a_file_that_does_more_than_define_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(
        "import fanfold\n\n@fanfold.function\ndef twice(n):\n    return 2 * n\nraise OSError('no disk')\n"
    )
    recipe = "name: job\nsteps: [{id: a, handler: twice, inputs: {n: {literal: 2}}}]\n"
    error = run(tmp_path, recipe).steps["a"].error
    assert error is not None
    assert error.message == 'notebook.py, which has the function "twice", cannot be imported: no disk'
    assert 'if __name__ == "__main__":' in error.hint


@pytest.mark.full
def test_bytecode_that_lies_beside_a_source_is_not_run(tmp_path: Path) -> None:
    source = tmp_path / "plain.py"
    source.write_text("def say():\n    return 'evil!'\n")
    subprocess.run([sys.executable, "-c", "import plain"], cwd=tmp_path, check=True, env=_writing_bytecode())
    assert list(tmp_path.glob("__pycache__/plain*.pyc"))
    found = source.stat()
    source.write_text("def say():\n    return 'plain'\n")
    os.utime(source, ns=(found.st_atime_ns, found.st_mtime_ns))
    result = run(tmp_path, "name: b\nsteps: [{id: s, handler: 'plain:say'}]")
    assert result.steps["s"].output == "plain"


def test_functions_registered_by_the_program_run_in_it_with_copied_values(tmp_path: Path) -> None:
    kept: list[object] = []

    @fanfold.function("keeps-what-it-gets")
    def keeps(items: list[int]) -> list[int]:
        kept.append(items)
        items.append(2)
        return items

    @fanfold.function("keeps-it-later")
    async def keeps_later(items: list[int]) -> list[int]:
        items.append(3)
        kept.append(items)
        return items

    @fanfold.function("spoils-what-it-gave")
    def spoil() -> int:
        for items in kept:
            assert isinstance(items, list)
            items.append("spoilt")
        return os.getpid()

    recipe = """
name: here
inputs: [{name: items, type: array, required: true}]
steps:
  - {id: first, handler: keeps-what-it-gets, inputs: {items: inputs.items}}
  - {id: second, handler: keeps-it-later, inputs: {items: steps.first.output}, depends_on: [first]}
  - {id: spoil, handler: spoils-what-it-gave, depends_on: [second]}
output: "{{inputs.items}} {{steps.first.output}} {{steps.second.output}}"
"""
    given = [1]
    result = run(tmp_path, recipe, items=given)
    assert result.output == "[1] [1,2] [1,2,3]"
    assert result.steps["spoil"].output == os.getpid()
    assert given == [1]


@pytest.mark.full
def test_a_function_that_cannot_be_stopped_keeps_its_slot_and_its_files_until_it_ends(tmp_path: Path) -> None:
    began: list[str] = []
    over = threading.Event()
    name = f"cannot-be-stopped-{tmp_path.name}"

    @fanfold.function(name)
    def stubborn(me: str) -> None:
        began.append(me)
        if len(began) == 1:
            over.wait(PATIENCE_S)
            began.append("over")

    @fanfold.function(f"next-{tmp_path.name}")
    async def later() -> None:
        await asyncio.sleep(1.3)  # longer than the first may take
        began.append("beside")
        over.set()

    recipe = f"""
name: stubborn
limits: {{max_concurrency: 2}}
steps:
  - {{id: a, handler: {name}, timeout: 1s, write_set: [x], read_set: [x], inputs: {{me: {{literal: first}}}},
     retry: {{attempts: 2, backoff: 1ms, on: [timeout]}}}}
  - {{id: b, handler: {name}, write_set: [x], read_set: [x], inputs: {{me: {{literal: other}}}}}}
  - {{id: c, handler: next-{tmp_path.name}, write_set: [y], read_set: [y]}}
"""
    result = run(tmp_path, recipe)
    assert result.status == "completed", result.error
    assert began[:3] == ["first", "beside", "over"]
    assert sorted(began[3:]) == ["first", "other"]


class NoException(BaseException):
    """What nobody catches who means errors, and has no words."""

    def __str__(self) -> str:
        raise self


class Unreadable(dict[str, int]):
    def items(self) -> Any:
        raise NoException


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, NoException]
)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_no_exception_of_a_handler_ends_the_program_that_registered_it(
    kind: str, error: type[BaseException], tmp_path: Path
) -> None:
    name = f"raises-{kind}-{error.__name__}"

    def raises() -> None:
        raise error

    async def raises_later() -> None:
        await asyncio.sleep(0)
        raise error

    fanfold.function(name)(raises if kind == "plain" else raises_later)
    failed = run(tmp_path, f"name: r\nsteps: [{{id: s, handler: {name}}}]").steps["s"]
    assert failed.status == "failed"
    assert failed.error is not None
    assert error.__name__ in failed.error.message


def test_a_handler_that_cancels_its_own_task_fails_once(tmp_path: Path) -> None:
    called: list[str] = []

    async def cancels_itself() -> None:
        called.append("once")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(20)

    fanfold.function(f"cancels-itself-{tmp_path.name}")(cancels_itself)
    failed = run(tmp_path, f"name: r\nsteps: [{{id: s, handler: cancels-itself-{tmp_path.name}}}]").steps["s"]
    assert (failed.status, called) == ("failed", ["once"])


def test_a_value_that_cannot_be_read_is_the_failure_of_its_step(tmp_path: Path) -> None:
    fanfold.function(f"unreadable-{tmp_path.name}")(lambda: Unreadable(a=1))
    failed = run(tmp_path, f"name: r\nsteps: [{{id: s, handler: unreadable-{tmp_path.name}}}]").steps["s"]
    assert failed.error is not None
    assert failed.error.code == "output.not_json"


def test_an_exception_of_another_run_does_not_end_the_run_of_a_handler(tmp_path: Path) -> None:
    def loses() -> None:
        raise LeaseLost("lease.lost", "another run went elsewhere")

    fanfold.function(f"loses-{tmp_path.name}")(loses)
    failed = run(tmp_path, f"name: r\nsteps: [{{id: s, handler: loses-{tmp_path.name}}}]").steps["s"]
    assert failed.error is not None
    assert failed.error.message == "LeaseLost: another run went elsewhere"


def test_a_caller_that_stops_waiting_does_not_stop_the_run(tmp_path: Path) -> None:
    async def work() -> Result:
        begin, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            begin.set()
            await go_on.wait()
            return "done"

        fanfold.function(f"waits-{tmp_path.name}")(wait)
        recipe = f"name: w\nsteps: [{{id: s, handler: waits-{tmp_path.name}}}]"
        async with client(tmp_path) as opened:
            handle = await opened.start(recipe, options=Options(permission="auto"))
            await begin.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle.result(), 0.01)
            assert handle.status == "running"
            go_on.set()
            return await asyncio.wait_for(handle.result(), PATIENCE_S)

    assert asyncio.run(work()).output == "done"


def _refused(result: Result, step: str, message: str) -> None:
    error = result.steps[step].error
    assert error is not None
    assert (error.kind, error.code, error.message) == ("permission", "function.changed", message)
    assert f"fork {result.run_id} --from {step} " in error.hint


def _writing_bytecode() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _pids(project: Path) -> list[int]:
    return [int(word) for word in (project / "pids").read_text().split()]


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/fd/0") or _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _ends(handle: int) -> bool:
    import select

    ready, _, _ = select.select([handle], [], [], 20)
    os.close(handle)
    return bool(ready)
