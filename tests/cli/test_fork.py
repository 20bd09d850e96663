"""`fanfold fork`: what is reused, what runs again, and that it is said first."""

import pytest

RECIPE = """\
name: essay
inputs:
  - {name: topic, default: tea}
  - {name: style, default: plain}
steps:
  - {id: gather, agent: explorer, prompt: "Research {{inputs.topic}}"}
  - {id: angles, agent: explorer, prompt: "Angles of {{steps.gather.output}}"}
  - {id: write, agent: explorer, prompt: "Write {{inputs.style}}: {{steps.angles.output}}"}
  - {id: aside, agent: explorer, prompt: "Something else"}
output: "{{steps.write.output}}"
"""


@pytest.fixture
def essay(fanfold, project, monkeypatch):
    """A finished run; gives its id and what agents are asked from now on."""
    (project / "essay.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(
        "default: {output: 'OK from {{step}}', usage: {input_tokens: 60, output_tokens: 40, cost_usd: 0.5}}\n"
    )
    result = fanfold("run", "essay.yaml", "--script", "script.yaml", "--json")
    assert result.status == 0
    calls = project / "calls"
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(calls))

    def asked():
        return [line.split()[0] for line in calls.read_text().splitlines()] if calls.exists() else []

    return result.json()["run_id"], asked


def test_a_fork_runs_the_step_and_its_followers_again_and_reuses_the_rest(fanfold, essay):
    run, asked = essay
    result = fanfold("fork", run, "--from", "angles", "--json")
    assert result.status == 0
    assert asked() == ["angles", "write"]
    document = result.json()
    assert document["run_id"] != run
    assert document["steps"]["gather"]["output"] == "OK from gather"
    assert document["usage"]["agents"] == 2
    assert fanfold("verify", document["run_id"]).status == 0
    assert f"forked from {run}" in fanfold("runs").out


def test_a_fork_says_whose_it_is(fanfold, essay):
    run, _ = essay
    fork = fanfold("fork", run, "--from", "write", "--json").json()["run_id"]
    assert fanfold("inspect", fork, "--json").json()["forked_from"] == run


def test_effects_and_cost_of_a_fork_are_shown_before_it_starts(fanfold, essay):
    run, _ = essay
    err = fanfold("fork", run, "--from", "write").err
    said, _, _ = err.partition(" started")
    assert "reuses     gather, angles, aside" in said
    assert "runs again write" in said
    assert "1 agent; last time these took 100 tokens, $0.5000" in said


def test_a_changed_input_reaches_the_steps_that_mention_it(fanfold, essay):
    run, asked = essay
    assert fanfold("fork", run, "-i", "style=wild").status == 0
    assert asked() == ["write"]


def test_a_changed_prompt_reaches_its_step(fanfold, project, essay):
    run, asked = essay
    (project / "prompt.md").write_text("Other angles of {{steps.gather.output}}")
    assert fanfold("fork", run, "--prompt", "angles=prompt.md").status == 0
    assert asked() == ["angles", "write"]


def test_a_fork_of_a_loop_runs_later_iterations_again(fanfold, project, monkeypatch):
    (project / "loop.yaml").write_text(
        "name: loop\nsteps:\n  - id: heal\n"
        "    repeat: {until: \"steps.test.output == 'good'\", max_iterations: 3}\n"
        "    steps:\n      - {id: fix, agent: explorer, prompt: x}\n"
        "      - {id: test, agent: explorer, prompt: y, depends_on: [fix]}\n"
    )
    (project / "script.yaml").write_text('default: bad\nsteps: {"heal#2/test": good}\n')
    assert fanfold("run", "loop.yaml", "--script", "script.yaml").status == 0
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(project / "calls"))
    assert fanfold("fork", "last", "--from", "heal#1/test").status == 0
    calls = [line.split()[0] for line in (project / "calls").read_text().splitlines()]
    assert calls == ["heal#1/test", "heal#2/fix", "heal#2/test"]


def test_a_failed_run_is_fixed_by_a_fork_with_another_input(fanfold, project, monkeypatch):
    (project / "r.yaml").write_text(
        "name: r\ninputs: [{name: n, type: integer, default: 1}]\nsteps:\n"
        "  - {id: a, agent: explorer, prompt: x}\n"
        "  - {id: b, agent: explorer, when: inputs.n == 1, prompt: y, depends_on: [a]}\n"
    )
    (project / "script.yaml").write_text("{default: ok, steps: {b: {fail: {class: agent}}}}")
    assert fanfold("run", "r.yaml", "--script", "script.yaml").status == 1
    mended = fanfold("fork", "last", "-i", "n=2", "--json")
    assert (mended.status, mended.json()["steps"]["b"]["status"]) == (0, "skipped")


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        ([], 2, "usage.missing_option"),
        (["--from", "nothing"], 6, "step.not_found"),
        (["-i", "nothing=1"], 2, "recipe.unknown_input"),
        (["--prompt", "angles"], 2, "usage.bad_value"),
        (["--prompt", "nothing=essay.yaml"], 2, "fork.bad_prompt"),
        (["--prompt", "angles=missing.md"], 2, "usage.bad_file"),
    ],
)
def test_forks_that_cannot_be_are_refused(fanfold, essay, arguments, status, code):
    run, asked = essay
    result = fanfold("fork", run, *arguments, "--json")
    assert (result.status, result.json()["error"]["code"]) == (status, code)
    assert asked() == []
    assert len(fanfold("runs", "--json").json()) == 1


@pytest.mark.full
def test_a_fork_has_the_permission_of_the_run_it_comes_from(fanfold, project):
    (project / "w.yaml").write_text("name: w\nsteps: [{id: a, run: [echo, hi]}]\n")
    assert fanfold("run", "w.yaml", "--permission", "auto").status == 0
    assert fanfold("fork", "last", "--from", "a").status == 0
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: worker, prompt: x}]\n")
    (project / "script.yaml").write_text("default: ok\n")
    assert fanfold("run", "r.yaml", "--script", "script.yaml", "--yes").status == 0
    assert fanfold("fork", "last", "--from", "a").status == 0


def test_other_agents_than_those_of_the_run_do_what_runs_again(fanfold, project, essay, monkeypatch):
    import fanfold as package

    run, _ = essay
    (project / "other.yaml").write_text("default: other\n")
    document = fanfold("fork", run, "--from", "write", "--script", "other.yaml", "--json").json()
    assert (document["output"], document["steps"]["angles"]["output"]) == ("other", "OK from angles")
    with package.open_sync(project) as ff:
        assert ff.fork(run, "write", script="default: from Python").result().output == "from Python"
    # Whoever names a model or a back end does not mean the script.
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for flags, code in [
        (["--model", "openai:gpt-4o"], "model.no_key"),
        (["--agent-backend", "nobody"], "backend.unknown"),
        (["--agent-backend", "model", "--script", "other.yaml"], "usage.conflicting_options"),
        (["--script", "nowhere.yaml"], "usage.bad_script"),
    ]:
        refused = fanfold("fork", run, "--from", "write", *flags, "--yes", "--json")
        assert refused.json()["error"]["code"] == code, refused.out


# At a turn of a conversation

LOOKS = """\
name: looks
steps:
  - {id: look, agent: explorer, prompt: "Look"}
  - {id: tell, agent: explorer, prompt: "Tell {{steps.look.output}}"}
"""
LOOKED = """\
default: "OK from {{step}}"
steps: {look: {output: seen, tool_calls: [{tool: list_files, args: {}}]}}
"""


@pytest.fixture
def looked(fanfold, project):
    (project / "looks.yaml").write_text(LOOKS)
    (project / "looked.yaml").write_text(LOOKED)
    return fanfold("run", "looks.yaml", "--script", "looked.yaml", "--json").json()["run_id"]


def said(fanfold, run, step):
    told = fanfold("transcript", run, step, "--json").json()
    return [(entry["kind"], entry.get("text", "")) for entry in told["entries"]]


def headings(fanfold, run, step):
    """The numbers of the turns that a transcript shows."""
    lines = fanfold("transcript", run, step).out.splitlines()
    return [int(line.split()[2]) for line in lines if line.startswith("## Turn ")]


def test_a_fork_at_a_turn_continues_the_conversation_up_to_it(fanfold, looked):
    forked = fanfold("fork", looked, "--from", "look", "--turn", "1", "--say", "Only in src", "--json")
    assert forked.status == 0
    assert "continues  look after turn 1 of its conversation" in forked.err
    run = forked.json()["run_id"]
    assert said(fanfold, run, "look") == [
        ("input", "Look"), ("response", ""), ("tool_result", ""),
        ("input", "Only in src"), ("response", ""), ("tool_result", ""), ("response", "seen"),
    ]  # fmt: skip
    assert forked.json()["steps"]["tell"]["output"] == "OK from tell"
    assert fanfold("verify", run).status == 0


def test_it_keeps_its_conversation_when_its_source_is_forgotten_and_can_be_forked_again(
    fanfold, project, looked
):
    from fanfold.wiring import wire

    first = fanfold("fork", looked, "--from", "look", "--turn", "2", "--json").json()["run_id"]
    opened = wire(project)
    opened.store.delete_tree(looked)
    opened.close()
    assert headings(fanfold, first, "look") == [1, 2, 3, 4]
    for turn, words in ((3, ["Look", "Continue from here.", "x"]), (2, ["Look", "x"]), (1, ["Look", "x"])):
        at = ("--turn", str(turn), "--say", "x", "--json")
        again = fanfold("fork", first, "--from", "look", *at).json()["run_id"]
        assert [text for kind, text in said(fanfold, again, "look") if kind == "input"] == words
        assert headings(fanfold, again, "look") == list(range(1, turn + 3))
    told = fanfold("fork", first, "--from", "look", "--turn", "1", "--json").json()["run_id"]
    assert ("input", "Continue from here.") in said(fanfold, told, "look")


def test_turns_are_numbered_through_all_of_a_conversation_and_forked_at_by_that_number(fanfold, project):
    steps = [
        "{id: a, agent: explorer, prompt: First}",
        "{id: b, agent: explorer, continue: a, prompt: Second}",
        "{id: c, agent: explorer, continue: b, prompt: Third}",
    ]
    (project / "talk.yaml").write_text(f"name: talk\nsteps: [{', '.join(steps)}]\n")
    (project / "s.yaml").write_text("default: I am {{step}}\n")
    run = fanfold("run", "talk.yaml", "--script", "s.yaml", "--json").json()["run_id"]
    assert headings(fanfold, run, "c") == [1, 2, 3]
    told = fanfold("transcript", run, "c", "--json").json()
    assert [(one["step"], one["turn"]) for one in told["entries"] if one["kind"] == "response"] == [
        ("a", 1), ("b", 2), ("c", 3),
    ]  # fmt: skip
    assert told["turns"] == 1
    assert "\n1 turn after 2 before, " in fanfold("transcript", run, "c").out
    followed = fanfold("transcript", run, "c", "--follow").out
    assert [line for line in followed.splitlines() if line.startswith("## Turn 3")]

    def heard(*given):
        forked = fanfold("fork", run, "--from", "c", *given, "--json").json()["run_id"]
        return [text for kind, text in said(fanfold, forked, "c") if kind == "input"]

    assert heard("--turn", "1") == ["First", "Third"]  # what it goes on with ends there; then it asks
    assert heard("--turn", "2", "--say", "Instead") == ["First", "Second", "Instead"]
    assert heard("--turn", "3") == ["First", "Second", "Third", "Continue from here."]
    refused = fanfold("fork", run, "--from", "c", "--turn", "4")
    assert "c has had 3 turns" in refused.err


@pytest.mark.full
def test_a_subagent_is_forked_at_any_turn_of_its_conversation(fanfold, project):
    (project / "s.yaml").write_text("default: I am {{step}}\n")
    fanfold("spawn", "explorer", "look", "--name", "scout", "--script", "s.yaml", "--wait")
    fanfold("send", "scout", "more")
    fanfold("wait", "scout")
    assert headings(fanfold, "hand", "scout") == [1, 2]
    for name, turn, words in (
        ("scout-2", "1", ["look", "and you?"]),
        ("scout-3", "2", ["look", "more", "and you?"]),
    ):
        assert (
            fanfold("fork", "hand", "--from", "scout", "--turn", turn, "--say", "and you?").out == f"{name}\n"
        )
        fanfold("wait", name)
        assert [text for kind, text in said(fanfold, "hand", name) if kind == "input"] == words
    for name in ("scout", "scout-2", "scout-3"):
        fanfold("close", name)


def test_without_input_the_agent_continues_or_gets_the_new_prompt(fanfold, project, looked):
    run = fanfold("fork", looked, "--from", "look", "--turn", "1", "--json").json()["run_id"]
    assert said(fanfold, run, "look")[3] == ("input", "Continue from here.")
    (project / "new.txt").write_text("Look again")
    given = ["--turn", "1", "--prompt", "look=new.txt", "--json"]
    run = fanfold("fork", looked, "--from", "look", *given).json()["run_id"]
    assert said(fanfold, run, "look")[3] == ("input", "Look again")


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        (["--from", "look", "--turn", "9"], 6, "session.no_turn"),
        (["--from", "look", "--say", "x"], 2, "usage.conflict"),
        (["--turn", "1"], 2, "usage.missing_option"),
    ],
)
def test_a_turn_that_is_not_there_is_refused(fanfold, looked, given, status, code):
    refused = fanfold("fork", looked, *given, "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (status, code)


@pytest.mark.full
def test_a_subagent_is_forked_at_a_turn_into_a_new_one(fanfold, project):
    (project / "s.yaml").write_text("default: I am {{step}}\n")
    fanfold("spawn", "explorer", "look", "--name", "scout", "--script", "s.yaml", "--wait")
    assert fanfold("fork", "hand", "--from", "scout", "--turn", "1", "--say", "and you?").out == "scout-2\n"
    fanfold("wait", "scout-2")
    fanfold("send", "scout-2", "more")
    fanfold("wait", "scout-2")
    words = [text for _, text in said(fanfold, "hand", "scout-2")]
    assert words == ["look", "I am scout", "and you?", "I am scout-2", "more", "I am scout-2#2"]
    for name in ("scout", "scout-2"):
        fanfold("close", name)
