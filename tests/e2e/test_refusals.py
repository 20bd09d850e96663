"""What goes wrong before or at a provider: said clearly, with a hint and the right status, and no hang."""

import os
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.world import MODELS, Done, Project, Provider
from tests.provider import KEY, Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full

RECIPE = """\
name: two
steps:
  - {id: first, agent: explorer, prompt: FIRST}
  - {id: second, agent: explorer, prompt: SECOND, depends_on: [first]}
"""
VARIABLES = {"chat": "OPENAI_API_KEY", "responses": "OPENAI_API_KEY", "messages": "ANTHROPIC_API_KEY"}
WRONG = "a-key-that-nobody-gave-out"


@pytest.fixture
def two(project: Project) -> Project:
    project.file("two.yaml").write_text(RECIPE)
    return project


def run(project: Project, wire: str = "chat", **environment: str) -> Done:
    """A run that begins: what it tells people is on stderr, what it tells scripts on stdout."""
    return project("run", "two.yaml", "--model", MODELS[wire], "--json", **environment)


def refused(project: Project, model: str, **environment: str) -> tuple[Done, Done]:
    """A run that must not begin, for people and for scripts."""
    command = ("run", "two.yaml", "--model", model)
    both = project(*command, **environment), project(*command, "--json", **environment)
    assert project("runs", "--json").json == []
    return both


def word(asked: RecordedRequest) -> str:
    return asked.prompt.split()[0]


def fine(asked: RecordedRequest) -> Reply:
    return Reply(text=f"{word(asked)} done")


@pytest.mark.parametrize("wire", MODELS)
def test_a_wrong_key_pauses_the_run_until_the_key_is_right(two: Project, wire: str):
    variable = VARIABLES[wire]
    with Provider(fine) as provider:
        two.environment |= provider.environment
        done = run(two, wire, **{variable: WRONG})
        assert done.status == 3
        for words in ("Incorrect API key", f"check {variable}", "fanfold resume"):
            assert words in done.err
        assert done.err.count("first started") == 1, "it is not tried again before anybody did anything"
        error = done.json["error"]
        assert (done.json["status"], error["class"]) == ("paused", "permission")
        assert error["code"] == "model.key_refused"
        assert variable in error["hint"]
        assert WRONG not in done.out + done.err
        assert len(provider.asked) == 1
        resumed = two("resume", "last")
        assert (resumed.status, resumed.out) == (0, "SECOND done\n"), resumed.err
        assert [asked.key for asked in provider.asked] == [WRONG, KEY, KEY]
        assert two("verify", "--all").status == 0


def test_an_empty_account_pauses_the_run_and_what_was_done_is_not_done_again(two: Project):
    with Provider(lambda asked: Fault("quota") if word(asked) == "SECOND" else fine(asked)) as provider:
        two.environment |= provider.environment
        done = run(two, "messages")
        assert done.status == 3
        error = done.json["error"]
        assert (error["class"], error["code"]) == ("quota", "model.quota")
        assert "account" in error["hint"]
        assert "account" in done.err
        provider.script = fine
        resumed = two("resume", "last", "--json")
        assert (resumed.status, resumed.json["output"]) == (0, "SECOND done")
        assert resumed.json["error"] is None
        assert provider.paid_twice() == []
        assert len(provider.given) == 2
        assert two("verify", "--all").status == 0


@pytest.mark.parametrize("wire", MODELS)
def test_a_model_that_the_provider_does_not_know_fails_the_run_with_a_hint(two: Project, wire: str):
    with Provider(lambda _: Fault("unknown_model")) as provider:
        done = run(two, wire, **provider.environment)
    assert done.status == 1
    assert MODELS[wire] in done.err
    assert "check the model's name" in done.err
    assert done.json["error"]["code"] == "model.unknown"
    assert done.json["steps"]["second"]["status"] == "skipped"
    assert len(provider.asked) == 1, "asking again would not help"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where a connection is refused for as long as the test runs."""
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_without_a_network_the_run_pauses_and_names_what_it_could_not_reach(two: Project, nobody: str):
    recipe = RECIPE.replace("FIRST", "FIRST, retry: {attempts: 1}").replace(
        "steps:", "limits: {outage: 0}\nsteps:"
    )
    two.file("two.yaml").write_text(recipe)
    done = run(two, OPENAI_BASE_URL=f"{nobody}/v1", OPENAI_API_KEY=KEY)
    assert done.status == 3
    assert f"{nobody} cannot be reached" in done.err
    assert "check the network" in done.err
    error = done.json["error"]
    assert (error["class"], error["code"], error["retryable"]) == ("transport", "model.unreachable", True)
    assert nobody in error["message"]


def test_a_name_that_means_no_provider_is_refused_before_anything_runs(two: Project):
    text, document = refused(two, "somewhere:something")
    assert (text.status, document.status) == (2, 2)
    assert "error[model.unknown_provider]" in text.err
    assert "hint: " in text.err
    assert document.json["error"]["code"] == "model.unknown_provider"


@pytest.mark.parametrize("wire", ["responses", "messages"])
def test_a_missing_key_is_refused_before_anything_runs(two: Project, wire: str):
    text, document = refused(two, MODELS[wire])
    assert (text.status, document.status) == (2, 2)
    assert f"set {VARIABLES[wire]}" in text.err
    assert document.json["error"]["code"] == "model.no_key"


BROKEN = {
    ".fanfold/agents/helper.toml": 'name = "helper\n',
    ".fanfold/agents/other.toml": 'name = "other"\ndescription = "x"\nsandbox_mode = "no such"\n',
    ".claude/agents/helper.md": "---\nname: [\n---\nHelp.\n",
}


@pytest.mark.parametrize("file", BROKEN)
def test_a_role_with_a_broken_file_is_refused_and_not_replaced_by_another(two: Project, file: str):
    role = os.path.basename(file).partition(".")[0]
    two.file("two.yaml").write_text(RECIPE.replace("explorer", role))
    two.file(file).write_text(BROKEN[file])
    with Provider(fine) as provider:
        two.environment |= provider.environment
        text, document = refused(two, MODELS["chat"])
        spawned = two("spawn", role, "Help.", "--yes", "--json")
    assert (text.status, document.status, spawned.status) == (2, 2, 2)
    assert "error[recipe.broken_role]" in text.err
    assert f"{file}:" in text.err
    assert "correct the file, or remove it" in text.err
    assert document.json["error"]["code"] == "recipe.broken_role"
    assert file in document.json["error"]["message"]
    assert file in spawned.json["error"]["message"]
    assert provider.asked == []


def test_a_broken_file_that_another_file_overrules_is_no_matter(two: Project):
    two.file(".claude/agents/explorer.md").write_text(BROKEN[".claude/agents/helper.md"])
    good = (
        'name = "explorer"\ndescription = "x"\nsandbox_mode = "read-only"\ndeveloper_instructions = "Look."\n'
    )
    two.file(".fanfold/agents/explorer.toml").write_text(good)
    with Provider(fine) as provider:
        done = two("run", "two.yaml", "--model", MODELS["chat"], **provider.environment)
    assert done.status == 0, done.err
    assert "Look." in provider.asked[0].messages[0].text
