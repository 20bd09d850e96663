"""Configuration: who wins, where a value is from, and what is refused."""

from pathlib import Path

import pytest

from fanfold.agents.providers import PROVIDERS
from fanfold.engine.config import Config, settings_of
from fanfold.errors import AuthorError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/.fanfold").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    return tmp_path / "project"


def read(project: Path, toml: str = "", user: str = "", **environment: str) -> Config:
    (project / ".fanfold/config.toml").write_text(toml)
    (project.parent / "home/config.toml").write_text(user)
    return Config.read(project, {"FANFOLD_HOME": str(project.parent / "home"), **environment})


def test_defaults_are_those_of_the_documentation(project):
    config = read(project)
    assert config.switch("workflows.enabled")
    numbers = {
        "workflows.max_concurrent": 4,
        "workflows.max_agents": 64,
        "workflows.timeout_ms": 1_800_000,
        "sessions.max_threads": 6,
        "sessions.max_depth": 1,
        "sessions.max_sessions": 256,
        "permission.ask_above_agents": 20,
        "permission.ask_above_cents": 100,
    }
    assert {key: config.integer(key) for key in numbers} == numbers
    assert config.text("store.durability") == "full"
    assert set(config.origins.values()) == {"default"}


def test_the_environment_wins_over_the_user_and_that_over_the_project(project):
    user, own = "[workflows]\nmax_agents = 10\n", "[workflows]\nmax_agents = 20\nmax_concurrent = 2\n"
    config = read(project, own, user, FANFOLD_WORKFLOW_MAX_AGENTS="30")
    assert config.integer("workflows.max_agents") == 30
    assert config.origins["workflows.max_agents"] == "FANFOLD_WORKFLOW_MAX_AGENTS"
    assert config.integer("workflows.max_concurrent") == 2
    assert ".fanfold/config.toml" in config.origins["workflows.max_concurrent"]
    assert read(project, own, user).integer("workflows.max_agents") == 10


@pytest.mark.parametrize(
    ("name", "value", "key", "meant"),
    [
        ("WORKFLOWS", "off", "workflows.enabled", False),
        ("WORKFLOW_MAX_CONCURRENT", "7", "workflows.max_concurrent", 7),
        ("WORKFLOW_MAX_AGENTS", "8", "workflows.max_agents", 8),
        ("WORKFLOW_TIMEOUT_MS", "9", "workflows.timeout_ms", 9),
        ("WORKFLOW_MODEL", "fast", "workflows.model", "fast"),
    ],
)
def test_the_first_five_variables_have_an_alias_that_ours_overrules(project, name, value, key, meant):
    config = read(project, **{f"AGENT_{name}": value})
    assert (config.values[key], config.origins[key]) == (meant, f"AGENT_{name}")
    both = read(project, **{f"AGENT_{name}": "nonsense", f"FANFOLD_{name}": value})
    assert (both.values[key], both.origins[key]) == (meant, f"FANFOLD_{name}")


def test_an_empty_variable_counts_as_not_set(project):
    assert read(project, FANFOLD_WORKFLOW_MAX_AGENTS=" ").origins["workflows.max_agents"] == "default"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("FANFOLD_WORKFLOW_MAX_CONCURRENT", "0", "from 1 to 16"),
        ("FANFOLD_WORKFLOW_MAX_CONCURRENT", "17", "from 1 to 16"),
        ("AGENT_WORKFLOW_MAX_AGENTS", "501", "from 1 to 500"),
        ("FANFOLD_WORKFLOW_TIMEOUT_MS", "-5", "at least 1"),
        ("FANFOLD_WORKFLOW_MAX_AGENTS", "many", "from 1 to 500"),
        ("FANFOLD_WORKFLOW_MAX_AGENTS", "9" * 5_000, "from 1 to 500"),
        ("FANFOLD_WORKFLOWS", "maybe", "on or off"),
        ("FANFOLD_DURABILITY", "none", "full or normal"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name_and_range(project, name, value, allowed):
    with pytest.raises(AuthorError) as caught:
        read(project, **{name: value})
    assert name in caught.value.message
    assert allowed in caught.value.message
    assert caught.value.exit_status == 2
    assert len(caught.value.message) < 200


def test_a_value_in_a_file_is_refused_with_the_file_and_key(project):
    with pytest.raises(AuthorError, match=r"config\.toml \(workflows\.max_agents\)"):
        read(project, "[workflows]\nmax_agents = 0\n")


def test_the_user_s_own_file_can_raise_limits_beyond_the_usual_range(project):
    config = read(project, user="[workflows]\nmax_concurrent = 1024\nmax_agents = 100000\n")
    assert config.integer("workflows.max_concurrent") == 1024
    assert config.integer("workflows.max_agents") == 100_000
    for beyond in ("max_concurrent = 1025", "max_agents = 100001"):
        with pytest.raises(AuthorError):
            read(project, user=f"[workflows]\n{beyond}\n")


def test_ceilings_are_an_older_spelling_of_the_user_s_limits(project):
    config = read(project, user="[ceilings]\nconcurrency = 32\nagents = 900\n")
    assert config.integer("workflows.max_concurrent") == 32
    assert config.integer("workflows.max_agents") == 900
    assert {"workflows.max_concurrent", "workflows.max_agents"} <= config.own


def test_an_unknown_key_is_refused_with_the_nearest_known_one(project):
    with pytest.raises(AuthorError) as caught:
        read(project, "[workflows]\nmax_agent = 1\n")
    assert caught.value.code == "config.unknown_key"
    assert "workflows.max_agents" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[budget]\nabcdefgh = 1", "[budget] has usd_per_day, tokens_per_day"),
        ("[permisions]\nx = 1", "[permission] has ask_above_agents, ask_above_cents"),
        ("abcdefgh = 1", "settings are in [workflows], [agents],"),
    ],
)
def test_an_unknown_key_near_no_other_names_its_section_or_all_sections(project, text, hint):
    with pytest.raises(AuthorError) as caught:
        read(project, text)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "text", ["max_agent = 1\n", "[workflow]\nmax_agent = 1\n", "[limits]\nmax_agents = 1\n"]
)
def test_an_unknown_key_without_its_section_suggests_the_nearest_setting(project, text):
    with pytest.raises(AuthorError) as caught:
        read(project, text)
    assert caught.value.hint == 'did you mean "workflows.max_agents"?'


@pytest.mark.parametrize("name", ["AGENT_WORKFLOWS", "FANFOLD_WORKFLOWS"])
def test_the_hint_of_the_master_switch_names_the_variable_that_is_set(project, name):
    off = Config.read(project, {"FANFOLD_HOME": str(project), name: "off"})
    assert off.switched_off() == (name, f"{name}=on")


@pytest.mark.parametrize("text", ["x = [", "\udcff", "a = " + "[" * 5_000, "x = 1\n" * 100_000])
def test_a_file_that_is_not_configuration_is_an_error_not_a_crash(project, text):
    (project / ".fanfold/config.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(AuthorError) as caught:
        Config.read(project, {"FANFOLD_HOME": str(project)})
    assert caught.value.code.startswith("config.")


def test_a_project_cannot_redirect_where_keys_are_sent(project):
    with pytest.raises(AuthorError) as caught:
        read(project, '[models]\nopenai_base_url = "https://example.com"\n')
    assert caught.value.code == "config.not_here"
    assert read(project, user='[models]\nopenai_base_url = "https://example.com"\n').text(
        "models.openai_base_url"
    )


def test_keys_are_read_from_the_environment_alone(project):
    for user in ('[models]\nopenai_api_key = "k"\n', '[models]\nanthropic_api_key = "k"\n'):
        with pytest.raises(AuthorError, match="may not be set"):
            read(project, user=user)
    assert read(project, OPENAI_API_KEY="k").text("models.openai_api_key") == "k"


def test_every_setting_has_a_default_within_its_own_range():
    for setting in settings_of(PROVIDERS):
        if setting.kind == "integer" and setting.default is not None:
            assert isinstance(setting.default, int)
            assert setting.low <= setting.default <= setting.high
