"""Start-up stays cheap: a command loads what it uses. What it costs is measured by `bench waits`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.startup import large_recipe
from tests.work import PATIENCE_S

HEAVY = {"asyncio", "ssl", "subprocess", "fanfold.runtime.hosting.host", "fanfold.sessions.supervisor"}
"""What only who drives a run needs, or follows one."""
SOURCE_READERS = {"dis", "tokenize"} if sys.version_info >= (3, 14) else {"ast", "dis", "tokenize"}
"""What reads source code; from 3.14 on annotations need one of them."""
CODE = """\
import sys
from fanfold.cli.main import main
status = main(sys.argv[1:])
sys.stderr.write("\\n".join(["LOADED", *sys.modules]))
sys.exit(status)
"""


def loaded(project: Path, *arguments: str) -> set[str]:
    """The modules that a command has loaded at its end."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}
    environment["HOME"] = str(project.parent / "home")
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("LOADED\n")[2].split("\n"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which one agent has worked."""
    project = tmp_path_factory.mktemp("startup") / "project"
    project.mkdir()
    (project / "one.yaml").write_text("name: one\nsteps: [{id: one, agent: explorer, prompt: x}]\n")
    (project / "answers.yaml").write_text("default: ok\n")
    assert "asyncio" in loaded(project, "run", "one.yaml", "--script", "answers.yaml")
    return project


@pytest.mark.parametrize(
    "words",
    [
        "runs",
        "inspect last",
        "logs last",
        "transcript last one",
        "explain last",
        "verify last",
        "replay last",
    ],
)
def test_who_looks_at_a_run_loads_no_event_loop_and_nothing_that_drives(ran: Path, words: str):
    assert not loaded(ran, *words.split()) & HEAVY


def test_a_list_of_runs_loads_no_recipe_no_step_type_and_no_scheduler(ran: Path):
    rooms = ("fanfold.recipe", "fanfold.runtime.steps", "fanfold.kernel.fold", "fanfold.sessions", "yaml")
    assert not [name for name in loaded(ran, "runs") if name.startswith(rooms)]


def test_who_only_looks_loads_nothing_that_reads_source_code(ran: Path):
    assert not loaded(ran, "runs") & (SOURCE_READERS | {"typing_extensions"})


def test_checking_a_recipe_loads_no_store_and_no_event_loop(project: Path):
    (project / "large.yaml").write_text(large_recipe(200))
    found = loaded(project, "check", "large.yaml")
    assert not found & (HEAVY | {"apsw"})


def test_a_step_of_one_type_loads_the_work_of_no_other(ran: Path):
    found = loaded(ran, "inspect", "last")
    assert "fanfold.runtime.steps.agent" in found
    assert not {f"fanfold.runtime.steps.{name}" for name in ("command", "function", "deliver")} & found


FILLED = """\
import sys
from threading import Barrier, Thread
from fanfold.cli.postponed import POSTPONED, postpone
postpone()
import asyncio, inspect, msgspec, ssl, textwrap
used = {"inspect"} if sys.version_info >= (3, 14) else set()  # by asyncio itself
assert not {name for name in POSTPONED & set(sys.modules) - used if len(vars(sys.modules[name])) > 20}
begin, made = Barrier(4), []
def use():
    begin.wait()
    made.append(ssl.create_default_context().protocol is ssl.PROTOCOL_TLS_CLIENT)
threads = [Thread(target=use) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert made == [True] * 4, made
assert not hasattr(ssl, "nothing") and "__getattr__" not in vars(ssl)
assert asyncio.sslproto.SSLAgainErrors[0] is ssl.SSLWantReadError
async def one(): pass
class Two:
    def plain(self): pass
    async def waits(self): pass
    alone = staticmethod(one)
early = inspect.iscoroutinefunction
asked = [one, use, Two().plain, Two().waits, Two, print, vars(Two)["alone"]]
assert [inspect.iscoroutinefunction(each) for each in asked[:4]] == [True, False, False, True]
assert ("dis" in sys.modules) is bool(used)
assert [inspect.iscoroutinefunction(each) for each in asked] == [True, False, False, True, *[False] * 3]
assert [early(each) for each in asked] == [inspect.iscoroutinefunction(each) for each in asked]
assert "dis" in sys.modules and inspect.iscoroutinefunction.__module__ == "inspect"
import logging, string
assert string.Template("$a $$").substitute(a=1) == "1 $" and logging.Formatter("{message:>3}", style="{")
import base64, fnmatch, gettext, ntpath, pathlib, shlex, traceback, typing, urllib.parse
later = ("base64", "fnmatch", "gettext", "ntpath", "shlex", "traceback", "urllib.parse")
assert [name for name in later if "__getattr__" not in vars(sys.modules[name])] == []
assert (ntpath.join("a", "b"), shlex.quote("a b"), base64.b64encode(b"a")) == ("a\\\\b", "'a b'", b"YQ==")
taken, stack, (one, many) = gettext.gettext, traceback.extract_stack, ("a file", "files")
assert taken("a file") == one and gettext.gettext is not taken and gettext.ngettext(one, many, 2) == many
assert gettext.c2py("n != 1")(2) == 1
assert stack(f=sys._getframe(), limit=1)[0].name == "<module>"
noted = [[entry.name for entry in extract()] for extract in (stack, traceback.extract_stack)]
assert noted[0] == noted[1] and stack is not traceback.extract_stack
assert fnmatch.fnmatch("a.py", "*.py") and list(pathlib.Path("/").glob("pro[c]")) == [pathlib.Path("/proc")]
assert pathlib.Path("/a b").as_uri() == "file:///a%20b" and urllib.parse.urlsplit("http://a/b").path == "/b"
class Told:
    good: "typing.Literal['a', 'b']"
    bad: "typing.Literal['a'"
assert typing.List["Told"] == typing.List[typing.ForwardRef("Told")]
assert typing.get_type_hints(type("Good", (), {"__annotations__": {"a": Told.__annotations__["good"]}}))
try:
    typing.get_type_hints(Told)
    raise AssertionError("a mistake in an annotation passed")
except SyntaxError: pass
assert textwrap.dedent("  a") == "a" and msgspec.json.schema(int) == {"type": "integer"}
"""


def test_what_is_postponed_is_loaded_when_it_is_used_by_however_many_threads():
    command = [sys.executable, "-c", FILLED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CUT_SHORT = """\
import builtins, sys
from fanfold.cli import postponed
postponed.POSTPONED |= {"moody"}
postponed.postpone()
builtins.interrupted = True
import moody
try:
    moody.value
    raise AssertionError("nothing cut it short")
except KeyboardInterrupt:
    builtins.interrupted = False
assert moody.value == 1 and "__getattr__" not in vars(moody)
"""


def test_what_is_postponed_is_loaded_again_where_loading_it_was_cut_short(tmp_path: Path):
    (tmp_path / "moody.py").write_text("if interrupted:\n    raise KeyboardInterrupt\nvalue = 1\n")
    run_beside(tmp_path, CUT_SHORT)


CROSSED = """\
import builtins
from threading import Event, Thread
from fanfold.cli import postponed
postponed.POSTPONED |= {"first", "second"}
postponed.postpone()
builtins.first_begun, builtins.plain_begun = Event(), Event()
import first
used = []
def use(): used.append(first.plain.value)
thread = Thread(target=use, daemon=True)
thread.start()
first_begun.wait()
import plain
thread.join()
assert used == [1]
"""


def test_threads_that_load_what_is_postponed_and_import_the_same_do_not_wait_for_each_other(tmp_path: Path):
    (tmp_path / "first.py").write_text("first_begun.set()\nplain_begun.wait()\nimport plain\n")
    (tmp_path / "plain.py").write_text("plain_begun.set()\nimport second\nvalue = second.value\n")
    (tmp_path / "second.py").write_text("value = 1\n")
    run_beside(tmp_path, CROSSED)


def run_beside(folder: Path, code: str) -> None:
    """Run a program that finds the modules of a folder."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_run_of_scripted_agents_loads_no_tls_and_nothing_that_reads_source_code(ran: Path):
    unused = {"_ssl", "fanfold.agents.toolbox.catalogue", "shutil"}
    unused |= {"fanfold.runtime.records.evidence", "fanfold.runtime.views.runs.changes"}
    if sys.version_info < (3, 14):  # from then on asyncio itself reads source code
        unused |= {"ast", "dis"}
    assert not loaded(ran, "run", "one.yaml", "--script", "answers.yaml") & unused
