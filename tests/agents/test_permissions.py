"""Postures: what is denied, what is asked, and that nothing widens them."""

import asyncio
import itertools

import pytest

from fanfold.agents.permissions import (
    POSTURES,
    Action,
    Answer,
    Grants,
    PermissionDenied,
    Permissions,
    narrower,
)
from fanfold.cli.questions import PagedQuestion
from fanfold.language.consent import ConsentRequest
from fanfold.workspace.seal import ProjectGrants

RUN = Action("command", "make")
WRITE = Action("write", "write_file a")


def check(permissions: Permissions, action: Action) -> None:
    asyncio.run(permissions.check(action))


@pytest.mark.parametrize(("one", "other"), list(itertools.product(POSTURES, POSTURES)))
def test_a_child_is_never_wider_than_its_parent(one, other):
    assert POSTURES.index(narrower(one, other)) == min(POSTURES.index(one), POSTURES.index(other))
    assert Permissions(one).narrowed(other).posture == narrower(one, other)


def test_read_only_denies_every_mutation_without_asking():
    async def ask(action):
        pytest.fail("nobody may be asked")

    for action in (RUN, WRITE, Action("spawn", "worker")):
        with pytest.raises(PermissionDenied) as denied:
            check(Permissions("read_only", ask), action)
        assert denied.value.code == "permission_denied"
        assert denied.value.exit_status == 4


def test_auto_allows_and_ask_asks_what_was_not_covered():
    asked = []

    async def ask(action):
        asked.append(action)
        return True

    check(Permissions("auto", ask), RUN)
    assert asked == []
    check(Permissions("ask", ask), RUN)
    check(Permissions("ask", ask), WRITE)
    assert asked == [RUN]
    check(Permissions("ask", ask, covered=frozenset()), WRITE)
    assert asked == [RUN, WRITE]


def test_ask_without_a_user_is_a_denial():
    with pytest.raises(PermissionDenied) as denied:
        check(Permissions("ask"), RUN)
    assert "no person" in denied.value.message
    assert "--permission auto" in denied.value.hint


def test_a_caller_that_may_not_ask_is_denied():
    async def ask(action):
        pytest.fail("nobody may be asked")

    with pytest.raises(PermissionDenied):
        check(Permissions("ask", ask).unasked(), RUN)
    check(Permissions("ask", ask).unasked(), WRITE)  # which was agreed to when the run began
    check(Permissions("auto", ask).unasked(), RUN)


def test_questions_of_parent_and_child_are_put_one_at_a_time():
    open_questions = most = 0

    async def ask(action):
        nonlocal open_questions, most
        open_questions += 1
        most = max(most, open_questions)
        await asyncio.sleep(0)
        open_questions -= 1
        return True

    async def main():
        parent = Permissions("ask", ask)
        child = parent.narrowed("ask")
        await asyncio.gather(*(one.check(RUN) for one in (parent, child, parent, child)))

    asyncio.run(main())
    assert most == 1


# Answers that hold for longer


class Person:
    """Answers every question alike, and remembers what was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, action: Action) -> Answer:
        self.asked.append(action.what)
        return self.answer


def test_always_in_this_run_covers_what_is_of_the_same_kind():
    person = Person("run")
    permissions = Permissions("ask", person, covered=frozenset())
    for what in ("make", "pytest"):
        check(permissions.narrowed("auto"), Action("command", what))
    check(permissions, Action("write", "a.txt"))
    assert person.asked == ["make", "a.txt"]
    with pytest.raises(PermissionDenied):
        check(permissions.narrowed("read_only"), Action("command", "make"))


def test_always_for_a_command_holds_in_later_runs_of_this_project_alone(tmp_path):
    home, project, other = tmp_path / "home", tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    person = Person("project")

    def run(folder, what):
        check(Permissions("ask", person, grants=Grants(ProjectGrants(home, folder))), Action("command", what))

    run(project, "make test")
    run(project, "make test")
    assert person.asked == ["make test"]
    run(project, "make clean")
    run(other, "make test")
    assert person.asked == ["make test", "make clean", "make test"]
    unattended = Permissions("ask", None, grants=Grants(ProjectGrants(home, project)))
    check(unattended, Action("command", "make test"))
    with pytest.raises(PermissionDenied):
        check(unattended.unasked(), Action("command", "make test"))
    assert list(project.iterdir()) == []
    assert (home / "permissions.json").stat().st_mode & 0o777 == 0o600


def test_another_folder_at_the_same_path_has_none_of_the_grants(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    grants = ProjectGrants(tmp_path / "home", project)
    grants.add("make test")
    assert grants.allows("make test")
    project.rename(tmp_path / "before")
    project.mkdir()
    assert not grants.allows("make test")


@pytest.mark.parametrize("text", ["", "[1]", '{"x": 5', "\xff"])
def test_a_damaged_file_holds_no_grant_and_is_replaced(tmp_path, text):
    (tmp_path / "permissions.json").write_text(text, encoding="latin-1")
    grants = ProjectGrants(tmp_path, tmp_path)
    assert not grants.allows("make")
    grants.add("make")
    assert grants.allows("make")


def test_only_single_commands_can_be_allowed_for_a_project(tmp_path):
    person, stored = Person("project"), ProjectGrants(tmp_path, tmp_path)
    request = ConsentRequest("lead wants to do this:", ("run x",))
    for action in (Action("network", "x"), Action("command", "x", request=request)):
        check(Permissions("ask", person, covered=frozenset(), grants=Grants(stored)), action)
    assert not stored.allows("x")


def test_a_question_takes_the_answers_that_it_offers(capsys):
    request = ConsentRequest("work wants to run:", ("make",))
    always: dict[str, Answer] = {"a": "run", "p": "project"}
    for typed, answer in (("a\n", "run"), ("P\n", "project"), ("y\n", True), ("\n", False), ("x\n", False)):
        assert PagedQuestion(request, "allow it?", always).hear(typed) == answer
    assert PagedQuestion(request, "Run it?").hear("a\n") is False
