"""What `verify` holds a log against, beside what the store itself finds."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fanfold.api.archives import verify, verify_store
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.run_tree import RunTree
from fanfold.errors import WorldError
from fanfold.kernel.events import Envelope, RunCreated, Usage, event_of
from fanfold.kernel.plan import Ref
from fanfold.store.protocol import Batch, Store
from fanfold.store.sqlite import SqliteStore
from fanfold.wiring import wire
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

RECIPE = """\
name: two
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}", depends_on: [a]}
"""


@pytest.fixture
def store(tmp_path: Path):
    project = wire(tmp_path)
    yield project.store
    project.close()


def messages(store: Store, root: str) -> list[tuple[int, str]]:
    return [(one.number, one.message) for one in verify(store, root).violations]


def test_a_state_other_than_the_recorded_one_is_found(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """As when another version of the kernel folds the log to something else."""
    monkeypatch.setattr("fanfold.engine.run_tree.trace", lambda *_: b"of then!")
    root = run(tmp_path, RECIPE).run_id
    found = messages(store, root)
    assert {number for number, _ in found} == {3}
    assert "another state than was recorded" in found[0][1]


@pytest.mark.parametrize(
    "change", [{"status": "failed"}, {"agents": 7}, {"output": "other"}, {"ended_at": 1}]
)
def test_a_row_that_does_not_follow_from_the_log_is_found(
    tmp_path: Path, store: Store, change: dict[str, object]
):
    """Also one that was written by the rules: whoever seals it again cannot make it true."""
    root = run(tmp_path, RECIPE).run_id
    assert messages(store, root) == []
    head = store.head(root)
    assert head is not None
    store.write([Batch(root=root, epoch=1, heads=[replace(head, **change)])])
    (found,) = messages(store, root)
    name = next(iter(change))
    assert found[0] == 2
    assert f"says {name} {change[name]!r}, its log says" in found[1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("spent", "found"),
    [
        ((1, Usage(0, 0, 0)), []),
        ((0, Usage(0, 0, 0)), ["usage", "agents"]),
        ((1, Usage(10, 1, 1_000)), []),
        ((9, Usage(10, 1, 1_000)), ["usage", "agents"]),
        ((1, Usage(10, 1, None)), ["usage", "agents"]),
    ],
)
def test_the_row_of_an_unfinished_run_may_lag_behind_its_log_but_never_contradicts_it(
    tmp_path: Path, store: Store, spent: tuple[int, Usage], found: list[str]
):
    """As code wrote it that brought rows up to date less often, and was killed."""
    steps = "".join(
        f"  - {{id: s{number}, agent: explorer, prompt: x, depends_on: [{before}]}}\n"
        for number, before in enumerate(("", "s0", "s1", "s2"))
    )
    project = wire(tmp_path)
    (tmp_path / "r.yaml").write_text(f"name: r\nsteps:\n{steps}".replace(", depends_on: []", ""))
    script = (
        "default: {output: ok, delay_ms: 300, usage: {input_tokens: 10, output_tokens: 1, cost_usd: 0.001}}"
    )
    owned = create(project, project.plan_of(tmp_path / "r.yaml"), {}, Options(script=script))
    root = owned.tree.root.id

    def leave(_: object) -> None:
        if owned.tree.root.usage.input_tokens == 30:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(owned.host(on_commit=leave).start())
    owned.let_go()
    project.close()
    head = store.head(root)
    assert head is not None
    assert (head.status, messages(store, root)) == ("running", [])
    assert head.usage.input_tokens >= 20
    agents, usage = spent
    store.write([Batch(root=root, epoch=1, heads=[replace(head, agents=agents, usage=usage)])])
    told = [text.removeprefix(f"the row of run {root} says ") for _, text in messages(store, root)]
    assert [text.split(" ")[0] for text in told] == found


def test_an_output_that_the_log_does_not_know_is_found(tmp_path: Path, store: Store):
    root = run(tmp_path, RECIPE).run_id
    ((_, row), *_) = store.output_rows(root=root)
    store.write([Batch(root=root, epoch=1, outputs=[row])])
    assert messages(store, root) == [(2, "the row of the output of a is not what the log says")]
    assert not verify_store(store).ok


@pytest.mark.full
def test_a_run_can_be_verified_while_it_runs(tmp_path: Path):
    """Its log grows between two readings; what is checked is one moment of it."""
    steps = "".join(f"  - {{id: s{n}, agent: explorer, prompt: x}}\n" for n in range(300))

    async def work() -> list[tuple[int, str]]:
        async with client(tmp_path) as opened:
            options = Options(permission="auto", script="default: ok", max_agents=400)
            recipe = f"name: many\nlimits: {{max_agents: 400}}\nsteps:\n{steps}"
            handle = await opened.start(recipe, options=options)
            result = asyncio.create_task(handle.result())
            found: list[tuple[int, str]] = []
            looking = wire(tmp_path, to_read=True)
            while not result.done():
                await asyncio.to_thread(lambda: found.extend(messages(looking.store, handle.id)))
            await asyncio.to_thread(looking.close)
            assert (await result).status == "completed"
            return found

    assert asyncio.run(work()) == []


BACKS_OFF = """\
name: backs_off
limits: {{timeout: {run_timeout}}}
steps:
  - {{id: g, timeout: {group_timeout}, steps: [{{id: a, agent: explorer, prompt: a,
      retry: {{attempts: 3, backoff: 60s, on: [transport]}}}}]}}
"""
FAILS = "steps: {g/a: {fail: {class: transport, message: gone}}}"


@pytest.mark.parametrize(
    ("how", "status"), [("cancel", "cancelled"), ("run_timeout", "timed_out"), ("group_timeout", "failed")]
)
def test_a_run_that_ends_while_a_step_waits_for_its_next_attempt_is_sound(
    tmp_path: Path, store: Store, how: str, status: str
):
    limits = {"run_timeout": "1h", "group_timeout": "1h"} | ({} if how == "cancel" else {how: "300ms"})

    async def work() -> str:
        async with client(tmp_path) as opened:
            options = Options(permission="auto", script=FAILS)
            handle = await opened.start(BACKS_OFF.format(**limits), options=options, inputs={})
            async for event in handle.events():
                if event.data.get("status") == "retrying" and how == "cancel":
                    await handle.cancel()
            result = await asyncio.wait_for(handle.result(), PATIENCE_S)
            assert result.status == status
            return result.run_id

    assert messages(store, asyncio.run(work())) == []


def rewritten(root: str, store: Store, folder: Path, change: Callable[[list[Envelope]], None]) -> Store:
    """The run in another store, as if this had been its log all along: chained and sealed by the rules."""
    envelopes = [replace(one, data=event_of(one).data) for one in store.tree(root)]
    blobs = {name for one in envelopes for name in _named(one)}
    change(envelopes)
    other = SqliteStore(folder, durability="normal")
    numbered = [replace(one, seq=n, tree_seq=n) for n, one in enumerate(envelopes, 1)]
    head = store.head(root)
    assert head is not None
    contents = [(name, store.blob(name)) for name in sorted(blobs)]
    lease = other.acquire(root)
    other.write([Batch(root=root, epoch=lease.epoch, envelopes=numbered, heads=[head], blobs=contents)])
    other.release(lease)
    return other


def _named(envelope: Envelope) -> Iterator[str]:
    names = (getattr(envelope.data, name, None) for name in ("output", "inputs", "frozen"))
    return (name for name in names if name is not None)


def position(envelopes: list[Envelope], step: str, status: str) -> int:
    return next(
        number
        for number, one in enumerate(envelopes)
        if (getattr(one.data, "step", ""), getattr(one.data, "status", "")) == (step, status)
    )


SIDE_BY_SIDE = """\
name: side_by_side
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, prompt: b}
"""


def test_steps_that_started_in_another_order_than_the_kernel_decides_are_found(tmp_path: Path, store: Store):
    def swap(envelopes: list[Envelope]) -> None:
        a, b = position(envelopes, "a", "started"), position(envelopes, "b", "started")
        envelopes[a], envelopes[b] = envelopes[b], envelopes[a]

    root = run(tmp_path, SIDE_BY_SIDE).run_id
    other = rewritten(root, store, tmp_path / "other", swap)
    found = messages(other, root)
    other.close()
    assert [(number, text.split(":")[0]) for number, text in found] == [
        (17, "event 3 does not follow from the log")
    ]


def test_a_step_that_was_made_of_one_which_had_not_ended_is_found(tmp_path: Path, store: Store):
    """As when the plan in the log forgets the edge that a reference needs."""

    def forget_edge(envelopes: list[Envelope]) -> None:
        created = envelopes[0].data
        assert isinstance(created, RunCreated)
        assert created.plan is not None
        a, b = created.plan.steps
        refers = replace(b, inputs={"one": Ref("steps.a.output"), "two": Ref("inputs.x")})
        data = replace(created, plan=replace(created.plan, steps=(a, refers)))
        envelopes[0] = replace(envelopes[0], data=data)

    root = run(tmp_path, SIDE_BY_SIDE).run_id
    other = rewritten(root, store, tmp_path / "other", forget_edge)
    found = [(number, text) for number, text in messages(other, root) if number == 14]
    other.close()
    assert found == [
        (14, "b refers to the input x, which nobody declares"),
        (14, "b started before a ended, which it refers to"),
    ]


def test_words_that_only_look_like_references_are_none(tmp_path: Path, store: Store):
    said = r"'Say \{{inputs.x}}, \{{steps.b.output}}'"
    root = run(tmp_path, f"name: quoting\nsteps:\n  - {{id: a, agent: explorer, prompt: {said}}}\n").run_id
    assert messages(store, root) == []


def test_a_log_of_another_version_is_refused_with_what_to_do(tmp_path: Path, store: Store):
    def of_another_version(envelopes: list[Envelope]) -> None:
        assert isinstance(envelopes[0].data, RunCreated)
        envelopes[0] = replace(envelopes[0], data=replace(envelopes[0].data, version=7))

    root = run(tmp_path, SIDE_BY_SIDE).run_id
    other = rewritten(root, store, tmp_path / "other", of_another_version)
    with pytest.raises(WorldError) as refused:
        RunTree.load(other, root)
    found = messages(other, root)
    other.close()
    assert (refused.value.code, refused.value.details) == ("log.version", {"found": 7, "known": 1})
    assert "the Fanfold that recorded it" in refused.value.hint
    assert "log version 7, not 1" in found[-1][1]
