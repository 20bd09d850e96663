"""Deliver steps: a commit, a push and a pull request of what a run merged, and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.delivery.world import RECIPE, World
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def approved(world: World) -> None:
    """Agree, and wait for the end."""
    done = world.fanfold("approve", "last", "pr")
    assert done.returncode == 0, done.stderr
    world.fanfold("watch", "last")


def test_a_delivery_is_asked_for_whatever_yes_says_and_shows_all_of_it(world: World) -> None:
    index = (world.project / ".git/index").read_bytes()
    asked = world.run()
    assert asked.returncode == 3, asked.stderr
    document = world.document()
    assert document["status"] == "waiting"
    question = document["steps"]["pr"]["approval"]
    assert question["kind"] == "delivery"
    assert question["question"] == "Deliver 3 files as a pull request on branch fix/owls?"
    for words in (
        "pushed to ",
        "pull request: Fix owls\n  into main\n  | They were broken.\n",
        ": Fix owls\n  | All of them.\n",
        ".github/workflows/ci.yml   (runs in CI)",
        "+B",
        "-b",
    ):
        assert words in question["show"]
    assert "mine" not in question["show"].replace(str(world.folder), "")
    alone = world.fanfold("inspect", "last", "pr").stdout
    assert "Deliver 3 files as a pull request on branch fix/owls?" in alone
    assert "+B" in alone
    assert "may write" not in alone
    assert world.requests() == []
    assert world.git("branch", "--list", "fix/*") == ""
    approved(world)
    world.check_delivered_once()
    output = world.document()["output"]
    assert output == {
        "branch": "fix/owls",
        "commit": world.git("rev-parse", "fix/owls").strip(),
        "pushed": True,
        "url": "https://example.org/pr/1",
    }
    assert world.requests()[0]["body"] == "They were broken."
    assert (world.project / ".git/index").read_bytes() == index
    assert world.fanfold("verify", "last").returncode == 0


def test_a_no_fails_the_step_and_leaves_nothing(world: World) -> None:
    world.run()
    assert world.fanfold("reject", "last", "pr", "--comment", "not yet").returncode == 0
    world.fanfold("watch", "last")
    step = world.document()["steps"]["pr"]
    assert (step["status"], step["error"]["code"], step["error"]["message"]) == (
        "failed",
        "deliver.rejected",
        "not yet",
    )
    assert world.git("branch", "--list", "fix/*") == ""


def test_merges_of_a_source_run_are_delivered_by_its_forks(world: World) -> None:
    assert world.run().returncode == 3
    for _ in range(2):  # the second goes on from one that merged nothing itself
        assert world.fanfold("reject", "last", "pr").returncode == 0
        world.fanfold("watch", "last")
        again = world.fanfold("retry", "last", "--yes")
        assert "Deliver 3 files as a pull request" in again.stdout + again.stderr
    approved(world)
    world.check_delivered_once()


def test_gc_of_a_source_run_keeps_what_its_forks_deliver(world: World) -> None:
    assert world.run().returncode == 3
    for _ in range(2):
        assert world.fanfold("reject", "last", "pr").returncode == 0
        world.fanfold("watch", "last")
        world.fanfold("retry", "last", "--yes")
        forgotten = world.fanfold("gc", "--older-than", "0d")
        assert "removed 1 run" in forgotten.stdout
    approved(world)
    world.check_delivered_once()
    world.fanfold("gc", "--older-than", "0d")
    world.fanfold("gc", "--older-than", "0d")
    assert list((world.project / ".fanfold/workspace/receipts").iterdir()) == []


def test_a_sub_workflow_delivers_of_the_run_before_what_was_merged_in_it(world: World) -> None:
    child = RECIPE.replace("id: more", "id: none").replace("depends_on: more", "depends_on: none")
    (world.project / "child.yaml").write_text(child)
    (world.project / "d.yaml").write_text(
        "name: d\nsteps:\n  - {id: kid, workflow: ./child.yaml}\n"
        "  - {id: kid2, agent: worker, write_set: [g.txt], prompt: more}\n"
    )
    script = (world.project / "s.yaml").read_text().replace("fix:", "kid/fix:").replace("more:", "kid2:")
    (world.project / "s.yaml").write_text(
        script.replace(', ".github/workflows/ci.yml": "on: push\\n"', "") + "  kid/none: ok\n"
    )
    assert world.run().returncode == 3
    assert world.fanfold("reject", "last", "kid/pr").returncode == 0
    world.fanfold("watch", "last")
    again = world.fanfold("retry", "last", "--yes")
    assert "Deliver 1 file as a pull request" in again.stdout + again.stderr


def test_a_yes_holds_for_what_was_shown_and_for_nothing_that_would_be_worked_out_later(world: World) -> None:
    assert world.run().returncode == 3
    (shown,) = (world.project / ".fanfold").glob("**/deliveries/*.json")
    shown.unlink()
    world.fanfold("approve", "last", "pr")
    world.fanfold("watch", "last")
    document = world.document()
    assert (document["status"], document["error"]["code"]) == ("paused", "deliver.changed")
    assert world.git("branch", "--list", "fix/*") == ""


def test_only_the_users_own_configuration_lets_deliveries_go_unasked(world: World) -> None:
    (world.project / ".fanfold").mkdir()
    (world.project / ".fanfold/config.toml").write_text("[deliver]\nallow = true\n")
    refused = world.run()
    assert refused.returncode == 2
    assert '"deliver.allow" may not be set in this file' in refused.stderr
    (world.project / ".fanfold/config.toml").unlink()
    world.allow()
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check_delivered_once()


def test_a_run_that_may_only_read_delivers_nothing(world: World) -> None:
    world.allow()
    (world.project / "d.yaml").write_text("name: x\nsteps:\n  - {id: pr, deliver: {branch: b, message: m}}\n")
    done = world.fanfold("run", "d.yaml", "--permission", "read_only", "--json")
    assert '"deliver.denied"' in done.stdout


def hook_that_declines(world: World) -> None:
    hook = world.remote / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho 'GH006: protected branch' >&2\nexit 1\n")
    hook.chmod(0o755)


def committed_otherwise(world: World) -> None:
    (world.project / "f.txt").write_text("a\nsomething else\nc\nd\ne\n")
    world.git("commit", "-qam", "other")
    world.git("push", "-q", "origin", "main")
    world.git("fetch", "-q", "origin")
    (world.project / "f.txt").write_text("a\nb\nc\nd\ne\nmine\n")


def sign_out(world: World) -> None:
    (world.gh / "signed-out").touch()


def sign_in(world: World) -> None:
    (world.gh / "signed-out").unlink()


def take_the_commit_back(world: World) -> None:
    world.git("reset", "-q", "--soft", "HEAD~1")
    world.git("reset", "-q")
    world.git("update-ref", "refs/remotes/origin/main", "HEAD")
    world.git("push", "-qf", "origin", "main")


def spoil_the_objects(world: World) -> None:
    """Files where git has folders: nothing can be put there."""
    for number in range(256):
        folder = world.project / f".git/objects/{number:02x}"
        if not folder.exists():
            folder.touch()


def mend_the_objects(world: World) -> None:
    for spoilt in (world.project / ".git/objects").iterdir():
        if spoilt.is_file():
            spoilt.unlink()


TROUBLES: dict[str, tuple[str, Callable[[World], object], Callable[[World], object]]] = {
    "no credential": ("deliver.no_credential", sign_out, sign_in),
    "protected": (
        "deliver.protected",
        hook_that_declines,
        lambda world: (world.remote / "hooks/pre-receive").unlink(),
    ),
    "interrupted": (
        "deliver.interrupted",
        lambda world: world.remote.rename(world.folder / "gone.git"),
        lambda world: (world.folder / "gone.git").rename(world.remote),
    ),
    "branch exists": (
        "deliver.branch_exists",
        lambda world: world.git("branch", "fix/owls"),
        lambda world: world.git("branch", "-D", "fix/owls"),
    ),
    "branch taken": (
        "deliver.branch_taken",
        lambda world: world.git("push", "-q", "origin", "main:refs/heads/fix/owls"),
        lambda world: world.git("push", "-q", "origin", ":refs/heads/fix/owls"),
    ),
    "no gh": (
        "deliver.no_gh",
        lambda world: (world.programs / "gh").chmod(0),
        lambda world: (world.programs / "gh").chmod(0o755),
    ),
    "no place": ("deliver.failed", spoil_the_objects, mend_the_objects),
    "conflict": ("deliver.conflict", committed_otherwise, take_the_commit_back),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_obstacle_is_reported_and_the_run_continues_without_it(world: World, trouble: str) -> None:
    code, make, mend = TROUBLES[trouble]
    world.allow()
    make(world)
    paused = world.run()
    assert paused.returncode == 3, paused.stderr
    assert f"[{code}]" in paused.stderr
    assert "fanfold resume" in paused.stderr
    mend(world)
    done = world.fanfold("resume", "last")
    assert done.returncode == 0, done.stderr
    world.check_delivered_once()


def test_an_existing_branch_needs_no_question(world: World) -> None:
    world.git("branch", "fix/owls")
    paused = world.run()
    assert paused.returncode == 3, paused.stderr
    assert "[deliver.branch_exists]" in paused.stderr
    assert "Deliver " not in paused.stderr
    world.git("branch", "-D", "fix/owls")
    asked = world.fanfold("resume", "last")
    assert asked.returncode == 3, asked.stderr
    assert "branch fix/owls, new, from main" in asked.stderr
    world.git("branch", "fix/owls")  # since it was shown
    assert world.fanfold("approve", "last").returncode == 0
    assert "[deliver.branch_exists]" in world.fanfold("watch", "last").stderr


@pytest.mark.parametrize("branch", ["main", "a..b"])
def test_a_name_is_judged_after_its_template_was_filled_in(world: World, branch: str) -> None:
    world.allow()
    (world.project / "d.yaml").write_text(
        RECIPE.replace("name: deliver\n", "name: deliver\ninputs: {b: {}}\n").replace(
            "fix/owls", '"{{inputs.b}}"'
        )
    )
    paused = world.run("-i", f"b={branch}")
    assert "[deliver.bad_branch]" in paused.stderr
    assert world.git("for-each-ref", "--format=%(refname)", "refs/heads").split() == ["refs/heads/main"]


def test_nothing_of_the_checkout_runs_while_it_is_delivered(world: World) -> None:
    witness = world.folder / "witness"
    shout = f"#!/bin/sh\ntouch {witness}\n"
    for name in ("pre-push", "post-commit", "reference-transaction", "post-index-change"):
        hook = world.project / ".git/hooks" / name
        hook.write_text(shout)
        hook.chmod(0o755)
    script = world.project / "evil.sh"
    script.write_text(shout)
    script.chmod(0o755)
    for key, value in {
        "core.fsmonitor": str(script),
        "core.sshCommand": str(script),
        "core.gitProxy": str(script),
        "credential.helper": f"!{script}",
        "filter.x.clean": str(script),
        "filter.x.smudge": str(script),
        "diff.external": str(script),
        "gpg.program": str(script),
        "commit.gpgSign": "true",
        "core.editor": str(script),
        "url./elsewhere/.insteadOf": str(world.remote),
        "include.path": "../evil.config",
    }.items():
        world.git("config", "--local", key, value)
    (world.project / "evil.config").write_text(f"[core]\n\tpager = {script}\n")
    (world.project / ".gitattributes").write_text("*.txt filter=x diff=x\n")
    for name in ("git", "gh"):
        (world.project / name).write_text(shout)
        (world.project / name).chmod(0o755)
    world.environment["PATH"] = f".:{world.project}:{world.environment['PATH']}"
    world.allow()
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert not witness.exists()


def test_programs_that_git_starts_to_push_are_the_user_s_own(world: World) -> None:
    used, witness = world.folder / "used", world.folder / "witness"
    for folder, file in ((world.programs, used), (world.project, witness)):
        (folder / "ssh").write_text(f"#!/bin/sh\ntouch {file}\nexit 1\n")
        (folder / "ssh").chmod(0o755)
    world.git("config", "remote.origin.url", "ssh://git@example.org/o/r.git")
    world.environment["PATH"] = f"{world.project}:{world.environment['PATH']}"
    world.allow()
    assert "[deliver." in world.run().stderr
    assert used.exists()
    assert not witness.exists()


def test_a_configuration_that_never_ends_is_none(world: World) -> None:
    config = world.project / ".git/config"
    config.unlink()
    os.mkfifo(config)
    world.allow()
    assert "[deliver.no_remote]" in world.run().stderr


@pytest.mark.parametrize("address", ["ext::sh -c touch% /tmp/x", "{project}/inside.git"])
def test_an_address_that_would_run_something_is_refused(world: World, address: str) -> None:
    world.git("init", "-q", "--bare", "inside.git")
    world.git("config", "remote.origin.url", address.format(project=world.project))
    world.allow()
    assert "[deliver.bad_remote]" in world.run().stderr


def test_paths_choose_what_is_delivered(world: World) -> None:
    recipe = RECIPE.replace("      pull_request:", '      paths: ["g.*"]\n      pull_request:')
    (world.project / "d.yaml").write_text(recipe)
    world.allow()
    assert world.run().returncode == 0
    assert world.git("diff", "--name-only", "main", "fix/owls").split() == ["g.txt"]


def test_a_project_in_a_folder_of_its_repository_delivers_to_that_folder(world: World) -> None:
    inner = world.project / "sub/dir"
    inner.mkdir(parents=True)
    for name in ("d.yaml", "s.yaml"):
        (world.project / name).rename(inner / name)
    (inner / ".fanfold").mkdir()
    (inner / "f.txt").write_text("a\nb\nc\nd\ne\nmine\n")
    world.git("add", "sub")
    world.git("commit", "-qm", "more")
    world.git("push", "-q", "origin", "main")
    world.git("fetch", "-q", "origin")
    world.project = inner
    world.allow()
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert world.git("diff", "--name-only", "main", "fix/owls").split() == [
        "sub/dir/.github/workflows/ci.yml",
        "sub/dir/f.txt",
        "sub/dir/g.txt",
    ]


# Killed on the way

CALLS = 32
"""Of git and gh, of a run that delivers."""
SAMPLE = [(22, "after"), (24, "before"), (28, "before"), (28, "after"), (32, "before"), (32, "after")]
"""Before the branch is made, and around the push and the pull request."""
EVENTS = 17
WHOLE = os.environ.get("KILL_TEST") == "all"


@pytest.mark.parametrize(
    ("call", "when"),
    [(call, when) for call in range(1, CALLS + 1) for when in ("before", "after")] if WHOLE else SAMPLE,
)
def test_a_process_that_dies_between_calls_of_git_delivers_once(world: World, call: int, when: str) -> None:
    world.allow()
    world.die_at(call, when)
    killed = world.run()
    is_last = (call, when) == (CALLS, "after")  # nothing is left to wait for: it may have ended by then
    assert killed.returncode == -9 or (is_last and killed.returncode == 0), killed.stderr
    done = world.fanfold("resume", "last")
    assert done.returncode == 0, done.stderr
    world.check_delivered_once()


@pytest.mark.parametrize(
    ("commit", "when"),
    [(commit, when) for commit in range(2, EVENTS) for when in ("before", "after")]
    if WHOLE
    else [(11, "after"), (13, "before"), (14, "after")],
)
def test_a_process_that_dies_at_an_event_delivers_once(world: World, commit: int, when: str) -> None:
    root, codes, told = "", [], ""
    for at in (commit, 0):
        done = subprocess.run(
            [sys.executable, "-m", "tests.delivery.driver", str(world.project), str(at), when, root],
            env=world.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            cwd=Path(__file__).parents[2],
        )
        root = root or done.stdout.split("\n")[0]
        codes.append(done.returncode)
        told = done.stdout + done.stderr
    assert codes == [-9, 0], told
    assert "completed" in told
    world.check_delivered_once()


def test_the_identity_in_the_repository_s_own_configuration_makes_the_commit(world: World) -> None:
    world.git("config", "user.name", "Bo")
    world.git("config", "user.email", "bo@example.org")
    world.git("config", "--global", "--unset", "user.name")
    world.run()
    approved(world)
    assert world.git("log", "-1", "--format=%an <%ae>", "fix/owls").strip() == "Bo <bo@example.org>"
