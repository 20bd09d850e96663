"""Postures: what is denied, what is asked, and that nothing widens them."""

import asyncio
import itertools

import pytest

from fanfold.agents.permissions import POSTURES, Action, PermissionDenied, Permissions, narrower

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


def test_ask_without_anybody_to_answer_is_no():
    with pytest.raises(PermissionDenied) as denied:
        check(Permissions("ask"), RUN)
    assert "nobody" in denied.value.message
    assert "--permission auto" in denied.value.hint


def test_who_may_not_ask_is_denied_where_others_would_ask():
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
