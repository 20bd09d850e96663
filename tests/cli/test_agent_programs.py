"""A role's work is done by a program of the user's: its words are read, its end judged, its files merged."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest

from fanfold.agents.command.transcript_events import MAX_TEXT_CHARS
from fanfold.steps.agent import FILES_MOVED
from tests.cli.agent_world import SUCCESS, AgentWorld, step, writing
from tests.hostile.worlds import without_bubblewrap

pytestmark = pytest.mark.full


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def run(fanfold, recipe, *flags):
    done = fanfold("run", recipe, "--yes", "--json", *flags)
    return done.json()


@pytest.mark.parametrize("name", SUCCESS)
def test_an_agent_changes_files_in_a_workspace_of_its_own_and_they_are_merged(agents, fanfold, project, name):
    agents.install(name, writing(name))
    agents.role("coder", name)
    done = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))
    assert done["status"] == "completed", done["steps"]
    assert done["output"] == "I wrote hello.txt."
    assert (project / "hello.txt").read_text() == "hello\n"
    [call] = agents.calls()
    assert "Write hello.txt" in call["stdin"] + " ".join(call["argv"])
    assert call["cwd"] == str(project)
    told = fanfold("transcript", "last", "work", "--json").json()
    kinds = [entry["kind"] for entry in told["entries"]]
    assert kinds[0] == "input"
    assert "agent" in kinds
    assert "tool_result" in kinds
    assert told["backend"] == name
    if name != "copilot":  # which does not say
        assert done["usage"]["input_tokens"] in (2_000, 2_200)


LONG = "word " * 60_000
"""More than Linux takes for one argument."""


@pytest.fixture
def long_step(agents, project):
    """A recipe whose agent is told very much, and how to run it."""
    (project / "long.json").write_text(json.dumps({"long": LONG}))
    told = step("coder", prompt="Write hello.txt {{inputs.long}}", write_set=["*.txt"])
    recipe = agents.recipe(told, inputs=[{"name": "long", "required": True}])
    return recipe, "--inputs", "long.json"


@pytest.mark.parametrize("name", SUCCESS)
def test_a_long_prompt_reaches_every_agent(agents, fanfold, long_step, name):
    agents.install(name, writing(name))
    agents.role("coder", name)
    done = run(fanfold, *long_step)
    assert done["status"] == "completed", done["error"]
    [call] = agents.calls()
    assert LONG in call["stdin"]


def test_a_prompt_that_is_too_long_for_an_argument_is_refused_before_the_program_starts(
    agents, fanfold, long_step
):
    agents.install("mine", {"lines": ["done"]})
    agents.role("coder", "command", 'command = ["mine", "{prompt}"]')
    done = run(fanfold, *long_step)
    error = done["steps"]["work"]["error"]
    assert error["code"] == "command.not_startable"
    assert "131,071" in error["message"]
    assert "{prompt_file}" in error["hint"]
    assert agents.calls() == []
    for words in ('["mine", "{prompt_file}"]', '["mine"]'):
        agents.role("coder", "command", f"command = {words}")
        assert run(fanfold, *long_step)["status"] == "completed"


REFUSED = [
    ("claude", "claude-unreachable.jsonl", "transport", "agent.unreachable", "Unable to connect"),
    ("opencode", "opencode-unreachable.jsonl", "transport", "agent.unreachable", "Cannot connect"),
    ("goose", "goose-unreachable.jsonl", "transport", "agent.unreachable", "Could not connect"),
    ("claude", "claude-denied.json", "permission", "agent.denied", "was denied Write"),
    ("claude", "claude-max-turns.json", "agent", "session.max_turns", "maximum number of turns"),
]


KEY_REFUSED = [
    ("claude", "claude-bad-key.jsonl", "Incorrect API key"),
    ("codex", "codex-bad-key.jsonl", "Incorrect API key"),
    ("opencode", "opencode-bad-key.jsonl", "Incorrect API key"),
    ("gemini", "gemini-bad-key.jsonl", "API key not valid"),
    ("goose", "goose-bad-key.jsonl", "Authentication"),
]


@pytest.mark.parametrize(("name", "says", "words"), KEY_REFUSED)
def test_a_refused_login_pauses_the_run_before_the_next_agent_starts(agents, fanfold, name, says, words):
    agents.install(name, {"says": says})
    agents.role("coder", name)
    steps = [step("coder"), step("coder", id="next", depends_on=["work"])]
    done = run(fanfold, agents.recipe(*steps))
    assert (done["status"], done["error"]["code"]) == ("paused", "agent.key_refused")
    assert words in done["error"]["message"]
    assert len(agents.calls()) == 1
    agents.install(name, writing(name))  # logged in again
    assert fanfold("resume", "last", "--yes", "--json").json()["status"] == "completed"


@pytest.mark.parametrize(("name", "says", "kind", "code", "words"), REFUSED)
def test_failures_with_exit_status_0_get_the_right_class(agents, fanfold, name, says, kind, code, words):
    agents.install(name, {"says": says})
    agents.role("coder", name)
    once = step("coder", write_set=["*.txt"], retry={"attempts": 1})
    done = run(fanfold, agents.recipe(once, limits={"outage": 0}))
    error = done["error"] if kind == "transport" else done["steps"]["work"]["error"]
    assert done["status"] == ("paused" if kind == "transport" else "failed")
    assert (error["class"], error["code"]) == (kind, code), error
    assert words in error["message"]


@pytest.mark.parametrize(
    ("name", "says", "kind", "limit"),
    [
        ("codex", "codex-unreachable.jsonl", "transport", "patience_s = 0.5"),
        ("gemini", "gemini-unreachable.jsonl", "timeout", "idle_s = 1"),
    ],
)
def test_an_agent_that_waits_for_ever_is_ended(agents, fanfold, name, says, kind, limit):
    agents.install(name, {"says": says, "then": "hang"})
    agents.role("coder", name)
    agents.profile(name, f"credentials = []\n{limit}\n")
    done = run(fanfold, agents.recipe(step("coder", retry={"attempts": 1}), limits={"outage": 0}))
    error = done["error"] if kind == "transport" else done["steps"]["work"]["error"]
    assert error["class"] == kind


def test_an_agent_that_closes_its_output_and_keeps_running_is_ended(agents, fanfold, monkeypatch):
    """Where nothing stands between it and us that would keep its output open."""
    monkeypatch.setenv("PATH", f"{agents.bin}:{without_bubblewrap()}")
    (agents.bin / "own").write_text("#!/bin/sh\necho done\nexec >&- 2>&-\nsleep 600\n")
    (agents.bin / "own").chmod(0o755)
    agents.profile("own", 'program = "own"\noutput = "text"\nidle_s = 1\n')
    agents.role("coder", "own", "network = true")
    error = run(fanfold, agents.recipe(step("coder")))["steps"]["work"]["error"]
    assert (error["class"], error["code"]) == ("timeout", "agent.silent")


def test_an_agent_that_waits_for_input_gets_end_of_file_and_is_judged_by_its_output(agents, fanfold):
    agents.install("codex", {"lines": ["not json", "{}", "[1]"], "exit": 0})
    agents.role("coder", "codex")
    error = run(fanfold, agents.recipe(step("coder")))["steps"]["work"]["error"]
    assert (error["class"], error["code"]) == ("agent", "agent.broken_off")


def test_a_hundred_megabytes_of_output_are_read_and_not_kept(agents, fanfold, project):
    agents.install("codex", writing("codex", then="flood"))
    agents.role("coder", "codex")
    done = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))
    assert done["status"] == "completed", done["steps"]
    stored = sum(file.stat().st_size for file in (project / ".fanfold").glob("*.db*"))
    assert stored < 5_000_000


def test_writes_outside_of_set_and_workspace_are_not_merged(agents, fanfold, project, tmp_path):
    outside = tmp_path / "outside.txt"
    writes = {"other.md": "x", str(outside): "x", "/etc/planted": "x", "~/.ssh/authorized_keys": "x"}
    agents.install("claude", {"says": SUCCESS["claude"], "writes": writes})
    agents.role("coder", "claude")
    error = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))["steps"]["work"]["error"]
    assert error["class"] == "violation"
    assert "other.md" in error["message"]
    assert not (project / "other.md").exists()
    assert not outside.exists()
    call, corrected = agents.calls()
    assert call["wrote"]["/etc/planted"] == "Read-only file system"
    assert not (tmp_path / "home" / ".ssh").exists()
    assert "- other.md (" in corrected["stdin"], "it was given one turn to correct it"
    assert "It may change: `*.txt`." in corrected["stdin"]


def test_a_change_outside_of_the_write_set_that_is_corrected_does_not_fail_the_step(agents, fanfold, project):
    wrong = {"says": SUCCESS["claude"], "writes": {"other.md": "x", "hello.txt": "hello\n"}}
    agents.install("claude", wrong, {"says": SUCCESS["claude"], "deletes": ["other.md"]})
    agents.role("coder", "claude")
    done = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))
    assert (done["status"], [one["path"] for one in done["changes"]]) == ("completed", ["hello.txt"])
    first, second = agents.calls()
    known = first["argv"][first["argv"].index("--session-id") + 1]
    assert "--resume" in second["argv"], f"in the same conversation as {known}"
    told = fanfold("transcript", "last", "work", "--json").json()["entries"]
    assert "may not change" in json.dumps(told)


def test_an_agent_without_schema_support_gets_the_schema_and_corrections(agents, fanfold):
    resumed = "opencode-resume.jsonl"
    fitting = (
        '{"type":"text","sessionID":"ses_1","part":{"text":"{\\"ok\\":true}","messageID":"m"}}',
        '{"type":"step_finish","sessionID":"ses_1","part":{"reason":"stop"}}',
    )
    agents.install("opencode", {"says": resumed}, {"lines": fitting})
    agents.role("coder", "opencode")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    done = run(fanfold, agents.recipe(step("coder", output_schema=schema)))
    assert done["output"] == {"ok": True}
    first, second = agents.calls()
    assert '"required":["ok"]' in first["stdin"]
    assert "one JSON value" in second["stdin"]
    assert second["argv"][second["argv"].index("-s") + 1] == "ses_e1d9fcb98ffe7p61rdyBje2SkF"


@pytest.mark.parametrize(
    ("name", "says", "flag"),
    [
        ("claude", "claude-schema.json", "--json-schema"),
        ("codex", "codex-exec-schema.jsonl", "--output-schema"),
    ],
)
def test_an_agent_that_takes_a_schema_is_given_it(agents, fanfold, name, says, flag):
    agents.install(name, {"says": says})
    agents.role("coder", name)
    names = {"file": {"type": "string"}, "ok": {"type": "boolean"}}
    schema = {
        "type": "object",
        "properties": names,
        "required": ["file", "ok"],
        "additionalProperties": False,
    }
    done = run(fanfold, agents.recipe(step("coder", output_schema=schema)))
    assert done["output"] == {"file": "hello.txt", "ok": True}
    [call] = agents.calls()
    assert flag in call["argv"]


def test_a_role_that_is_a_command_gets_its_task_on_standard_input(agents, fanfold, project):
    agents.install("mine", {"lines": ["some words", "the answer"], "writes": {"hello.txt": "hi\n"}})
    agents.role("coder", "command", 'command = ["mine", "--now"]')
    done = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))
    assert done["output"] == "some words\nthe answer"
    assert (project / "hello.txt").read_text() == "hi\n"
    [call] = agents.calls()
    assert call["argv"] == ["--now"]
    assert call["stdin"].startswith("You are careful.\n\nFacts about this session:\n")
    assert call["stdin"].endswith("\n\nWrite hello.txt")


def test_the_end_of_a_long_plain_answer_is_kept(agents, fanfold):
    (agents.bin / "own").write_text("#!/bin/sh\nyes | head -c 20000000\necho The end.\n")
    (agents.bin / "own").chmod(0o755)
    agents.role("coder", "command", 'command = ["own"]')
    output = run(fanfold, agents.recipe(step("coder")))["output"]
    assert output.endswith("The end.")
    assert len(output) <= MAX_TEXT_CHARS


def test_a_profile_of_the_user_makes_any_program_a_back_end(agents, fanfold):
    agents.install("mine", {"lines": ["thinking", '{"answer": 42}']})
    agents.profile(
        "mine", 'program = "mine"\ncall = ["{prompt}"]\nprompt = "argument"\noutput = "last_line"\n'
    )
    agents.role("coder", "mine")
    done = run(fanfold, agents.recipe(step("coder", outputs=["answer"])))
    assert done["output"] == {"answer": 42}
    [call] = agents.calls()
    assert call["argv"][0].startswith("You are careful.\n\nFacts about this session:\n")
    assert "\n\nWrite hello.txt" in call["argv"][0]


def test_programs_of_a_role_need_permission_first(agents, fanfold):
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude")
    agents.role("own", "command", 'command = ["sh", "-c", "true"]')
    refused = fanfold("run", agents.recipe(step("coder")), "--json")
    assert refused.status == 4
    assert refused.json()["error"]["details"]["needs"] == [
        "work writes **/*",
        "role coder runs the agent claude",
    ]
    refused = fanfold("run", agents.recipe(step("own")), "--json")
    assert refused.json()["error"]["details"]["needs"][1:] == ["role own runs: sh -c true"]


def test_one_flag_gives_an_agent_to_every_role(agents, fanfold, project):
    agents.install("codex", writing("codex"))
    done = run(fanfold, agents.recipe(step("worker", write_set=["*.txt"])), "--agent-backend", "codex")
    assert done["status"] == "completed", done["steps"]
    assert (project / "hello.txt").exists()


def test_an_agent_that_is_not_installed_is_refused_before_anything_runs(agents, fanfold):
    agents.role("coder", "claude")
    refused = fanfold("run", agents.recipe(step("coder")), "--yes", "--json")
    error = refused.json()["error"]
    assert error["code"] == "recipe.unknown_backend"
    assert "Claude Code is not installed" in error["message"]


def test_a_budget_in_dollars_is_refused_if_the_agent_reports_no_price(agents, fanfold):
    for name in ("codex", "claude"):
        agents.install(name, writing(name))
        agents.role(f"with-{name}", name)
    refused = fanfold("run", agents.recipe(step("with-codex")), "--yes", "--json", "--budget-usd", "1")
    assert (refused.status, refused.json()["error"]["code"]) == (5, "budget.unpriced")
    both = ("--budget-usd", "1", "--budget-tokens", "100000")
    assert run(fanfold, agents.recipe(step("with-codex")), *both)["status"] == "completed"
    done = run(fanfold, agents.recipe(step("with-claude")), "--budget-usd", "1")
    assert (done["status"], done["usage"]["cost_usd"]) == ("completed", 0.00735)


def test_a_price_set_by_the_user_lets_dollars_limit_an_agent_that_reports_none(agents, fanfold):
    own = agents.home / ".fanfold" / "config.toml"
    own.parent.mkdir(exist_ok=True)
    own.write_text('[models.prices]\n"gpt-9" = { input = 3, output = 15 }\n')
    agents.install("codex", writing("codex"))
    agents.role("coder", "codex", 'model = "openai:gpt-9"')
    agents.role("other", "codex", 'model = "gpt-8"')
    refused = fanfold("run", agents.recipe(step("other")), "--yes", "--json", "--budget-usd", "1").json()
    assert refused["error"]["message"].endswith('role "other" names no model with a price')
    done = run(fanfold, agents.recipe(step("coder")), "--budget-usd", "1")
    used = done["usage"]
    assert (done["status"], used["cost_usd"]) == (
        "completed",
        (used["input_tokens"] * 3 + used["output_tokens"] * 15) / 1e6,
    )


def test_a_fallback_without_prices_is_refused_under_a_budget_in_dollars(agents, fanfold):
    for name in ("codex", "claude"):
        agents.install(name, writing(name))
    agents.role("coder", "claude", 'fallback_backends = ["codex"]')
    refused = fanfold("run", agents.recipe(step("coder")), "--yes", "--json", "--budget-usd", "1")
    assert (refused.status, refused.json()["error"]["code"]) == (5, "budget.unpriced")


def test_an_agent_with_a_budget_option_gets_the_rest_of_the_budget(agents, fanfold):
    agents.install("claude", writing("claude"), {"says": "claude-budget.json"})
    agents.role("coder", "claude")
    first, second = step("coder"), {**step("coder"), "id": "again", "depends_on": ["work"]}
    done = run(fanfold, agents.recipe(first, second), "--budget-usd", "1")
    said = [call["argv"][call["argv"].index("--max-budget-usd") + 1] for call in agents.calls()]
    assert said == ["1.000000", "0.992650"], "the first spent something"
    assert done["status"] == "completed", done["steps"]
    agents.install("claude", writing("claude"))
    run(fanfold, agents.recipe(first))
    assert "--max-budget-usd" not in agents.calls()[-1]["argv"]


def test_an_agent_that_stops_at_its_own_budget_pauses_the_run_and_continues_when_it_is_raised(
    agents, fanfold
):
    agents.install("claude", {"says": "claude-budget.json"}, writing("claude"))
    agents.role("coder", "claude")
    paused = fanfold("run", agents.recipe(step("coder")), "--yes", "--json", "--budget-usd", "0.01")
    assert (paused.status, paused.json()["status"]) == (5, "paused")
    assert paused.json()["usage"]["cost_usd"] == 0.0033
    done = fanfold("resume", "last", "--budget-usd", "1", "--yes", "--json").json()
    assert (done["status"], done["usage"]["cost_usd"]) == ("completed", 0.0033 + 0.00735)


def message(name: str, tokens: int) -> str:
    said = {"type": "text", "text": f"{name} is done"}
    usage = {"input_tokens": tokens, "cache_read_input_tokens": 50_000, "output_tokens": 10}
    body = {"id": name, "model": "claude-sonnet-4-5", "content": [said], "usage": usage}
    return json.dumps({"type": "assistant", "message": body})


def test_an_agent_whose_messages_use_up_the_budget_is_stopped_and_continues_its_conversation(agents, fanfold):
    started = json.dumps({"type": "system", "subtype": "init", "session_id": "s-1"})
    messages = [message("one", 2_000), message("one", 2_000), message("two", 2_500)]
    agents.install("claude", {"lines": [started, *messages], "then": "hang"}, writing("claude"))
    agents.role("coder", "claude")
    paused = fanfold("run", agents.recipe(step("coder")), "--yes", "--json", "--budget-tokens", "4000")
    assert (paused.status, paused.json()["status"]) == (5, "paused")
    usage = paused.json()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (104_500, 20), "two messages, cached input too"
    assert "used up" in fanfold("explain", "last", "work").out
    done = fanfold("resume", "last", "--budget-tokens", "9000", "--yes", "--json").json()
    assert (done["status"], done["usage"]["input_tokens"]) == ("completed", 104_500 + 2_200)
    _, second = (call["argv"] for call in agents.calls())
    assert second[second.index("--resume") + 1] == "s-1"


def test_a_budget_in_tokens_stops_agents_that_report_no_tokens_after_the_first_answer(agents, fanfold):
    agents.install("copilot", writing("copilot"))
    agents.role("coder", "copilot")
    each = {**step("coder", write_set=["*.txt"]), "for_each": [1, 2, 3]}
    failed = run(fanfold, agents.recipe(each), "--budget-tokens", "100000", "--max-concurrency", "1")
    assert failed["status"] == "failed"
    codes = {failed["steps"][f"work[{number}]"]["error"]["code"] for number in range(3)}
    assert codes == {"budget.uncounted"}
    assert len(agents.calls()) == 1, "the other items were refused before they cost anything"


def test_an_agent_that_speaks_acp_is_stopped_when_its_cost_has_used_up_the_budget(agents, fanfold):
    says = {"says": "acp-claude.jsonl"}
    agents.install("claude-agent-acp", {**says, "then": "hang"}, says, speaks=True)
    agents.role("coder", "claude-acp")
    paused = fanfold("run", agents.recipe(step("coder")), "--yes", "--json", "--budget-usd", "0.005")
    assert (paused.status, paused.json()["usage"]["cost_usd"]) == (5, 0.00735)
    assert any("cancelled" in kept for kept in agents.spoken())
    assert fanfold("resume", "last", "--budget-usd", "1", "--yes", "--json").json()["status"] == "completed"


def test_an_agent_whose_cost_arrives_with_the_end_of_its_turn_has_done_its_work(agents, fanfold):
    agents.install("claude-agent-acp", {"says": "acp-claude.jsonl"}, speaks=True)
    agents.role("coder", "claude-acp")
    done = fanfold("run", agents.recipe(step("coder")), "--yes", "--json", "--budget-usd", "0.005").json()
    assert (done["status"], done["usage"]["cost_usd"]) == ("completed", 0.00735)


def test_doctor_says_which_agents_are_here_and_what_they_may_have(agents, fanfold, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-user-0123456789")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for name, version in (("claude", "2.1.325 (Claude Code)"), ("codex", "codex-cli 0.166.0")):
        (agents.bin / name).write_text(f"#!/bin/sh\necho '{version}'\n")
        (agents.bin / name).chmod(0o755)
    (agents.bin / "goose").write_text("#!/bin/sh\nsleep 60\n")
    (agents.bin / "goose").chmod(0o755)
    agents.profile("goose", "credentials = []\n")
    monkeypatch.setattr("fanfold.api.system.ANSWER_S", 1.0)
    checks = [one for one in fanfold("doctor", "--json").json()["checks"] if one["name"] == "agents"]
    said = {one["message"].split(" at ")[0]: one for one in checks}
    assert set(said) == {
        "Claude Code 2.1.325 (claude)",
        "Codex 0.166.0 (codex)",
        "Goose does not answer (goose)",
        "Goose over ACP does not answer (goose-acp)",
    }
    assert "OPENAI_API_KEY" in said["Goose over ACP does not answer (goose-acp)"]["hint"]
    assert 'credentials = ["OPENAI_API_KEY"]' in said["Codex 0.166.0 (codex)"]["hint"]


def test_doctor_leaves_no_files_and_limits_the_output_of_programs(agents, fanfold, monkeypatch):
    """One that goes on for ever, one that says no end of things, and one that leaves somebody behind."""
    monkeypatch.setattr("fanfold.api.system.ANSWER_S", 2.0)
    lasting = f"exec -a {agents.bin}/left sleep 500"
    scripts = {
        "goose": f"({lasting}) & (setsid bash -c '{lasting}') & sleep 501",
        "qwen": "while :; do printf '%065536d'; done",
        "gemini": f"({lasting}) & echo 1.2.3",
    }
    for name, script in scripts.items():
        (agents.bin / name).write_text(f"#!/bin/bash\n{script}\n")
        (agents.bin / name).chmod(0o755)
        agents.profile(name, "credentials = []\n")
    tracemalloc.start()
    try:
        checks = [one for one in fanfold("doctor", "--json").json()["checks"] if one["name"] == "agents"]
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert sorted(one["message"].split(" (")[0] for one in checks) == [
        "Gemini CLI 1.2.3",
        "Goose does not answer",
        "Qwen Code does not answer",
    ]
    words = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [one for one in words if str(agents.bin).encode() in one]


@pytest.mark.parametrize(
    ("backend", "turn", "goes_on"), [("claude", 2, True), ("claude", 1, False), ("codex", 2, False)]
)
def test_a_fork_continues_the_program_s_conversation_only_if_it_ended_at_that_turn(
    agents, fanfold, backend, turn, goes_on
):
    """Behind an earlier turn its own conversation went on, and another agent's is none it could know."""
    for name in ("claude", "codex"):
        agents.install(name, writing(name))
        agents.profile(name, "credentials = []\n")
    first = run(fanfold, agents.recipe(step("worker", write_set=["*.txt"])), "--agent-backend", "claude")
    turns = fanfold("transcript", "last", "work", "--json").json()["entries"]
    assert max(entry["turn"] or 0 for entry in turns) == 2
    at = ("--from", "work", "--turn", str(turn), "--say", "And now?", "--agent-backend", backend)
    done = fanfold("fork", first["run_id"], *at, "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    call = agents.calls()[-1]
    assert bool({"--resume", "resume"} & set(call["argv"])) is goes_on
    assert ("You received:\nWrite hello.txt" in call["stdin"]) is not goes_on
    assert call["stdin"].endswith("And now?")
    told = fanfold("transcript", "last", "work").out
    assert ("cannot continue" in told) is not goes_on


def interrupted(agents, name: str, **more: object) -> str:
    """A recipe whose agent says half of its answer and then nothing; the second call finishes the work."""
    agents.install(name, {"says": SUCCESS[name], "cut": 5, "then": "hang"}, writing(name))
    agents.profile(name, "credentials = []\nidle_s = 2\n")
    agents.role("coder", name)
    return str(agents.recipe(step("coder", write_set=["*.txt"], **more)))


@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "gemini"])
def test_the_next_attempt_after_a_silent_agent_continues_its_conversation(agents, fanfold, name):
    done = run(fanfold, interrupted(agents, name, retry={"attempts": 2, "on": ["timeout"], "backoff": "1ms"}))
    assert (done["status"], done["steps"]["work"]["attempts"]) == ("completed", 2)
    first, second = agents.calls()[-2:]
    assert first["stdin"].endswith("Write hello.txt")
    assert second["stdin"].endswith(FILES_MOVED)
    assert "Write hello.txt" not in second["stdin"]


@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "gemini"])
def test_a_retry_continues_the_conversation_of_an_interrupted_agent(agents, fanfold, name):
    recipe = interrupted(agents, name, retry={"attempts": 1})
    failed = fanfold("run", recipe, "--yes", "--json").json()
    assert (failed["status"], failed["steps"]["work"]["error"]["code"]) == ("failed", "agent.silent")
    told = fanfold("retry", "last", "--dry-run", "--json").json()
    assert list(told["goes_on"]) == ["work"]
    done = fanfold("retry", "last", "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    call = agents.calls()[-1]
    assert call["stdin"].endswith(FILES_MOVED)
    assert "Write hello.txt" not in call["stdin"]
    assert "cannot continue" not in fanfold("transcript", "last", "work").out


def test_a_retry_starts_again_if_the_home_of_the_agent_was_deleted(agents, fanfold, project):
    recipe = interrupted(agents, "claude", retry={"attempts": 1})
    assert fanfold("run", recipe, "--yes", "--json").json()["status"] == "failed"
    agents.install("claude", writing("claude"))
    shutil.rmtree(project / ".fanfold" / "workspace" / "homes")
    (project / ".fanfold" / "workspace" / "homes").mkdir()
    done = fanfold("retry", "last", "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    assert "Write hello.txt" in agents.calls()[-1]["stdin"], "it is told the task again"
    assert "remembers is gone" in fanfold("transcript", "last", "work").out


def test_a_retry_of_a_changed_prompt_or_of_work_that_was_judged_starts_again(agents, fanfold, project):
    interrupted(agents, "claude", retry={"attempts": 1})
    assert fanfold("run", "work.yaml", "--yes", "--json").json()["status"] == "failed"
    agents.recipe(step("coder", write_set=["*.txt"]) | {"prompt": "Write hello.txt twice"})
    assert fanfold("retry", "last", "--dry-run", "--json").json()["goes_on"] == {}
    agents.install("claude", {**writing("claude"), "writes": {"other.md": "x"}})
    judged = fanfold("retry", "last", "--yes", "--json").json()
    assert judged["steps"]["work"]["error"]["class"] == "violation"
    assert fanfold("retry", "last", "--dry-run", "--json").json()["goes_on"] == {}
