"""Profiles that users write: what means nothing is refused with the word, and takes no other profile away."""

import os
from pathlib import Path

import pytest

from fanfold.agents.command.calls import AgentCredentials, Turn, make_call
from fanfold.agents.command.events import GROUPS, TAKES, VALUES, TurnEnd, check_profile, read_line
from fanfold.agents.command.profile import TAKEN, Profile, is_program, profile_names
from fanfold.agents.command.profile_files import find_profile, load_profiles
from fanfold.errors import AuthorError
from fanfold.wiring import BACKENDS
from tests.session_requests import session_request
from tools.markdown import blocks

FINE = 'program = "own"\noutput = "text"\n'


@pytest.fixture
def write(tmp_path):
    folder = tmp_path / "backends"
    folder.mkdir()

    def write(name, text):
        (folder / f"{name}.toml").write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('program = ""\noutput = "text"\n', "names no program"),
        ('output = "text"\n', "program"),
        ('program = "./own"\noutput = "text"\n', "a name on PATH or a full path"),
        (FINE + "colour = 1\n", "colour"),
        (FINE + 'like = "cluade"\n', '"cluade"'),
        (FINE + 'like = "odd"\n', "like itself"),
        (FINE + 'like = "model"\n', '"model"'),
        (FINE + 'like = ["claude"]\n', "claude"),
        (FINE + 'prompt = "argument"\ncall = ["-p"]\n', "{prompt}"),
        (FINE + 'prompt = "file"\ncall = ["{prompt}"]\n', "{prompt_file}"),
        (FINE + 'call = ["<mdoel>"]\n', "mdoel"),
        (FINE + 'call = ["--model={modle}"]\n', "modle"),
        (FINE + '[options]\nmodle = ["-m"]\n', "modle"),
        (FINE + '[options]\nmodel = ["{modle}"]\n', "modle"),
        ('program = "own"\n', "needs events"),
        ('program = "own"\n[[events]]\nmeans = "began"\n', "needs events"),
        ('program = "own"\n[[events]]\nmeans = "finished"\ntake = { txt = "a" }\n', "txt"),
        ('program = "own"\n[[events]]\nmeans = "done"\n', "done"),
        (FINE + "idle_s = nan\n", "idle_s"),
        (FINE + "idle_s = 0\n", "idle_s"),
        (FINE + "patience_s = -1\n", "patience_s"),
        (FINE + "patience_s = inf\n", "patience_s"),
        (FINE + '[environment]\n"A=B" = "1"\n', "A=B"),
        (FINE + '[state]\nfolder = "../x"\n', "../x"),
        (FINE + '[state]\nconfig = [""]\n', "[state]"),
        (FINE + '[state]\nlogin = ["~/../x"]\n', "../x"),
        (FINE + '[state]\nbrought = ["/etc"]\n', "/etc"),
        ("program =\n", "line 1"),
    ],
)
def test_an_unknown_word_is_refused_by_name(write, text, why):
    with pytest.raises(AuthorError) as raised:
        find_profile("odd", write("odd", text))
    assert raised.value.code == "backend.bad_profile"
    assert "odd.toml cannot be used: " in raised.value.message
    assert why in raised.value.message


def test_an_unusable_server_removes_no_other(write, tmp_path):
    write("broken", "program =\n")
    write("model", FINE)
    os.mkfifo(tmp_path / "backends" / "pipe.toml")
    (tmp_path / "backends" / "folder.toml").mkdir()
    write("own", FINE)
    found, problems = load_profiles(tmp_path)
    assert {"claude", "codex", "own"} <= set(found)
    files = [error.message.split(" cannot")[0].rpartition("/")[2] for error in problems]
    assert files == ["broken.toml", "folder.toml", "model.toml", "pipe.toml"]
    assert find_profile("claude", tmp_path) == found["claude"]


def test_no_profile_has_the_name_of_another_back_end(write):
    assert {kind.name for kind in BACKENDS} < TAKEN
    names = profile_names(write("scripted", FINE))
    assert "scripted" not in names
    assert not is_program("scripted")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_profile_is_like_another_of_the_user_s_whatever_they_are_called(write, names):
    one, other = names
    write(one, f'program = "one"\noutput = "text"\nlike = "{other}"\n')
    home = write(other, FINE + 'provider = "somebody"\n')
    profile = find_profile(one, home)
    assert profile is not None
    assert (profile.program, profile.provider, profile.title) == ("one", "somebody", one)
    write(other, FINE + f'like = "{one}"\n')
    with pytest.raises(AuthorError, match="cannot be like itself"):
        find_profile(one, home)


def test_ours_are_fine(tmp_path):
    found, problems = load_profiles(tmp_path)
    assert not problems
    for profile in found.values():
        check_profile(profile)


def test_every_word_that_is_allowed_is_filled_in(tmp_path):
    """`{schema}` has a value where there is a schema; whatever else is empty is still filled in."""
    call = tuple(f"{{{name}}}" for name in VALUES)
    options: dict[str, tuple[str, ...]] = {name: (f"as-{name}",) for name in GROUPS}
    profile = Profile(
        name="own", program="own", call=(*call, *(f"<{name}>" for name in GROUPS)), options=options
    )
    check = Profile(program="own", output="text", call=profile.call, options=options)
    check_profile(check)
    request = session_request(output_schema={"type": "object"})
    for resumes in (False, True):
        made = make_call(profile, request, Turn(prompt="p", conversation="c", resumes=resumes), tmp_path)
        assert not [word for word in made.argv if "{" in word[:1] and word != '{"type":"object"}']


PAGE = Path(__file__).parent.parent.parent / "docs" / "appendix" / "agent-programs.md"


def test_the_page_names_every_word_and_its_profile_can_be_used(write):
    page = PAGE.read_text()
    assert [name for name in VALUES if f"`{{{name}}}`" not in page] == []
    assert [name for name in GROUPS if f"`<{name}>`" not in page] == []
    table = page.partition("| `means` |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for means, taken in TAKES.items():
        [row] = [row for row in rows if f"`{means}`" in row.split("|")[1]]
        assert [name for name in taken if f"`{name}`" not in row] == [], means
    [block] = [one.text for one in blocks(page) if "backends/ours.toml" in one.text]
    profile = find_profile("ours", write("ours", block))
    assert profile is not None
    [fact] = read_line(b'{"kind": "answer", "words": "hello"}', profile.events) or []
    assert fact == TurnEnd(text="hello")


@pytest.mark.parametrize("name", ["opencode.json", "opencode.jsonc"])
def test_the_address_of_a_provider_is_read_from_settings_with_comments(tmp_path: Path, name: str) -> None:
    profile = find_profile("opencode", tmp_path)
    assert profile is not None
    file = tmp_path / ".config" / "opencode" / name
    file.parent.mkdir(parents=True)
    options = '"options": {"baseURL": "https://llm.example.com/v1", /* ours */},'
    file.write_text(f'{{ // mine\n "provider": {{"ours": {{{options}}},}},}}')
    assert "llm.example.com:443" in AgentCredentials(profile, {"HOME": str(tmp_path)}).hosts()
