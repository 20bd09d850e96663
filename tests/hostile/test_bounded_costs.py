"""Data that would take for ever: schemas, keys of TOML, ignore patterns, clients that do not read.

A test that hangs fails by its deadline: nothing of this may take longer than a person waits.
"""

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from fanfold.agents.roles import load_roles, role_roots
from fanfold.errors import WorldError
from fanfold.language.json_text import MAX_S, MAX_WALL_S, TOO_LONG, aside, misfits
from fanfold.language.toml_text import MAX_KEY_PARTS, find_long_key
from fanfold.server import auth
from fanfold.server.auth import BoundedConnection
from fanfold.workspace import git
from fanfold.workspace.ignored import Ignoring

INTEGER = {"type": "integer"}
PATIENCE_S = MAX_WALL_S + 10


def doubling(word: str, depth: int) -> dict[str, Any]:
    """A small schema in which each part applies the next one twice."""
    parts: dict[str, Any] = {
        f"a{n}": {word: [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(depth)
    }
    return {"$defs": {**parts, f"a{depth}": INTEGER}, "$ref": "#/$defs/a0"}


def around(target: str) -> dict[str, Any]:
    """A part that applies itself eight times to each item."""
    return {"anyOf": [{"minItems": 1, "items": {"$ref": target}}] * 8}


DEEP = json.loads("[" * 20 + "]" * 20)
COSTLY = [
    ("alternatives that double", doubling("anyOf", 28), "x"),
    ("alternatives of which one must fit", doubling("oneOf", 28), "x"),
    ("parts that double and all fit", doubling("allOf", 28), 5),
    (
        "alternatives of alternatives in a list",
        {**doubling("anyOf", 20), "$ref": "#/$defs/a1", "items": {"$ref": "#/$defs/a0"}},
        ["x"] * 50,
    ),
    ("many rules for many items", {"allOf": [{"items": INTEGER}] * 2_000}, ["x"] * 20_000),
    ("many alternatives for many items", {"items": {"anyOf": [INTEGER] * 500}}, ["x"] * 20_000),
    ("a list that fits neither of two", {"anyOf": [{"items": INTEGER}, {"items": INTEGER}]}, ["x"] * 300_000),
    ("a part that is itself", {"$ref": "#"}, 5),
    ("alternatives that go round", {"$defs": {"n": around("#/$defs/n")}, "$ref": "#/$defs/n"}, DEEP),
    ("a reference by another name", {"$defs": {"n": {"$anchor": "n", **around("#n")}}, "$ref": "#n"}, DEEP),
]


@pytest.mark.full
@pytest.mark.parametrize(("schema", "value"), [row[1:] for row in COSTLY], ids=[row[0] for row in COSTLY])
def test_a_schema_is_checked_or_given_up_in_time(schema: dict[str, Any], value: Any) -> None:
    begun = time.monotonic()
    told = misfits(schema, value)
    assert time.monotonic() - begun < PATIENCE_S
    assert told == TOO_LONG or len(told) < 1_000_000


@pytest.mark.full
def test_a_costly_schema_does_not_hold_up_the_loop() -> None:
    async def check() -> float:
        """The longest time in which the loop did nothing else while an output was checked."""
        longest, last = 0.0, time.monotonic()
        checking = asyncio.create_task(aside(misfits, COSTLY[0][1], COSTLY[0][2]))
        while not checking.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert await checking == TOO_LONG
        return longest

    assert asyncio.run(check()) < MAX_S / 2


@pytest.mark.full
def test_a_loop_that_checks_by_itself_waits_for_a_few_costly_schemas_only() -> None:
    async def check() -> list[str]:
        return [misfits(doubling("anyOf", 28 + number), "x") for number in range(40)]

    began = time.monotonic()
    told = asyncio.run(check())
    assert set(told) == {TOO_LONG}
    assert time.monotonic() - began < MAX_WALL_S * 3


def test_schemas_that_people_write_are_checked_here() -> None:
    """They start no process, references and alternatives included."""
    line = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    schema = {
        "$defs": {"line": line},
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/$defs/line"}, INTEGER]},
    }
    assert misfits(schema, [{"text": "a"}, 5] * 200) == ""
    assert "is not valid under any" in misfits(schema, [{"text": 5}])


@pytest.mark.full
def test_a_schema_that_refers_to_itself_says_what_does_not_fit() -> None:
    node = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    assert misfits(schema, {"kids": [{"kids": []}]}) == ""
    assert misfits(schema, {"kids": [{"kids": [5]}]}) == 'kids/0/kids/0: 5 is not of type "object"'


LONG_KEYS = [
    ("of bare words", ".".join(["a"] * 60_000) + " = 1"),
    ("of quoted words", ".".join(['"a.b"'] * 30_000) + " = 1"),
    ("with spaces around its dots", " . ".join(["a"] * 30_000) + " = 1"),
    ("in a header", "[" + ".".join(["a"] * 60_000) + "]\n"),
    ("in a header of a list", "[[" + ".".join(["a"] * 60_000) + "]]\n"),
    ("in an inline table", "x = {" + ".".join(["a"] * 60_000) + " = 1}\n"),
    (
        "behind a text that looks like the end of one",
        "x = '''\n\"\"\"''' # '''\n" + ".".join(["a"] * 60_000) + " = 1",
    ),
]


@pytest.mark.parametrize("text", [row[1] for row in LONG_KEYS], ids=[row[0] for row in LONG_KEYS])
def test_a_key_of_many_parts_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / ".fanfold" / "agents" / "evil.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    begun = time.process_time()
    assert find_long_key(text) is not None
    assert time.process_time() - begun < 1


def test_the_longest_key_is_read_and_the_next_is_refused() -> None:
    assert find_long_key(".".join(["a"] * MAX_KEY_PARTS) + " = 1") is None
    assert find_long_key(".".join(["a"] * (MAX_KEY_PARTS + 1)) + " = 1") is not None
    assert find_long_key("x = '" + "a.b." * 1_000 + "'\ny = [1.5, 2.5]\n# " + "a." * 100) is None


PATTERNS = [
    ("a pattern of many stars", ".gitignore", "*a" * 30 + "b\n"),
    ("a pattern in a folder", "sub/.gitignore", "*a" * 30 + "b\n"),
    ("a pattern beside the files", ".git/info/exclude", "*a" * 30 + "b\n"),
]


@pytest.mark.full
@pytest.mark.parametrize(("file", "pattern"), [row[1:] for row in PATTERNS], ids=[row[0] for row in PATTERNS])
def test_ignore_patterns_end_with_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, pattern: str
) -> None:
    monkeypatch.setattr(git, "ASKING_CPU_S", 1)
    project, store = tmp_path / "project", tmp_path / "store"
    for folder in (project / "sub", store):
        folder.mkdir(parents=True)
    os.system(f"git init -q {project}; git init -q --bare {store}")
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text(pattern)
    for folder in (project, project / "sub"):
        for number in range(3):
            (folder / ("a" * 200 + str(number))).touch()
    with pytest.raises(WorldError) as refused:
        Ignoring(project, store).ask()
    assert refused.value.code == "workspace.costly_patterns"


@pytest.mark.full
def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WRITE_S", 0.3)

    async def attack() -> None:
        dropped = asyncio.Event()

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(1_000):  # more than the buffers of both sides take
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            dropped.set()

        config = uvicorn.Config(application, lifespan="off", log_level="critical")
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: BoundedConnection(config, state, {}), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await dropped.wait()
        server.close()
        assert not state.connections

    asyncio.run(attack())


def test_a_role_file_with_such_a_key_is_reported(tmp_path: Path) -> None:
    file = tmp_path / ".fanfold" / "agents" / "evil.toml"
    file.parent.mkdir(parents=True)
    file.write_text(LONG_KEYS[0][1])
    begun = time.process_time()
    found = load_roles(role_roots(tmp_path, tmp_path / "home", tmp_path / "home" / ".fanfold"))
    assert time.process_time() - begun < 2
    assert any("more than 64 parts" in notice.message for notice in found.notices)
