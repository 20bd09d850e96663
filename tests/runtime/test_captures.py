"""Capture: what was delegated in an open run becomes the recipe that a person would write.

Each file of `captures/` says what was asked and delegated. It is really delegated, to scripted agents,
captured, compared with the recipe beside it (`python -m tests.runtime.test_captures` writes them), and then
run: the agents must be told the same again.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fanfold.agents.entries import UserInput
from fanfold.api import subagents
from fanfold.api.authoring import CaptureResult, capture
from fanfold.api.client import Client
from fanfold.api.ownership import own
from fanfold.api.project import Project
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.api.start import create_open
from fanfold.api.subagents import Task
from fanfold.kernel.state import LEAF
from fanfold.language.capture.quotes import Delegation
from fanfold.language.capture.recover import recover
from fanfold.sessions.log import read_entries
from fanfold.steps.records import is_agent, session_of
from fanfold.wiring import wire

FOLDER = Path(__file__).parent / "captures"
CASES = sorted(path.stem for path in FOLDER.glob("*.yaml") if not path.stem.endswith(".recipe"))
SUMMARY = "\n\nResult of the earlier step "
"""How a prompt begins to tell of a step that it waits for without placing it."""


def read_case(name: str) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return case


def answer_of(child: dict[str, Any]) -> dict[str, Any]:
    keys = ("output", "fail", "writes", "tool_calls")
    return {key: child[key] for key in keys if key in child}


class Delegated:
    """A project in which a case was delegated and captured."""

    def __init__(self, folder: Path, case: dict[str, Any]) -> None:
        self.case = case
        self.project: Project = wire(folder, {"HOME": str(folder.parent)})
        self.answers: dict[str, dict[str, Any]] = {}
        """By the name of the child."""
        for name, text in case.get("files", {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        asyncio.run(self._delegate())
        self.captured: CaptureResult = capture(self.project, "hand", name="captured", request=case["request"])

    async def _delegate(self) -> None:
        create_open(self.project, "hand")
        handle = RunHandle(own(self.project, "hand"), resumed=True)
        for wave in self.case["waves"]:
            names = [await self._spawn(child) for child in wave]
            await subagents.wait(self.project, names)
        await handle.leave()

    async def _spawn(self, child: dict[str, Any]) -> str:
        if "to" in child:
            sent = await subagents.send_input(self.project, child["to"], child["task"])
            turn = 1 + sum(name.partition("#")[0] == sent.id for name in self.answers)
            self.answers[f"{sent.id}#{turn}"] = answer_of(child)
            return sent.id
        later = [one for wave in self.case["waves"] for one in wave if one.get("to") == child.get("name", "")]
        turns = {f"{one['to']}#{turn}": answer_of(one) for turn, one in enumerate(later, 2)}
        script = yaml.safe_dump({"default": answer_of(child), "steps": turns})
        task = Task(
            role=child["role"],
            task=child["task"],
            name=child.get("name", ""),
            write_set=tuple(child.get("write_set", ())),
            output_schema=child.get("schema"),
        )
        options = Options(permission="auto", script=script)
        spawned = await subagents.spawn(self.project, task, options)
        self.answers[spawned.id] = answer_of(child)
        return spawned.id

    def recorded(self) -> list[str]:
        return sorted(child["task"] for wave in self.case["waves"] for child in wave)

    def script(self) -> str:
        """Scripted agents that answer as those that were delegated to."""
        steps: dict[str, Any] = {}
        recipe = yaml.safe_load(self.captured.recipe)
        for step in recipe["steps"]:
            children = self.captured.made_of[step["id"]]
            failed = [one for one in self.answers.values() if "fail" in one] if "retry" in step else []
            for number, child in enumerate(children):
                path = f"{step['id']}[{number}]" if "for_each" in step else step["id"]
                steps[path] = [*failed, self.answers[child]]
        return yaml.safe_dump({"steps": steps})

    async def sent(self) -> list[tuple[str, str]]:
        """Run what was captured with the inputs it names; which step was told what."""
        file = self.project.folder / "captured.yaml"
        file.write_text(self.captured.recipe)
        client = Client(self.project)
        handle = await client.start(str(file), options=Options(permission="auto", script=self.script()))
        result = await handle.result()
        assert result.status == "completed", result
        tree = self.project.view(result.run_id)
        told: list[tuple[str, str]] = []
        for node in tree.root.nodes.values():
            if node.kind != LEAF or not is_agent(node) or not node.attempt:
                continue
            first = next(e for e in read_entries(tree.store, session_of(node)) if isinstance(e, UserInput))
            told += [(node.path, first.text)] * node.attempt
        return told


@contextmanager
def delegated(name: str, folder: Path) -> Iterator[Delegated]:
    made = Delegated(folder, read_case(name))
    try:
        yield made
    finally:
        made.project.close()


def golden_of(captured: CaptureResult) -> str:
    """The recipe as the golden file holds it, with the notes as comments."""
    lines = [f"# recognised: {note}" for note in captured.recognised]
    lines += [f"# guessed: {note}" for note in captured.guessed]
    lines += [f"# left out: {one.name}: {one.why}" for one in captured.left_out]
    return "".join(f"{line}\n" for line in lines) + captured.recipe


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_delegated_work_is_captured_as_a_readable_recipe_with_the_same_prompts(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with delegated(name, folder) as case:
        assert golden_of(case.captured) == (FOLDER / f"{name}.recipe.yaml").read_text()
        assert case.captured.diagnostics == ()
        told = asyncio.run(case.sent())
        plain = [(step, text.partition(SUMMARY)[0]) for step, text in told]
        assert sorted(_as_recorded(case, step, text) for step, text in plain) == case.recorded()


def _as_recorded(case: Delegated, step: str, text: str) -> str:
    """What a step was told, with what its holes gave replaced by the words that were a part of it."""
    for one in case.captured.stands_for:
        if one.step == step:
            children = case.captured.made_of[one.hole.split(".")[1]]
            path = one.hole.strip("{}").split(".")[3:]
            outputs = [reduce(getitem, path, case.answers[child]["output"]) for child in children]
            given = outputs[0] if len(children) == 1 else msgspec.json.encode(outputs).decode()
            assert given in text
            text = text.replace(given, one.said)
    return text


COMMON = """
the of and to in is it you that was for on are with as his they be at one have this from or had by hot but
some what there we can out other were all your when up use word how said an each she which do their time
if will way about many then them would write like so these her long make thing see him two has look more
day could go come did my sound no most number who over know water than call first people may down side
been now find any new work part take get place made live where after back little only round man year came
show every good me give our under file test error code function module review report summary check list
read write fix change result output input server client data system user page service request response
value name version build run step task agent issue bug log query table index field class object method
string line path config option status message update
""".split()


@st.composite
def conversations(draw: st.DrawFn) -> list[Delegation]:
    """Children that only read, in some order, whose prompts and outputs are made of common words."""
    count = draw(st.integers(2, 7))
    text = st.lists(st.sampled_from(COMMON), min_size=1, max_size=40).map(" ".join)
    made = []
    at = 0
    for number in range(count):
        together = draw(st.booleans())
        asked = at if together and number else at + 2
        at = asked
        made.append(
            Delegation(
                name=f"explorer-{number + 1}",
                chosen=False,
                role="explorer",
                prompt=draw(text),
                output=draw(text),
                status="completed",
                asked=asked,
                ended=asked + 1,
                settings={},
                leaves_files=False,
            )
        )
    return made


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 6]) for at in range(len(words) - 5)}


@pytest.mark.full
@settings(max_examples=300, deadline=None)
@given(conversations(), st.lists(st.sampled_from(COMMON), max_size=20).map(" ".join))
def test_no_edge_is_invented_between_children_that_share_only_common_words(
    delegations: list[Delegation], request: str
) -> None:
    for one in delegations:
        for other in delegations:
            # Six words in a row are a quotation, whatever the words are.
            assume(one is other or not runs_of_words(str(one.output)) & runs_of_words(other.prompt))
    recipe = recover(delegations, request=request).recipe
    assert recipe is not None
    assert not any("depends_on" in step for step in recipe.value["steps"])
    assert not any("steps." in step["prompt"] for step in recipe.value["steps"])


def main() -> None:
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "project").mkdir()
            with delegated(name, Path(folder) / "project") as case:
                (FOLDER / f"{name}.recipe.yaml").write_text(golden_of(case.captured))


if __name__ == "__main__":
    main()
