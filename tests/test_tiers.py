"""The rule of the two tiers catches tests that are planted to break it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers import Machine, Spent, too_slow, unused_s
from tools import test_full
from tools.tidy import ROOT

CONFTEST = "from tests.tiers import pytest_addoption, pytest_configure\n"
PLANTED = """\
import os, pty, socket, subprocess, sys, time
import pytest

@pytest.fixture(scope="module")
def server():
    subprocess.run(["true"])

def test_quick(): pass
def test_unix_socket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener: listener.bind("s")
@pytest.mark.proof("it works")
def test_proof(): subprocess.run(["true"])
@pytest.mark.full
def test_full(): subprocess.run(["true"])

def test_slow():
    began = time.process_time()
    while time.process_time() < began + 2: pass
def test_slow_once():
    began = time.process_time()
    while not warm and time.process_time() < began + 2: pass
    warm.append(1)
warm = []
def test_process(): subprocess.run(["true"])
def test_terminal():
    for handle in pty.openpty(): os.close(handle)
def test_network():
    with socket.socket() as listener: listener.bind(("127.0.0.1", 0))
def test_shared_1(server): pass
def test_shared_2(server): pass
def test_environment(): os.environ["PLANTED"] = "1"
def test_folder(tmp_path): os.chdir(tmp_path)
def test_umask(): os.umask(0o027)
"""
CAUGHT = "slow process terminal network shared_1 shared_2 environment folder umask".split()


PROMISES = {
    "kill and resume",
    "merge conflict",
    "sandboxed command",
    "HTTP provider",
    "MCP client",
    "console page",
    "recorded runs",
}


def run_tests(
    folder: Path, text: str, *options: str, before: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_planted.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    return subprocess.run(
        [
            *before,
            sys.executable,
            "-m",
            "pytest",
            *"-p no:cacheprovider -p no:schemathesis -rsE".split(),
            *options,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "TEST_ORDER": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_each_planted_test_is_caught_and_no_other(tmp_path: Path) -> None:
    done = run_tests(tmp_path, PLANTED, "--tier", "fast")
    caught = [line.split("::")[1] for line in done.stdout.splitlines() if line.startswith("ERROR test_")]
    assert [name.split()[0] for name in caught] == [f"test_{name}" for name in CAUGHT], done.stdout
    assert "1 deselected" in done.stdout
    assert "a fast one may take 0.5 s" in done.stdout
    assert "the test started subprocess.Popen(true): mark it with @pytest.mark.full" in done.stdout
    assert "the test changed os.environ for the tests after it" in done.stdout


@pytest.mark.full
def test_an_order_shows_which_test_needs_another_before_it(tmp_path: Path) -> None:
    text = "seen = []\ndef test_first(): seen.append(1)\ndef test_second(): assert seen\n"
    assert run_tests(tmp_path, text).returncode == 0
    ended = [run_tests(tmp_path, text, TEST_ORDER=str(seed)).returncode for seed in (1, 1, 2, 3)]
    assert ended[0] == ended[1]
    assert set(ended) == {0, 1}


LISTENS = """\
import asyncio, os, pytest, signal, subprocess, sys
async def listen():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, print)
def test_loop(): asyncio.run(listen())
@pytest.mark.full
def test_program():
    actions = "import signal as s; print([s.getsignal(n).name for n in (s.SIGTERM, s.SIGHUP, s.SIGCHLD)])"
    called = subprocess.run([sys.executable, "-c", actions], capture_output=True, text=True)
    assert called.stdout.split("'")[1::2] == ["SIG_DFL"] * 3
def test_hangup(): os.kill(os.getpid(), signal.SIGHUP)
"""


@pytest.mark.full
@pytest.mark.parametrize("workers", ["0", "1"])
def test_signals_that_a_shell_ignores_reach_programs_and_leave_the_tests_alone(
    tmp_path: Path, workers: str
) -> None:
    ignoring = ("sh", "-c", "trap '' INT TERM HUP CHLD; exec \"$@\"", "sh")
    done = run_tests(tmp_path, LISTENS, "--tier", "full", "--numprocesses", workers, before=ignoring)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_a_mark_without_a_reason_is_named(tmp_path: Path) -> None:
    named = "marked `full` without a reason: test_planted.py"
    text = "import pytest\n@pytest.mark.full\ndef test_quick(): pass\n"
    assert f"{named}::test_quick" in run_tests(tmp_path, text, "--tier", "full").stdout
    assert (
        named not in run_tests(tmp_path, text, "--tier", "full", "-k", "quick").stdout
    )  # a part proves nothing
    text = (
        "import pytest, subprocess\npytestmark = pytest.mark.full\ndef test_a(): subprocess.run(['true'])\n"
    )
    assert named not in run_tests(tmp_path, text, "--tier", "full").stdout
    text += "def test_b(): pass\ndef test_c(): pass\n"
    assert f"{named} " in run_tests(tmp_path, text, "--tier", "full").stdout


@pytest.mark.full
def test_skips_are_counted_by_reason(tmp_path: Path) -> None:
    text = "import pytest\n" + "".join(
        f"def test_{n}(): pytest.skip('{'long: make hostile' if n else 'no zsh'}')\n" for n in range(4)
    )
    lines = run_tests(tmp_path, text).stdout.splitlines()
    assert [line.split() for line in lines if "make hostile" in line or "zsh" in line][:2] == [
        ["3", "long:", "make", "hostile"],
        ["1", "no", "zsh"],
    ]


def test_the_fast_tier_proves_each_promise_once() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_tiers.py"]
    proofs = [
        promise
        for text in texts
        for promise in re.findall(r'^@pytest\.mark\.proof\("(.*)"\)', text, re.MULTILINE)
    ]
    assert sorted(proofs) == sorted(PROMISES)


def skip_reasons(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.skip":
            yield ast.unparse(node.args[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.skipif":
            yield from (ast.unparse(word.value) for word in node.keywords if word.arg == "reason")


def test_every_reason_to_skip_names_what_makes_the_test_run() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        if "pytest.skip(" in (text := path.read_text()) or "skipif(" in text:
            lacking = [
                reason
                for reason in skip_reasons(ast.parse(text))
                if ": " not in reason and not reason.startswith(("needs(", "NEEDS_"))
            ]
            assert not lacking, f"{path}: a reason is written as `needs zsh: apt-get install zsh`: {lacking}"


def test_only_time_of_the_test_itself_counts() -> None:
    quiet, busy, slow = Machine(), Machine(cpu=1.0, wall=10.0), Machine(cpu=2.0, wall=2.0)
    assert too_slow(Spent(cpu=0.5, idle=0.0), lambda: quiet) is None
    assert too_slow(Spent(cpu=0.51, idle=0.0), lambda: busy) is not None
    assert too_slow(Spent(cpu=0.9, idle=0.0), lambda: slow) is None
    assert too_slow(Spent(cpu=0.1, idle=3.0, spare=3.0), lambda: quiet) is not None
    assert too_slow(Spent(cpu=0.1, idle=3.0, spare=3.0), lambda: busy) is None
    # Every processor was busy: the test waited for threads of its own that got none.
    assert too_slow(Spent(cpu=0.1, idle=3.0, spare=0.1), lambda: quiet) is None


def test_a_processor_that_others_use_too_computes_longer() -> None:
    assert Machine.judge(cpu_s=0.12, wall_s=0.13) == Machine(cpu=1.0, wall=0.13 / 0.12)
    assert Machine.judge(cpu_s=0.12, wall_s=1.2) == Machine(cpu=1.5, wall=10.0)
    assert Machine.judge(cpu_s=0.24, wall_s=1.2) == Machine(cpu=2.0, wall=10.0)
    crowded = Machine.judge(cpu_s=0.12, wall_s=1.2)
    assert too_slow(Spent(cpu=0.7, idle=0.0), lambda: crowded) is None
    assert too_slow(Spent(cpu=0.8, idle=0.0), lambda: crowded) is not None


def test_unused_time_of_all_processors_is_read_from_the_counters_of_the_system() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert unused_s(b"cpu  11 12 13 %d %d 14 15 0 0 0\n" % (3 * ticks, ticks)) == 4.0


FLAKY = """\
from pathlib import Path
def test_flaky():
    seen = Path(__file__).with_name("seen")
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    assert len(seen.read_text()) % 2 == 0
"""


@pytest.mark.full
def test_a_test_that_passes_on_retry_is_recorded_and_fails_the_second_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(FLAKY)
    cache = tmp_path / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text('{"tests/test_it.py::test_of_another_run": true}')
    assert test_full.main([], tmp_path, everything=()) == 0
    record = tmp_path / "tests" / "flaky.json"
    assert list(json.loads(record.read_text())) == ["tests/test_it.py::test_flaky"]
    assert "passed on retry, recorded in tests/flaky.json" in capfd.readouterr().err
    assert test_full.main([], tmp_path, everything=()) == 1
    assert "not retried, since it passed on retry before" in capfd.readouterr().err


@pytest.mark.full
def test_each_commit_has_its_own_order_which_finds_a_test_that_needs_another_before_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TEST_ORDER", raising=False)
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    chain = "".join(f"def test_{n}(): assert len(seen) == {n}; seen.append({n})\n" for n in range(9))
    (tmp_path / "tests" / "test_it.py").write_text(f"seen = []\n{chain}")
    assert test_full.main([], tmp_path, everything=()) == 1
    assert "TEST_ORDER=no commit" in capfd.readouterr().err
    monkeypatch.setenv("TEST_ORDER", "")
    assert test_full.main([], tmp_path, everything=()) == 0


@pytest.mark.full
def test_a_test_that_fails_on_retry_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_broken(): assert False\n")
    assert test_full.main([], tmp_path, everything=()) == 1
    assert not (tmp_path / "tests" / "flaky.json").exists()
