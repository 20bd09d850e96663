"""What a program says is somebody else's text: whatever it is, its step ends in the right class."""

import json
from typing import Any

import pytest

from tests.cli.agent_world import RECORDED, AgentWorld

pytestmark = pytest.mark.full

LINES = (RECORDED / "claude-stream-json.jsonl").read_text().splitlines()
BEGAN = next(line for line in LINES if json.loads(line).get("subtype") == "init")
OVER = LINES[-1]
DONE = json.loads(OVER)["result"]
KNOWN = {"input_tokens": 2200, "output_tokens": 50}


def began(**more: Any) -> str:
    return json.dumps({**json.loads(BEGAN), **more})


def over(**more: Any) -> str:
    return json.dumps({**json.loads(OVER), **more})


def said(*content: Any) -> str:
    return json.dumps({"type": "assistant", "message": {"id": "m9", "model": "x", "content": list(content)}})


ODD = said(None, 1, "s", {"type": "text"}, {"type": "tool_use", "id": {"x": 2}, "name": 7, "input": "s"})
LOUD = said({"type": "text", "text": "\x1b[2J\x1b[31mred\x07\x9b0m \u202e"})
CASES: dict[str, tuple[list[str], str, Any]] = {
    # by name: what it says, how its step ends (nothing: well), and what it says or what is known to be spent
    "half lines": ([BEGAN, '{"type": "assistant", "message":', "}{", OVER], "", DONE),
    "values that are no messages": (["[1]", '"s"', "null", BEGAN, OVER], "", DONE),
    "depth": ([BEGAN, '{"a":' * 5_000 + "1" + "}" * 5_000, OVER], "", DONE),
    "messages of other shapes": ([BEGAN, ODD, OVER], "", DONE),
    "control characters": ([BEGAN, "\x1b[2J", LOUD, OVER], "", DONE),
    "half a character": ([BEGAN, over(result="QQ").replace("QQ", "cut \\ud83d")], "", "cut \\ud83d"),
    "a line twice as long": ([BEGAN, json.dumps({"text": "x" * 9_000_000}), OVER], "", DONE),
    "a name that is an option": ([began(session_id="--dangerously-skip-permissions"), OVER], "", DONE),
    "a name that is a path": ([began(session_id="../../../../etc/passwd"), OVER], "", DONE),
    "a name of two lines": ([began(session_id="a\n--b"), OVER], "", DONE),
    "two ends": ([BEGAN, OVER, over(result="second")], "", "second"),
    "failed, then done": ([BEGAN, over(is_error=True, result="broke"), OVER], "agent.failed", None),
    "done, then failed": ([BEGAN, OVER, over(is_error=True, result="broke")], "agent.failed", None),
    "words behind the end": ([BEGAN, OVER, LOUD, "more", BEGAN], "", DONE),
    "flags of other types": ([BEGAN, over(is_error="yes", permission_denials="x")], "agent.failed", None),
    "tokens as text": (
        [BEGAN, over(usage={"input_tokens": "12"}, total_cost_usd="1")],
        "",
        {"cost_usd": None},
    ),
    "less than nothing": (
        [BEGAN, over(usage={"input_tokens": -5}, total_cost_usd=-3)],
        "",
        {"cost_usd": None},
    ),
    "no tokens": ([BEGAN, over(usage=None, total_cost_usd=None)], "", {"cost_usd": None}),
    "more than can be counted": (
        [BEGAN, over(usage={"input_tokens": 10**40, "output_tokens": 1e308}, total_cost_usd=1e300)],
        "",
        {"input_tokens": 10**12, "output_tokens": 10**12, "cost_usd": 1e6},
    ),
    "no number": ([BEGAN, over(total_cost_usd=float("nan"))], "", KNOWN),
    "no end": ([BEGAN], "agent.broken_off", None),
    "not a word": ([], "agent.broken_off", None),
}
BYTES: dict[str, tuple[bytes, str, Any]] = {
    "another encoding": (f"{BEGAN}\n{OVER}\n".encode("utf-16"), "agent.broken_off", None),
    "bytes that are no text": (
        f"{BEGAN}\n".encode() + over(result="QQ").encode().replace(b"QQ", b"\xff ok") + b"\n",
        "",
        "\ufffd ok",
    ),
    "an end without a line break": (f"{BEGAN}\n{OVER}".encode(), "", DONE),
    "half an end": (f"{BEGAN}\n{OVER[:50]}".encode(), "agent.broken_off", None),
}


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def test_every_step_ends_with_the_status_that_its_answer_deserves(agents, fanfold):
    told: dict[str, Any] = {f"case {name}.": {"lines": lines} for name, (lines, *_) in CASES.items()}
    told |= {f"case {name}.": {"bytes": data.decode("latin-1")} for name, (data, *_) in BYTES.items()}
    agents.install("claude", {"told": told})
    agents.role("speaker", "claude", 'sandbox_mode = "read-only"\n')
    cases = {name: (code, wanted) for name, (_, code, wanted) in {**CASES, **BYTES}.items()}
    steps = [
        {"id": f"s{number}", "agent": "speaker", "prompt": f"case {name}."}
        for number, name in enumerate(cases)
    ]
    done = fanfold("run", agents.recipe(*steps), "--yes", "--json").json()
    assert done["status"] == "partial", done["error"]
    for number, (name, (code, wanted)) in enumerate(cases.items()):
        ended = done["steps"][f"s{number}"]
        assert (ended["error"] or {}).get("code", "") == code, (name, ended["error"])
        if isinstance(wanted, dict):
            assert {key: ended["usage"][key] for key in wanted} == wanted, name
        else:
            assert ended["output"] == wanted, name
    assert fanfold("verify", "last").status == 0
    loud = fanfold("transcript", "last", f"s{list(cases).index('control characters')}").out
    assert "red" in loud
    assert not [char for char in loud if (ord(char) < 32 and char != "\n") or char in "\x7f\x9b\u202e"]


@pytest.mark.parametrize("name", ["--dangerously-skip-permissions", "../../x", "a\n--b", "x" * 300, {"a": 1}])
def test_an_invalid_conversation_id_is_no_argument_of_the_next_call(agents, fanfold, name):
    agents.install("codex", {"lines": _codex(name)})
    agents.role("coder", "codex")
    one = fanfold("spawn", "coder", "Look around", "--yes", "--json").json()["id"]
    fanfold("wait", one)
    assert fanfold("send", one, "Go on").status == 0
    assert fanfold("wait", one).status == 0
    calls = agents.calls()
    assert len(calls) == 2
    assert "resume" not in calls[1]["argv"]
    assert not [word for word in calls[1]["argv"] if str(name) in word]


def _codex(name: Any) -> list[str]:
    lines = (RECORDED / "codex-exec-json.jsonl").read_text().splitlines()
    heads = [json.loads(line) for line in lines]
    return [
        json.dumps({**head, "thread_id": name}) if head.get("type") == "thread.started" else line
        for head, line in zip(heads, lines, strict=True)
    ]
