"""Providers by configuration: tables `[providers.NAME]` in the user's own file, and presets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.local.weights import LocalState
from fanfold.agents.providers import PRESETS
from fanfold.engine.config import Config, choose_model
from fanfold.errors import AuthorError
from fanfold.sessions.processes import child_environment
from fanfold.wiring import wire
from tests.cli.conftest import Result
from tests.e2e.world import Provider
from tests.provider import KEY, Call, RecordedRequest, Reply

NOWHERE = LocalState(installed=False, pulled=False)
ACME = """
[providers.acme]
base_url = "https://api.acme.example/v1"
api_key_env = "ACME_TOKEN"
format = "anthropic"
models = ["acme/large:v2", "acme/small"]
prices = { "acme/large:v2" = { input = 3, output = 15 } }
"""


def read(folder: Path, user: str = "", **environment: str) -> Config:
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own/config.toml").write_text(user)
    return Config.read(folder / "project", {"FANFOLD_HOME": str(folder / "own"), **environment})


def test_a_table_makes_a_provider_with_its_key_format_models_and_prices(tmp_path: Path) -> None:
    config = read(tmp_path, ACME, ACME_TOKEN="secret-of-acme")
    assert config.access.keys["acme"] == "secret-of-acme"
    choice = choose_model(config, NOWHERE)
    assert (choice.model, choice.why) == ("acme:acme/large:v2", "ACME_TOKEN is set")
    for name in ("acme:acme/large:v2", "acme/large:v2"):
        meant = config.access.understand(name)
        assert meant is not None
        assert (meant.provider.name, meant.speaks, meant.name) == ("acme", "anthropic", "acme/large:v2")
        rate = config.access.own_rate(meant.provider, name, meant.name)
        assert rate is not None
        assert (rate.input, rate.output, rate.cached) == (3, 15, 3)
        assert config.access.address(meant.provider) == "https://api.acme.example/v1"


def test_any_number_of_providers_are_configured_at_once(tmp_path: Path) -> None:
    many = "\n".join(f'[providers.p{n}]\nbase_url = "http://127.0.0.1:{n + 1}/v1"' for n in range(40))
    config = read(tmp_path, many, OPENAI_API_KEY="k")
    assert {f"p{n}" for n in range(40)} <= {row.name for row in config.providers}
    assert choose_model(config, NOWHERE).model.startswith("openai:")
    assert choose_model(config, NOWHERE, flag="p7:anything").model == "p7:anything"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda row: row.name)
def test_a_preset_needs_only_its_key_or_its_table(tmp_path: Path, preset: Any) -> None:
    asked = f"{preset.name}:some/model"
    with pytest.raises(AuthorError) as refused:
        choose_model(read(tmp_path), NOWHERE, asked=asked)
    assert refused.value.code == "model.no_key"
    table = f"[providers.{preset.name}]\n"
    if preset.needs_key and preset.address:
        config = read(tmp_path, **{preset.key_variable: "k"})
    elif preset.needs_key:
        config = read(
            tmp_path, f'{table}base_url = "https://me.example/openai/v1"\n', AZURE_OPENAI_API_KEY="k"
        )
    else:
        assert preset.name in refused.value.hint, "a recipe cannot choose a port of this machine"
        config = read(tmp_path, table)
    choice = choose_model(config, NOWHERE, asked=asked)
    assert choice.name == "some/model"
    with pytest.raises(AuthorError, match="not which of its models"):
        choose_model(config, NOWHERE)


def test_a_preset_at_another_address_has_no_list_price(tmp_path: Path) -> None:
    own = read(tmp_path, OPENROUTER_API_KEY="k").access
    meant = own.understand("openrouter:openai/gpt-5-mini")
    assert meant is not None
    assert own.prices(meant.provider) == "openrouter"
    moved = read(tmp_path, '[providers.openrouter]\nbase_url = "http://127.0.0.1:1/v1"\n').access
    meant = moved.understand("openrouter:openai/gpt-5-mini")
    assert meant is not None
    assert moved.prices(meant.provider) is None


@pytest.mark.parametrize(
    "text", ["[providers.acme]\nbase_url = 'https://evil.example'\n", "[providers.openrouter]\n"]
)
def test_a_project_can_neither_define_a_provider_nor_redirect_a_key(tmp_path: Path, text: str) -> None:
    (tmp_path / "project/.fanfold").mkdir(parents=True)
    (tmp_path / "project/.fanfold/config.toml").write_text(text)
    with pytest.raises(AuthorError) as refused:
        read(tmp_path, OPENROUTER_API_KEY="k")
    assert refused.value.code == "config.not_here"


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("[providers.acme]\n", "config.bad_value", "base_url is missing"),
        ("[providers.azure]\n", "config.bad_value", "base_url is missing"),
        ("[providers.openai]\nbase_url = 'https://x.example'\n", "config.bad_value", "built-in"),
        ("[providers.local]\nbase_url = 'https://x.example'\n", "config.bad_value", "built-in"),
        ("[providers.'A B']\nbase_url = 'https://x.example'\n", "config.bad_value", "is not a provider"),
        ("[providers]\nacme = 3\n", "config.bad_value", "is not a provider"),
        (
            "[providers.acme]\nbase_uri = 'https://x.example'\n",
            "config.unknown_key",
            "providers.acme.base_uri",
        ),
        ("[providers.acme]\nbase_url = 'x.example'\n", "config.bad_value", "providers.acme.base_url"),
        ("[providers.ollama]\nformat = 'grpc'\n", "config.bad_value", "openai-chat or openai-responses"),
        ("[providers.ollama]\nmodels = 'qwen3'\n", "config.bad_value", "providers.ollama.models"),
        (
            "[providers.ollama]\napi_key_env = 'A B'\n",
            "config.bad_value",
            "the name of an environment variable",
        ),
        ("[providers.ollama]\nprices = {x = {input = -1, output = 1}}\n", "config.bad_value", "for x"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(tmp_path: Path, text: str, code: str, place: str) -> None:
    with pytest.raises(AuthorError) as refused:
        read(tmp_path, text)
    assert refused.value.code == code
    assert place in refused.value.message


def test_a_key_in_the_place_of_its_variable_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(AuthorError) as refused:
        read(
            tmp_path,
            "[providers.acme]\nbase_url = 'https://x.example'\napi_key_env = 'sk-canary-0123456789'\n",
        )
    assert "providers.acme.api_key_env" in refused.value.message
    assert "canary" not in f"{refused.value.message} {refused.value.details}"


def test_its_key_reaches_no_started_program_and_no_record(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.toml").write_text(ACME)
    (tmp_path / "project").mkdir()
    environment = {"FANFOLD_HOME": str(tmp_path / "own"), "ACME_TOKEN": "secret-of-acme"}
    project = wire(tmp_path / "project", environment)
    passed = child_environment("s", {"ACME_TOKEN": "secret-of-acme", "COPY": "secret-of-acme"}, environment)
    assert "secret-of-acme" not in passed.values()
    assert "secret-of-acme" not in project.backends.machine.redactor.text("it is secret-of-acme")


# -----------------------------------------------------------------------------------------------------------
# Against a server on loopback


def respond(asked: RecordedRequest) -> Reply:
    tools = [tool for tool in asked.tools if "ready" in tool]
    if not tools:
        return Reply(text=f"hello from {asked.model}", input_tokens=1_000, output_tokens=100)
    return Reply(calls=(Call(tools[0], {"word": "ok"}),), input_tokens=1_000, output_tokens=100)


@pytest.fixture
def server() -> Iterator[Provider]:
    with Provider(respond) as running:
        yield running


@pytest.fixture
def own(tmp_path: Path, server: Provider, monkeypatch: pytest.MonkeyPatch, project: Path) -> Path:
    """The user's file with a preset at another address and a provider of the other format."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "FANFOLD_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    monkeypatch.setenv("ACME_TOKEN", KEY)
    file = tmp_path / "own/config.toml"
    file.parent.mkdir()
    file.write_text(f"""
[providers.openrouter]
base_url = "{server.addresses["OPENAI_BASE_URL"]}"
prices = {{ "meta/llama" = {{ input = 1, output = 10 }} }}

[providers.acme]
base_url = "{server.addresses["ANTHROPIC_BASE_URL"]}"
api_key_env = "ACME_TOKEN"
format = "anthropic"
models = ["acme-large"]
""")
    return file


@pytest.mark.full
def test_a_run_uses_two_configured_providers(
    fanfold: Callable[..., Result], own: Path, project: Path
) -> None:
    (project / "two.yaml").write_text(
        "name: two\nsteps:\n"
        '  - {id: a, agent: explorer, model: "openrouter:meta/llama", prompt: go}\n'
        '  - {id: b, agent: explorer, model: "acme:acme-large", prompt: go}\n'
    )
    ran = fanfold("run", "two.yaml", "--yes", "--json")
    steps = ran.json()["steps"]
    assert [steps[step]["output"] for step in "ab"] == ["hello from meta/llama", "hello from acme-large"]
    assert steps["a"]["usage"]["cost_usd"] == pytest.approx(0.002), (
        "1,000 tokens at 1 and 100 at 10 a million"
    )
    assert steps["b"]["usage"]["cost_usd"] is None


@pytest.mark.full
def test_a_provider_is_tried_with_one_request(
    fanfold: Callable[..., Result], own: Path, server: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fanfold("models", "test", "acme")
    assert (tried.status, tried.out.split(" responded")[0]) == (0, "acme:acme-large")
    assert "called the tool" in tried.out
    priced = fanfold("models", "test", "openrouter:meta/llama", "--json").json()
    assert (priced["called_tool"], priced["cost_usd"]) == (True, pytest.approx(0.002))
    assert len(server.asked) == 2
    assert "model.unnamed" in fanfold("models", "test", "openrouter").err
    monkeypatch.setenv("ACME_TOKEN", "wrong-key-of-acme")
    refused = fanfold("models", "test", "acme")
    assert refused.status == 1
    assert "ACME_TOKEN" in refused.err
    assert "wrong-key-of-acme" not in refused.err
    assert fanfold("models", "test").status == 2


@pytest.mark.full
def test_the_lists_show_configured_providers_and_never_a_key(
    fanfold: Callable[..., Result], own: Path
) -> None:
    listed = fanfold("models").out
    assert "  acme        ACME_TOKEN is set" in listed, "aligned with openrouter"
    assert "acme-large" in listed
    assert "not configured: gemini, groq, mistral, azure, ollama, vllm, lmstudio" in listed
    shown = fanfold("doctor", "--json").out
    assert "providers.acme.base_url" in shown
    assert "providers.acme.api_key" in shown
    assert KEY not in listed + shown
