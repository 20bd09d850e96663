"""Which model is used when nobody named one, and what is said when none can be."""

from pathlib import Path

import pytest

from fanfold.agents.local.weights import LocalState
from fanfold.engine.config import Config, choose_model
from fanfold.errors import FanfoldError

READY = LocalState(installed=True, pulled=True)
BARE = LocalState(installed=True, pulled=False)
NOTHING = LocalState(installed=False, pulled=False)
OPENAI = {"OPENAI_API_KEY": "sk-one"}
ANTHROPIC = {"ANTHROPIC_API_KEY": "sk-two"}
SERVER = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}


def config(tmp_path: Path, project: str = "", user: str = "", **environment: str) -> Config:
    for folder, text in (("project/.fanfold", project), ("home", user)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "config.toml").write_text(text)
    return Config.read(tmp_path / "project", {"FANFOLD_HOME": str(tmp_path / "home"), **environment})


@pytest.mark.parametrize(
    ("environment", "local", "model", "why"),
    [
        ({}, READY, "local:smollm2", "the local model is here"),
        (OPENAI, READY, "openai:gpt-5.2", "OPENAI_API_KEY is set"),
        (ANTHROPIC, READY, "anthropic:claude-sonnet-4-6", "ANTHROPIC_API_KEY is set"),
        ({**OPENAI, **ANTHROPIC}, READY, "openai:gpt-5.2", "OPENAI_API_KEY is set"),
        ({**OPENAI, "FANFOLD_MODEL": "local:smollm2"}, READY, "local:smollm2", "FANFOLD_MODEL says so"),
        ({**OPENAI, "FANFOLD_MODEL": "openai-chat:x"}, NOTHING, "openai-chat:x", "FANFOLD_MODEL says so"),
        ({**ANTHROPIC, "FANFOLD_MODEL": "claude-x"}, NOTHING, "claude-x", "FANFOLD_MODEL says so"),
        ({**SERVER, "FANFOLD_MODEL": "qwen3:8b"}, NOTHING, "qwen3:8b", "FANFOLD_MODEL says so"),
        ({"FANFOLD_MODEL": "local:/x/y.gguf"}, BARE, "local:/x/y.gguf", "FANFOLD_MODEL says so"),
        ({**SERVER, **ANTHROPIC}, NOTHING, "anthropic:claude-sonnet-4-6", "ANTHROPIC_API_KEY is set"),
    ],
)
def test_the_first_rule_that_matches_chooses(tmp_path, environment, local, model, why):
    choice = choose_model(config(tmp_path, **environment), local)
    assert (choice.model, why in choice.why) == (model, True)
    assert "sk-" not in repr(choice)


@pytest.mark.parametrize(
    ("environment", "local", "code", "hint"),
    [
        ({}, NOTHING, "provider.none", '<2026.11" && fanfold models pull'),
        ({}, NOTHING, "provider.none", "OPENAI_API_KEY or ANTHROPIC_API_KEY"),
        ({}, BARE, "provider.none", "fanfold models pull"),
        (SERVER, READY, "model.unnamed", "FANFOLD_MODEL=openai:NAME"),
        ({**SERVER, **OPENAI}, READY, "model.unnamed", "FANFOLD_MODEL=openai:NAME"),
        ({"FANFOLD_MODEL": "openai:x"}, READY, "model.no_key", "set OPENAI_API_KEY"),
        ({**OPENAI, "FANFOLD_MODEL": "claude-x"}, READY, "model.no_key", "set ANTHROPIC_API_KEY"),
        ({"FANFOLD_MODEL": "acme:x"}, READY, "model.unknown_provider", "provider:name"),
        ({"FANFOLD_MODEL": "local:smollm2"}, NOTHING, "local.not_installed", "pip install"),
        ({"FANFOLD_MODEL": "local:smollm2"}, BARE, "local.not_pulled", "fanfold models pull"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_with_what_to_do(tmp_path, environment, local, code, hint):
    with pytest.raises(FanfoldError) as refused:
        choose_model(config(tmp_path, **environment), local)
    assert refused.value.code == code
    assert hint in refused.value.hint


def test_a_step_wins_over_the_flag_and_the_flag_over_configuration(tmp_path):
    read = config(tmp_path, **OPENAI, FANFOLD_MODEL="openai:a")
    assert choose_model(read, NOTHING, flag="openai:b").model == "openai:b"
    assert choose_model(read, NOTHING, flag="openai:b", asked="openai:c").model == "openai:c"


def test_weights_by_path_are_the_user_s_to_name(tmp_path):
    named = '[models]\nmodel = "local:/x/y.gguf"\n'
    assert choose_model(config(tmp_path, user=named), READY).model == "local:/x/y.gguf"
    with pytest.raises(FanfoldError, match="only the user may"):
        choose_model(config(tmp_path, project=named), READY)
    with pytest.raises(FanfoldError, match="only the user may"):
        choose_model(config(tmp_path), READY, asked="local:/x/y.gguf")
    with pytest.raises(FanfoldError, match="only the user may"):
        choose_model(config(tmp_path, project=named), READY, asked="local:/x/y.gguf")
    own = config(tmp_path, user=named)
    assert choose_model(own, READY, asked="local:/x/y.gguf").provider is None
    plain = config(tmp_path)
    assert choose_model(plain, READY, flag="local:/x/y.gguf", asked="local:/x/y.gguf").provider is None
    pulled = config(tmp_path, project='[models]\nmodel = "local:smollm2"\n')
    assert choose_model(pulled, READY).model == "local:smollm2"
