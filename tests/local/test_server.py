"""The real model, really served: it answers, obeys a schema, is shared, leaves when idle, is killed."""

import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import jsonschema_rs
import pytest

from fanfold.agents.local import server
from fanfold.agents.local.server import ensure_server, find_server
from fanfold.agents.local.server_process import ServerRecord
from fanfold.errors import WorldError
from tests.local.conftest import Ask, slow, stop_server, user

pytestmark = pytest.mark.full

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
ENSURE = """
import sys
from pathlib import Path
from fanfold.agents.local.server import ensure_server
print(ensure_server("local:smollm2", Path(sys.argv[1]), idle_s=60))
"""


def eventually(holds: Callable[[], Any], within_s: float = 30.0) -> None:
    """Wait for what another process does; there is nothing of it to wait on."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def running(home: Path) -> ServerRecord:
    found = find_server("smollm2", home)
    assert found is not None
    return found


def is_gone(pid: int) -> bool:
    """Neither alive nor a zombie of ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        pytest.fail("the server is a child of ours")
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"  # waits for init, which is not ours to judge


def content(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_it_answers_obeys_a_schema_and_is_shared(home: Path, ask: Ask):
    commands = [[sys.executable, "-c", ENSURE, str(home)]] * 3
    starters = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in commands]
    urls = {starter.communicate(timeout=120)[0].strip() for starter in starters}
    assert len(urls) == 1
    (url,) = urls
    assert ensure_server("smollm2", home) == url

    answer = ask(url, user("Write one sentence about the sea."))
    assert len(content(answer).split()) > 5
    assert answer["usage"]["completion_tokens"] > 0

    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for question in ("Describe a person.", "Say anything but JSON!"):
        told = ask(url, {**user(question), "response_format": wanted, "max_tokens": 200})
        jsonschema_rs.validator_for(PERSON).validate(json.loads(content(told)))


def test_a_killed_server_is_replaced_and_an_idle_one_leaves(home: Path, ask: Ask):
    ensure_server("smollm2", home, idle_s=60)
    killed = running(home)
    os.kill(killed.pid, signal.SIGKILL)
    url = ensure_server("smollm2", home, idle_s=1)
    successor = running(home)
    assert successor.pid != killed.pid
    eventually(lambda: is_gone(killed.pid))
    assert content(ask(url, user("Hello"))).strip()
    eventually(lambda: find_server("smollm2", home) is None)
    eventually(lambda: is_gone(successor.pid))


def test_it_knows_no_key_and_lets_no_page_read_answers(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    url = ensure_server("smollm2", home)
    found = running(home)
    assert b"sk-canary" not in Path(f"/proc/{found.pid}/environ").read_bytes()
    asked = subprocess.run(
        [sys.executable, "-c", PREFLIGHT, url], capture_output=True, text=True, check=True, timeout=60
    )
    assert asked.stdout.strip() in {"", "None"}
    with pytest.raises(OSError, match=r"404|501"):
        _get(url.removesuffix("/v1") + "/slots")


PREFLIGHT = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/models", headers={"Origin": "http://page.example"})
print(urllib.request.urlopen(request).headers.get("Access-Control-Allow-Origin"))
"""


def _get(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_a_server_that_gets_sigterm_ends_and_withdraws_its_address(home: Path):
    ensure_server("smollm2", home)
    found = running(home)
    stop_server(home)
    eventually(lambda: is_gone(found.pid))


def test_a_server_without_an_address_file_ends(home: Path):
    ensure_server("smollm2", home)
    found = running(home)
    for file in (home / "models/servers").iterdir():
        file.unlink()
    eventually(lambda: is_gone(found.pid))


def test_weights_that_llama_cpp_cannot_load_are_an_error_with_its_words(weights: Path, tmp_path: Path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(WorldError) as refused:
        ensure_server(f"local:{broken}", tmp_path)
    assert refused.value.code == "local.start_failed"
    assert str(refused.value.details["log"]).strip()
    assert "log" in refused.value.hint


def test_it_runs_in_the_foreground_until_interrupted(home: Path):
    command = [sys.executable, "-m", "fanfold.cli.main", "models", "serve", "--json"]
    environment = {**os.environ, "FANFOLD_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        document = json.loads(serving.stdout.readline())
        assert document["base_url"] == ensure_server("smollm2", home)
        listed = [*command[:-2], "list", "--json"]
        shown = json.loads(subprocess.run(listed, env=environment, capture_output=True, check=True).stdout)
        assert shown["local"]["server"]["pid"] == document["pid"] == serving.pid
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert json.loads(second.stdout)["error"]["code"] == "local.already_served"
        serving.send_signal(signal.SIGINT)
        assert serving.wait(20) == 0


@slow
def test_a_server_that_hangs_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "HEALTH_TIMEOUT_S", 0.5)
    monkeypatch.setattr(server, "UNRESPONSIVE_S", 2.0)
    ensure_server("smollm2", home)
    hung = running(home)
    os.kill(hung.pid, signal.SIGSTOP)
    ensure_server("smollm2", home)
    assert running(home).pid != hung.pid


@slow
def test_a_starter_killed_while_loading_leaves_a_server_or_nothing(home: Path):
    for delay_s in (0.1, 0.3, 0.6, 1.0):
        starter = subprocess.Popen([sys.executable, "-c", ENSURE, str(home)], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        starter.kill()
        starter.wait()
        url = ensure_server("smollm2", home, idle_s=60)
        assert url == running(home).base_url
        stop_server(home)


@slow
def test_no_client_is_sent_to_a_stopping_server(home: Path, ask: Ask):
    dice, pids, idle_s = random.Random(7), set(), 0.2
    for _ in range(60):
        asked = time.monotonic()
        url = ensure_server("smollm2", home, idle_s=idle_s)
        pids.add(running(home).pid)
        try:
            assert ask(url, {**user("Hi"), "max_tokens": 1})
        except (URLError, ConnectionError):  # a busy machine may bring the question later than was promised
            assert time.monotonic() - asked > idle_s, "it had just been promised"
        time.sleep(dice.uniform(0.15, 0.4))  # about as long as it takes to be idle
    assert len(pids) > 5, "the race was not met"


@slow
def test_requests_beyond_its_slots_wait_their_turn(home: Path, ask: Ask):
    url = ensure_server("smollm2", home)
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda i: ask(url, user(f"Count from {i}")), range(24)))
    assert all(answer["usage"]["completion_tokens"] for answer in answers)


@slow
def test_figures(home: Path, ask: Ask, capsys: pytest.CaptureFixture[str]):
    began = time.monotonic()
    url = ensure_server("smollm2", home)
    load_s = time.monotonic() - began
    began = time.monotonic()
    for _ in range(100):
        ensure_server("smollm2", home)
    ask_ms = (time.monotonic() - began) * 10
    long = {**user("Tell me about the sea, at length. " * 20), "max_tokens": 128}
    one = ask(url, {**long, "cache_prompt": False})["timings"]
    rates = {}
    for count in (2, 4):
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            told = sum(
                a["usage"]["completion_tokens"] for a in pool.map(lambda _: ask(url, long), range(count))
            )
        rates[count] = told / (time.monotonic() - began)
    status = Path(f"/proc/{running(home).pid}/status").read_text()
    (memory,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    with capsys.disabled():
        sys.stdout.write(
            f"\nstart and load: {load_s:.2f} s; asking for the server again: {ask_ms:.2f} ms\n"
            f"prompt: {one['prompt_per_second']:.0f} tokens/s; answer: {one['predicted_per_second']:.0f}"
            f" tokens/s alone, {rates[2]:.0f} for 2 at once, {rates[4]:.0f} for 4 at once\n"
            f"memory: {int(memory) // 1024} MiB; load average {os.getloadavg()[0]:.1f}"
            f" on {os.cpu_count()} processors\n"
        )
    assert one["predicted_per_second"] > 0
