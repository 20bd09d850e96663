"""One process of a chat that dies at a chosen commit, or goes on with what another one left.

    python -m tests.kill.chatting FOLDER KILL_AT WHEN

It begins a chat and says one thing; where there is a chat already it goes on with the turn that was cut off,
or says the thing that the log does not have. It prints how the turn ended and how many commits that took.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fanfold.api.chats import ChatTurn, open_chat, resume_chat
from fanfold.api.run_options import Options
from fanfold.errors import NotFoundError
from fanfold.wiring import wire
from tests.dying_store import DyingStore, claimed, opened

SAID = "Where is the switch?"


async def main(folder: Path, kill_at: int, when: str) -> None:
    home = folder / "project"
    store = DyingStore(claimed(home))
    store.kill_at, store.when = kill_at, when
    project = wire(home, store=opened(store))
    try:
        chat = await resume_chat(project, "", None, lambda *_: None)
    except NotFoundError:
        options = Options(permission="auto", script=(folder / "script.yaml").read_text())
        chat = await open_chat(project, options, None, lambda *_: None)
    chat.options = Options(permission="auto", script=(folder / "script.yaml").read_text())
    cut_off, turns = chat.unfinished_turn(), chat.turns()
    turn: ChatTurn
    if cut_off is not None:
        turn = await chat.continue_turn(cut_off)
    else:
        turn = turns[-1] if turns else await chat.say(SAID)
    more = await chat.say("Thank you.") if not kill_at else turn
    await chat.leave()
    sys.stdout.write(f"{turn.status} {turn.output} {more.status} {store.counted}\n")
    project.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
