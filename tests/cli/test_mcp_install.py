"""`fanfold mcp install`: one entry in the configuration of a client, and nothing else of it touched."""

import json
import os
import stat
import tomllib

import pytest

from fanfold.api.mcp_setup import CLIENTS
from fanfold.language.json_text import entry_at, remove_entry, set_entry
from fanfold.language.toml_text import remove_table, set_table

NAMES = [client.name for client in CLIENTS]
JSON_NAMES = [client.name for client in CLIENTS if not client.toml]
COMMENTED = """\
// mine
{
    "theme": "dark", /* odd */
    "KEY": {
        "other": {"command": "x", "args": ["{", "//"],}, // keep
    },
    "last": [1, {"a": "}"}] // no comma
}
"""
CODEX = """\
# mine
model = "gpt"   # odd

[mcp_servers.other]
command = "x"
args = ["[mcp_servers.fanfold]"]

[profiles.fast]
model = "small" # last line, no newline"""


def install(fanfold, *arguments):
    return fanfold("mcp", "install", *arguments, "--json").json()


def entry(client, file):
    text = file.read_text()
    value = tomllib.loads(text) if client.toml else json.loads(text)
    for key in client.where:
        value = value[key]
    return value


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
@pytest.mark.parametrize("scope", ["user", "project"])
def test_an_entry_is_made_once_and_taken_out_again(fanfold, project, client, scope):
    done = install(fanfold, client.name, "--scope", scope, "--permission", "auto")
    file = project / client.project_file if scope == "project" else client.user_file(os.environ)
    assert (done["change"], done["file"]) == (
        "written",
        str(file if scope == "user" else file.relative_to(project)),
    )
    made = entry(client, file)
    command = made["command"] if isinstance(made["command"], list) else [made["command"], *made["args"]]
    assert command[1:2] == ["mcp"]
    assert command[-2:] == ["--permission", "auto"]
    assert os.access(command[0], os.X_OK)
    again = install(fanfold, client.name, "--scope", scope, "--permission", "auto")
    assert again["change"] == "unchanged"
    other = install(fanfold, client.name, "--scope", scope, "--permission", "ask")
    assert (other["change"], "auto" in file.read_text()) == ("written", False)
    assert install(fanfold, client.name, "--scope", scope, "--remove")["change"] == "removed"
    assert install(fanfold, client.name, "--scope", scope, "--remove")["change"] == "unchanged"
    assert "fanfold" not in file.read_text()


@pytest.mark.parametrize("name", JSON_NAMES)
def test_comments_order_and_strangers_stay_as_they_are(fanfold, project, name):
    client = next(one for one in CLIENTS if one.name == name)
    file = client.user_file(os.environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = COMMENTED.replace("KEY", client.where[0])
    file.write_text(text)
    file.chmod(0o640)
    assert install(fanfold, name, "--scope", "user")["change"] == "written"
    after = file.read_text()
    assert all(line in after for line in text.splitlines())
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert install(fanfold, name, "--scope", "user", "--remove")["change"] == "removed"
    assert file.read_text() == text


def test_the_configuration_of_codex_keeps_its_comments_and_tables(fanfold, project):
    client = next(one for one in CLIENTS if one.toml)
    file = client.user_file(os.environ)
    file.parent.mkdir(parents=True)
    file.write_text(CODEX)
    assert install(fanfold, "codex")["change"] == "written"
    after = file.read_text()
    assert after.startswith(CODEX)
    assert tomllib.loads(after)["mcp_servers"]["other"]["command"] == "x"
    assert install(fanfold, "codex", "--remove")["change"] == "removed"
    assert file.read_text().rstrip("\n") == CODEX


def test_a_dry_run_shows_the_change_and_writes_nothing(fanfold, project):
    shown = fanfold("mcp", "install", "vscode", "--dry-run")
    assert shown.status == 0
    assert '+    "fanfold": {' in shown.out
    assert not (project / ".vscode").exists()
    assert fanfold("mcp", "install", "vscode", "--remove", "--dry-run").out.endswith("stays as it is\n")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["[", '{"mcpServers": 3, "servers": 3, "mcp": 3} x', "= 1", "\xff\x00"])
def test_a_file_that_is_not_understood_is_left_alone(fanfold, project, name, text):
    client = next(one for one in CLIENTS if one.name == name)
    file = client.user_file(os.environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode("latin-1"))
    refused = fanfold("mcp", "install", name, "--scope", "user", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (2, "mcp.unreadable")
    assert file.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("name", NAMES)
def test_marks_and_line_ends_of_a_file_are_kept(fanfold, project, name):
    client = next(one for one in CLIENTS if one.name == name)
    file = client.user_file(os.environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "a = 1\r\n[b]\r\nc = 2\r\n" if client.toml else '{\r\n  "a": 1,\r\n  "b": 2\r\n}\r\n'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert fanfold("mcp", "install", name, "--scope", "user").status == 0
    written = file.read_bytes()
    assert written.startswith(b"\xef\xbb\xbf")
    assert written.count(b"\n") == written.count(b"\r\n") == written.count(b"\r") > text.count("\n")
    assert fanfold("mcp", "install", name, "--scope", "user", "--remove").status == 0
    removed = file.read_bytes()
    assert b"fanfold" not in removed
    assert removed.count(b"\n") == removed.count(b"\r\n") == removed.count(b"\r")


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(fanfold, project):
    file = next(one for one in CLIENTS if one.name == "cursor").user_file(os.environ)
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert fanfold("mcp", "install", "cursor").status == 1


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = {fanfold = {command = "x"}}\n',
        'mcp_servers.fanfold.command = "x"\n',
        'note = """\n[mcp_servers.fanfold]\n"""\n[mcp_servers]\nfanfold = {command = "x"}\n',
    ],
)
def test_a_table_that_is_written_in_another_way_is_not_guessed_at(fanfold, project, text):
    file = next(one for one in CLIENTS if one.toml).user_file(os.environ)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    for more in ((), ("--remove",)):
        assert fanfold("mcp", "install", "codex", *more).status == 2
    assert file.read_text() == text


def test_the_users_own_file_may_be_a_link_and_a_projects_file_may_not(fanfold, project, tmp_path):
    kept = tmp_path / "dotfiles.json"
    kept.write_text("{}")
    own = next(one for one in CLIENTS if one.name == "cursor").user_file(os.environ)
    own.parent.mkdir(parents=True)
    own.symlink_to(kept)
    assert install(fanfold, "cursor")["change"] == "written"
    assert own.is_symlink()
    assert "fanfold" in kept.read_text()
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (project / ".mcp.json").symlink_to(outside)
    assert fanfold("mcp", "install", "claude", "--scope", "project").status == 1
    assert outside.read_text() == "{}"


def test_options_of_install_are_not_for_serving(fanfold, project):
    for arguments in (["install"], ["serve", "claude"], ["--remove"], ["--dry-run"], ["install", "emacs"]):
        assert fanfold("mcp", *arguments).status == 2


@pytest.mark.parametrize("text", ["", "{}", '{"a": 1}', '{\n  "b": {"c": 1}\n}\n', '{"x": {"f": 2}}'])
def test_a_set_value_is_read_and_a_removed_one_is_gone(text):
    once = set_entry(text, ("x", "f"), {"k": [1, "two"]})
    assert json.loads(once) == {**json.loads(text or "{}"), "x": {"f": {"k": [1, "two"]}}}
    assert "f" not in json.loads(remove_entry(once, ("x", "f"))).get("x", {})
    table = set_table('a = 1\n[x.g]\nk = "v"\n', ("x", "f"), {"k": [1, 2]})
    assert tomllib.loads(table) == {"a": 1, "x": {"g": {"k": "v"}, "f": {"k": [1, 2]}}}
    assert tomllib.loads(remove_table(table, ("x", "f"))) == {"a": 1, "x": {"g": {"k": "v"}}}


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
def test_an_agent_s_back_end_serves_workflows_it_starts_unless_another_is_named(fanfold, client):
    install(fanfold, client.name, "--scope", "user")
    made = entry(client, client.user_file(os.environ))
    words = made["command"] if isinstance(made["command"], list) else made["args"]
    assert ("--agent-backend" in words) == client.backend
    install(fanfold, client.name, "--scope", "user", "--model", "openai:gpt-5")
    made = entry(client, client.user_file(os.environ))
    words = made["command"] if isinstance(made["command"], list) else made["args"]
    assert "--agent-backend" not in words


def test_keys_that_a_client_would_strip_are_named_and_never_written(fanfold, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-user-0123456789")
    monkeypatch.setenv("GEMINI_API_KEY", "key-of-the-user-0123456789")
    for client in CLIENTS:
        install(fanfold, client.name, "--scope", "user")
        assert "key-of-the-user" not in client.user_file(os.environ).read_text()
    by_name = {client.name: entry(client, client.user_file(os.environ)) for client in CLIENTS}
    assert "OPENAI_API_KEY" in by_name["codex"]["env_vars"]
    assert by_name["gemini"]["env"]["GEMINI_API_KEY"] == "$GEMINI_API_KEY"


def test_names_of_variables_that_a_user_added_stay_beside_ours(fanfold, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-user-0123456789")
    client = next(one for one in CLIENTS if one.passes == "names")
    file = client.user_file(os.environ)
    install(fanfold, client.name, "--scope", "user")
    added = {**entry(client, file), "env_vars": ["MINE"]}
    file.write_text(set_table(file.read_text(), client.where, added))
    install(fanfold, client.name, "--scope", "user")
    assert entry(client, file)["env_vars"] == ["OPENAI_API_KEY", "MINE"]


def test_a_client_waits_an_hour_for_a_call_where_its_configuration_says_how_long(fanfold):
    for client in CLIENTS:
        install(fanfold, client.name, "--scope", "user")
    by_name = {client.name: entry(client, client.user_file(os.environ)) for client in CLIENTS}
    assert by_name["codex"]["tool_timeout_sec"] == 3_600
    assert by_name["gemini"]["timeout"] == 3_600_000
    assert by_name["opencode"]["timeout"] == 3_600_000, "a call that takes longer cancels its run"


@pytest.mark.parametrize("client", CLIENTS, ids=NAMES)
def test_user_additions_to_the_entry_survive_a_second_install(fanfold, client):
    install(fanfold, client.name, "--scope", "user")
    file = client.user_file(os.environ)
    added = {**entry(client, file), "env": {"MINE": "1"}}
    edit = set_table if client.toml else set_entry
    file.write_text(edit(file.read_text(), client.where, added))
    done = install(fanfold, client.name, "--scope", "user", "--permission", "auto")
    assert done["change"] == "written"
    assert entry(client, file)["env"]["MINE"] == "1"
    assert install(fanfold, client.name, "--scope", "user", "--permission", "auto")["change"] == "unchanged"


def test_the_environment_that_a_user_wrote_with_comments_stays_when_it_is_installed_again(fanfold):
    client = next(one for one in CLIENTS if one.name == "gemini")
    install(fanfold, "gemini")
    file = client.user_file(os.environ)
    own = '"fanfold": {"env": {"MINE": "a, }"}, // mine\n "note": [1, /* two */ 2,],},'
    file.write_text(f'{{"mcpServers": {{{own}}}}}')
    assert install(fanfold, "gemini")["change"] == "written"
    made = entry_at(file.read_text(), client.where)
    assert (made["env"]["MINE"], made["note"]) == ("a, }", [1, 2])
