"""What a pattern or a page may cost is bounded, whoever chose it, and nobody else waits for it."""

import asyncio
import resource
import time
from pathlib import Path

import pytest

from fanfold.agents.backend import ToolFailed
from fanfold.agents.tools.fetch import do_limited
from fanfold.agents.tools.files import FileTools
from tests.work import PATIENCE_S, patience

pytestmark = pytest.mark.full

EXPENSIVE = [
    r"(a{1000}){1000}",
    r"((a{100}){100}){100}",
    r"(?:a|b|ab)*" * 300,
    r"(a*)*" * 200 + "c",
    "(" * 900 + ")" * 900,
    r"(?:(?:(?:(?:x?){500}){500}){500}){500}",
]


@pytest.mark.parametrize("pattern", EXPENSIVE, ids=range(len(EXPENSIVE)))
def test_a_pattern_takes_no_more_than_its_share(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.txt").write_text("ab" * 200_000 + "\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ticks = 0
    codes: list[str] = []

    async def search() -> None:
        nonlocal ticks

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.05)

        beside = asyncio.create_task(tick())
        outcome = await asyncio.gather(
            FileTools(str(tmp_path)).search_files({"pattern": pattern}), return_exceptions=True
        )
        beside.cancel()
        codes.append(getattr(outcome[0], "code", "done"))

    with patience():
        asyncio.run(search())
    assert codes[0] in ("done", "tool.timeout", "tool.too_expensive", "tool.bad_pattern")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024, "not in our process"
    assert ticks >= 1


@pytest.mark.parametrize(
    "page",
    ["<a " * 1_300_000, "<!" * 2_000_000, "<" * 4_000_000, "&" * 4_000_000, "<p title='" + "x" * 4_000_000],
    ids=["tags", "declarations", "brackets", "references", "attribute"],
)
def test_a_page_takes_no_more_than_its_share(page: str):
    async def read() -> object:
        reading = do_limited("page", page.encode(), "text/html", timeout_s=5)
        return (await asyncio.gather(reading, return_exceptions=True))[0]

    with patience():
        outcome = asyncio.run(read())
    assert getattr(outcome, "code", "done") in ("done", "tool.timeout", "tool.too_expensive")


def test_an_abandoned_search_leaves_no_process(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a" * 100_000)

    async def leave() -> None:
        task = asyncio.create_task(FileTools(str(tmp_path)).search_files({"pattern": "(a|a)*b" * 50}))
        while children() <= before and not task.done():  # noqa: ASYNC110 -- processes set no event
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = children()
    asyncio.run(leave())
    until = time.monotonic() + PATIENCE_S
    while not children() <= before and time.monotonic() < until:  # a thread of the loop's sees to the dead
        time.sleep(0.01)
    assert children() <= before


def children() -> set[str]:
    """The processes that this one has started and not yet seen the end of."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_a_job_that_is_not_in_the_table_is_none():
    async def other() -> None:
        await do_limited("os.system", "true", timeout_s=20)

    with pytest.raises(ToolFailed) as refused:
        asyncio.run(other())
    assert refused.value.code == "tool.too_expensive"
