"""Responses in which one value has a wrong type: a session survives them, and what it records can be read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.agents.entries import FailedRequest, Response
from tests.models.sessions import MODELS, World, play, request
from tests.provider import FORMATS, Answer, Call, Event, Format, Raw, RecordedRequest, Reply
from tests.sampling import SEED, examples

pytestmark = pytest.mark.full

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 12.5, 1e308, float("nan"), 10**30, "", "x", "\ud83d", [], [1, 2], [{}], {}, {"a": 1},
)  # fmt: skip
REPLIES = (
    Reply(text="hello there world"),
    Reply(text="x", calls=(Call("list_files", {}, "c1"), Call("read_file", {"path": "a"}, "c2"))),
    Reply(thinking="hm", text="so"),
)


def sent(form: Format, events: Sequence[Event]) -> Raw:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events]
    return Raw("".join(lines).encode() + form.ending, 200, {"content-type": "text/event-stream"})


def odd(chance: random.Random, form: Format, asked: RecordedRequest) -> Raw:
    """One of the replies, with one value replaced or left out."""
    reply = chance.choice(REPLIES if asked.format == "messages" else REPLIES[:2])
    events = json.loads(json.dumps(form.events(reply, asked.model, asked.number)))
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(chance.choice(events)[1])
    holder, key = chance.choice(places)
    if chance.random() < 0.1:
        del holder[key]
    else:
        holder[key] = chance.choice(ODD)
    return sent(form, events)


@pytest.mark.parametrize("model", MODELS)
def test_a_value_of_a_wrong_type_ends_no_session_and_nothing_unreadable_is_recorded(
    tmp_path: Path, model: str
) -> None:
    """200 of each format in `make providers`."""
    chance = random.Random(f"{SEED} {model}")
    is_odd = False
    ends: set[str] = set()

    def script(asked: RecordedRequest) -> Answer:
        nonlocal is_odd
        if not is_odd:
            return Reply(text="fine")
        is_odd = False
        form = next(one for one in FORMATS.values() if one.name == asked.format)
        return odd(chance, form, asked)

    async def scene(here: World) -> None:
        nonlocal is_odd
        for number in range(examples(200)):
            is_odd = True
            await here.run(request(tmp_path, session_id=f"s{number}", model=model))
            for entry in here.recorder.entries:
                msgspec.json.decode(msgspec.json.encode(entry), type=type(entry))
            ends.update(failed.code for failed in here.recorder.of(FailedRequest))

    play(script, scene)
    assert ends <= {"model.garbled", "model.broken_off"}


@pytest.mark.parametrize("tokens", [12.0, 12.5, True, float("nan"), float("inf"), "12", -3, [1]])
def test_a_number_of_tokens_that_is_none_is_counted_in_whole_tokens(tmp_path: Path, tokens: object) -> None:
    def script(asked: RecordedRequest) -> Answer:
        form = FORMATS["/v1/chat/completions"]
        events = form.events(Reply(text="fine"), asked.model, asked.number)
        events[-1][1]["usage"]["prompt_tokens"] = tokens
        return sent(form, events)

    async def scene(here: World) -> None:
        done = await here.run(request(tmp_path))
        assert all(type(number) is int for number in (done.usage.input_tokens, done.usage.output_tokens))
        assert done.usage.input_tokens > 0
        (entry,) = here.recorder.of(Response)
        assert msgspec.json.decode(msgspec.json.encode(entry), type=Response) == entry

    play(script, scene)


def test_a_sum_of_tokens_in_every_event_is_counted_once(tmp_path: Path) -> None:
    def script(asked: RecordedRequest) -> Answer:
        form = FORMATS["/v1/chat/completions"]
        events = form.events(Reply(text="one two three"), asked.model, asked.number)
        for number, (_, event) in enumerate(events, 1):
            event["usage"] = {"prompt_tokens": 100, "completion_tokens": number, "total_tokens": 100 + number}
        return sent(form, events)

    async def scene(here: World) -> None:
        done = await here.run(request(tmp_path))
        assert (done.usage.input_tokens, done.usage.output_tokens) == (100, 6)
        (asked,) = here.provider.asked
        assert asked.body["stream_options"] == {"include_usage": True}

    play(script, scene)
