"""The command line as a whole: help, errors, exit statuses, hostile surroundings."""

import os
import subprocess
import sys

import pytest

import fanfold as package
from fanfold.cli import main
from fanfold.cli.command import Invocation
from fanfold.errors import BugError, NotFoundError
from tests.work import PATIENCE_S
from tools import cli_reference


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], ["--json", "--help"]])
def test_help_fits_one_screen_and_lists_everyday_commands_and_groups(fanfold, arguments):
    status, out, err = fanfold(*arguments)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    for name in [*" ".join(main.EVERYDAY.values()).split(), *main.NOUNS]:
        assert f"\n  {name} " in out


def test_every_command_is_listed_once_and_keeps_its_short_spelling():
    assert sorted(cli_reference.spellings().values()) == sorted(main.COMMANDS)


def test_the_static_help_is_what_the_commands_say():
    for noun, text in cli_reference.help_texts().items():
        assert main.read_page(f"help_{noun or 'fanfold'}.txt") == text


@pytest.mark.parametrize("noun", list(main.NOUNS))
def test_a_group_lists_its_commands(fanfold, noun):
    alone, asked = fanfold(noun), fanfold("help", noun)
    assert alone.status == asked.status == 0
    assert alone.out == asked.out == fanfold(noun, "--help").out
    for word in main.NOUNS[noun]:
        assert f"\n  {word} " in alone.out


@pytest.mark.parametrize(
    ("noun", "word", "name"),
    [(noun, word, name) for noun, words in main.NOUNS.items() for word, name in words.items()],
)
def test_a_command_in_a_group_is_the_command_of_the_short_spelling(fanfold, noun, word, name):
    grouped, short = fanfold(noun, word, "--help"), fanfold(name, "--help")
    assert grouped.status == short.status == 0
    usage = f"fanfold {noun} {word}"
    assert grouped.out.startswith(f"Usage: {usage} ")
    options = "\nOptions:"
    assert grouped.out.partition(options)[2] == short.out.partition(options)[2]


def test_common_options_may_stand_anywhere_before_a_grouped_command(fanfold, project):
    plain = fanfold("list", "--json")
    assert plain.status == 0
    assert fanfold("recipe", "list", "--json").out == plain.out
    assert fanfold("--json", "recipe", "list").out == plain.out
    assert fanfold("recipe", "--json", "--project", str(project), "list").out == plain.out


def test_a_mistyped_command_of_a_group_gets_a_suggestion(fanfold):
    status, out, err = fanfold("recipe", "shwo")
    assert (status, out) == (2, "")
    assert 'there is no command "shwo" in the group recipe' in err
    assert 'did you mean "fanfold recipe show"?' in err


@pytest.mark.full
def test_help_imports_neither_click_nor_msgspec(shell):
    code = (
        "import sys; from fanfold.cli.main import main; main(['--help']);"
        "sys.exit(bool({'click', 'msgspec', 'yaml', 'typing', 're'} & set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; before = set(sys.modules); {code}"],
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()


def ended(code: str) -> tuple[int, str]:
    """How a process ends that was started as `fanfold --version`, and what it said."""
    begun = "import atexit, sys, threading; from fanfold.cli.main import main; sys.argv[1:] = ['--version']"
    done = subprocess.run(
        [sys.executable, "-c", f"{begun}\n{code}"], check=False, capture_output=True, text=True
    )
    return done.returncode, done.stdout.removeprefix(f"fanfold {package.__version__}\n") + done.stderr


@pytest.mark.full
def test_a_process_of_ours_ends_at_once_but_for_what_was_to_be_done_at_its_end():
    code = "class Slow:\n  def __del__(self): print('taken apart')\nslow = Slow()\n"
    code += "atexit.register(print, 'at its end')\nmain()\nprint('unreached')"
    assert ended(code) == (0, "at its end\n")


@pytest.mark.full
def test_a_process_with_a_thread_ends_when_that_has_ended():
    code = "go = threading.Event(); threading.Thread(target=lambda: (go.wait(), print('done'))).start()\n"
    assert ended(f"{code}main()\ngo.set()") == (0, "done\n")


def test_version_is_the_package_s(fanfold):
    assert fanfold("--version").out == f"fanfold {package.__version__}\n"


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_explains_itself_in_both_ways(fanfold, name):
    one, other = fanfold(name, "--help"), fanfold("help", name)
    assert one.status == other.status == 0
    assert one.out == other.out
    for option in ("--json", "--project", "--no-color"):
        assert option in one.out


def test_a_mistyped_command_gets_a_suggestion(fanfold):
    status, out, err = fanfold("chekc")
    assert (status, out) == (2, "")
    assert (
        err
        == 'error[usage.unknown_command]: there is no command "chekc"\nhint: did you mean "fanfold check"?\n'
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mcp", "instal", "claude"], "hint: did you mean install?\n"),
        (["runs", "--status", "complete"], "hint: did you mean completed?\n"),
        (["models", "zzz"], "hint: fanfold models --help shows how it is used\n"),
        (["runs", "--limit", "many"], "'many' is not an integer\n"),
        (["wait", "--timeout", "long"], "'long' is not a number\n"),
    ],
)
def test_a_value_that_cannot_be_meant_gets_a_suggestion(fanfold, arguments, words):
    refused = fanfold(*arguments)
    assert refused.status == 2
    assert words in refused.err


def test_a_recipe_in_the_place_of_a_command_is_explained(fanfold):
    assert "fanfold run brief.yaml" in fanfold("brief.yaml").err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show"], "usage.missing_argument"),
        (["check", "x", "--nope"], "usage.unknown_option"),
        (["--nope"], "usage.unknown_option"),
        (["check", "x", "--format", "xml"], "usage.bad_value"),
        (["run", "x", "--max-concurrency", "many"], "usage.bad_value"),
        (["list", "too", "many"], "usage"),
        (["list", "--project", "nowhere"], "usage.bad_project"),
        (["list", "--project"], "usage.bad_option"),
        (["show", "a", "b"], "usage"),
        (["show", "research-and-brief", "--svg", "--mermaid"], "usage.conflicting_options"),
    ],
)
def test_wrong_usage_has_one_shape_in_text_and_json(fanfold, arguments, code):
    status, out, err = fanfold(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error[{code}]: ")
    with_json = (
        fanfold(arguments[0], "--json", *arguments[1:])
        if arguments[0] != "--nope"
        else fanfold("--json", "--nope")
    )
    assert (with_json.status, with_json.err) == (2, "")
    document = with_json.json()
    assert document["ok"] is False
    assert set(document["error"]) == {"code", "message", "hint", "details"}
    assert document["error"]["code"] == code


def test_a_mistyped_option_gets_a_suggestion(fanfold):
    assert "hint: did you mean --fix?" in fanfold("check", "x", "--fxi").err


def test_common_options_may_stand_before_the_command(fanfold, project):
    (project / "sub").mkdir()
    assert (
        fanfold("--json", "--project", "sub", "list").json()
        == fanfold("list", "--json", "--project=sub").json()
    )


def test_a_missing_run_exits_with_six(fanfold):
    status, _, err = fanfold("show", "reserch-and-brief")
    assert status == 6
    assert 'did you mean "research-and-brief"?' in err


def test_our_own_bugs_exit_with_seventy_and_no_traceback(fanfold, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(Invocation, "open_project", broken)
    status, out, err = fanfold("check", "x")
    assert (status, out) == (70, "")
    assert err.startswith("error[internal]: ZeroDivisionError")
    assert "report it" in err
    assert "Traceback" not in err
    assert fanfold("check", "x", "--json").json()["error"]["code"] == "internal"


def test_developers_see_the_traceback_when_they_ask(fanfold, monkeypatch):
    def broken(*_):
        raise BugError("internal", "x")

    monkeypatch.setattr(Invocation, "open_project", broken)
    monkeypatch.setenv("FANFOLD_DEBUG", "1")
    assert "Traceback" in fanfold("check", "x").err


def test_errors_carry_their_own_exit_status(fanfold, monkeypatch):
    def missing(*_):
        raise NotFoundError("run.unknown", "no such run", details={"run": "x"})

    monkeypatch.setattr(Invocation, "open_project", missing)
    assert fanfold("check", "x").status == 6
    assert fanfold("check", "x", "--json").json()["error"]["details"] == {"run": "x"}


def test_an_interrupt_exits_with_130(fanfold, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Invocation, "open_project", interrupted)
    status, out, err = fanfold("check", "x")
    assert (status, out, err) == (130, "", "interrupted\n")


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", [["list"], ["--help"], ["show", "code-review", "--svg"], ["list", "--json"]]
)
def test_a_reader_that_goes_away_is_no_failure(project, arguments):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fanfold.cli.main", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.full
def test_bytes_that_are_not_text_do_not_crash_it(shell):
    for arguments in ([b"\xff"], ["check", b"\xff.yaml"], ["check", b"\xff", "--json"], ["show", b"a\xffb"]):
        done = shell(*arguments)
        assert done.status in {2, 6}
        assert "Traceback" not in done.err


@pytest.mark.full
def test_a_terminal_that_knows_only_ascii_still_gets_an_answer(shell):
    done = shell("show", "research-debate-write", PYTHONIOENCODING="ascii")
    assert done.status == 0
    assert "research-debate-write@1" in done.out


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(fanfold, project):
    (project / "a\x1b[31m.yaml").write_text("name: [")
    for arguments in (["check", "a\x1b[31m.yaml"], ["check", "b\x1b[31m.yaml"], ["run", "a\x1b[31m.yaml"]):
        _, out, err = fanfold(*arguments)
        assert "\x1b" not in out + err


def test_the_reference_page_has_every_command_and_option():
    page = cli_reference.reference_markdown()
    commands = cli_reference.load_commands()
    for listed, name in cli_reference.spellings().items():
        assert f"## fanfold {listed}\n" in page
        for param in commands[name].params:
            for option in () if getattr(param, "hidden", False) else param.opts:
                if option.startswith("--") and option not in {"--project", "--json", "--no-color"}:
                    assert option in page
    assert "| 70 | internal error |" in page


@pytest.mark.full
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "arguments", ["--help", "list", "list --help", "check r.yaml", "run r.yaml --script s.yaml", "runs"]
)
def test_a_closed_stream_has_no_reader_and_is_no_failure(project, arguments, closed):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.yaml").write_text("default: ok\n")
    command = f'"{sys.executable}" -m fanfold.cli.main {arguments} {closed}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, b"internal" in done.stderr) == (0, False)


@pytest.mark.full
def test_an_error_without_a_reader_keeps_its_exit_status(project):
    command = f'"{sys.executable}" -m fanfold.cli.main check nosuch.yaml >&- 2>&-'
    assert subprocess.run(["bash", "-c", command], check=False, timeout=PATIENCE_S).returncode == 6
