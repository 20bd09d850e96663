"""Jobs of the cluster are addresses. A worker executes only what the log of a live run has started."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from fanfold.api.run_options import Options
from fanfold.api.start import start
from fanfold.cluster.jobs import (
    MAX_PAYLOAD_BYTES,
    ExecutionReport,
    ExecutionTicket,
    encode,
    queue_of,
)
from fanfold.cluster.temporal import JobControl, check_address
from fanfold.cluster.worker import OrderFence, WorkerOptions, WorkerProcess
from fanfold.errors import AuthorError, BugError
from fanfold.kernel.events import StepEvent
from fanfold.kernel.plan import Plan, Step
from fanfold.language.compile import compile_recipe
from fanfold.language.leaf_steps import AgentBody
from fanfold.steps.ids import execution_id
from fanfold.steps.order import Job, Order
from fanfold.store.protocol import LeaseLost
from fanfold.wiring import wire
from tests.runtime.running import TextClient

RECIPE = "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: go}\n"


def environment(folder: Path) -> dict[str, str]:
    return {"FANFOLD_TEMPORAL": "127.0.0.1:1", "HOME": str(folder / "home")}


def ticket(run: str, seq: int = 2, **more: int) -> ExecutionTicket:
    return ExecutionTicket(root=run, run=run, path="a", attempt=1, execution=1, seq=seq, **more)


def test_the_id_of_a_job_is_the_address_of_its_execution_in_the_tree():
    step = Step(id="b", action=AgentBody(prompt="go").action())
    order = Order(
        root="r1",
        run="r2",
        run_path="kids[0]",
        path="b",
        attempt=2,
        execution=3,
        step=step,
        job=Job(),
        home="s",
    )
    assert execution_id(order.root, order.tree_path, order.attempt, order.execution) == "r1/kids[0]/b/2.3"
    assert queue_of("gpu") == "fanfold:1:gpu"


def test_a_payload_over_4_kb_is_a_bug():
    assert len(encode(ExecutionReport(lost="x" * 1_000))) < MAX_PAYLOAD_BYTES
    with pytest.raises(BugError, match="4096"):
        encode(ExecutionReport(lost="x" * MAX_PAYLOAD_BYTES))


@pytest.mark.parametrize("address", ["7233", "host", "host:", ":7233", "host:port/space"])
def test_an_address_without_host_and_port_is_refused(address: str):
    with pytest.raises(AuthorError, match="host:port"):
        check_address(address)


def compiled(text: str, folder: Path) -> tuple[Plan | None, list[str]]:
    with closing(wire(folder)) as project:
        found = compile_recipe(text.encode(), "r.yaml", project.compile_context())
    return found.plan, [one.message for one in found.report.diagnostics if one.severity == "error"]


def test_a_tag_comes_from_the_step_or_the_defaults_and_applies_to_work_only(tmp_path: Path):
    plan, _ = compiled(
        "name: tags\ndefaults: {runs_on: docs}\nsteps:\n"
        "  - {id: a, agent: explorer, prompt: go}\n"
        "  - {id: b, shell: ls, runs_on: gpu}\n"
        "  - {id: c, set: {n: '1'}}\n",
        tmp_path,
    )
    assert plan is not None
    assert [step.runs_on for step in plan.steps] == ["docs", "gpu", ""]


@pytest.mark.parametrize("tag", ["drive", "home"])
@pytest.mark.parametrize("place", ["defaults: {{runs_on: {}}}\nsteps:\n  - {{id: a, shell: ls}}\n",
                                   "steps:\n  - {{id: a, shell: ls, runs_on: {}}}\n"])  # fmt: skip
def test_a_tag_that_names_a_queue_of_the_cluster_is_refused(tmp_path: Path, tag: str, place: str):
    plan, errors = compiled(f"name: tags\n{place.format(tag)}", tmp_path)
    assert plan is None
    assert errors == [f'"runs_on" cannot be "{tag}": the cluster uses this name itself']


def test_a_forged_order_is_refused_and_starts_nothing(tmp_path: Path):
    async def work() -> None:
        with closing(wire(tmp_path, environment(tmp_path))) as project:
            worker = WorkerProcess(project, WorkerOptions(name="w"), "1")
            plan = TextClient(project).plan_of(RECIPE, scripted=True)
            owned = start(project, plan, {}, Options(permission="auto", script="default: ok"))
            run = owned.tree.root.id
            before = list(project.store.tree(run))
            for forged in (ticket("none"), *(ticket(run, seq) for seq in (1, 2, 99, 0, -1, 2**63, 2**70))):
                answer = await worker._execute(encode(forged), JobControl())
                report = msgspec.json.decode(answer, type=ExecutionReport)
                assert not report.outcome
                assert "is refused" in report.lost
            broken = await worker._execute("{", JobControl())
            assert not msgspec.json.decode(broken, type=ExecutionReport).outcome
            assert list(project.store.tree(run)) == before
            owned.let_go()

    asyncio.run(work())


def test_a_worker_learns_from_the_log_that_its_execution_was_replaced(tmp_path: Path):
    async def work() -> None:
        with closing(wire(tmp_path, environment(tmp_path))) as project:
            plan = TextClient(project).plan_of(RECIPE, scripted=True)
            owned = start(project, plan, {}, Options(permission="auto", script="default: ok"))
            run = owned.tree.root.id
            fence = OrderFence(project.store, ticket(run, 1))
            fence.confirm()
            await owned.host().start()
            owned.let_go()
            with pytest.raises(LeaseLost, match="has ended"):
                fence.confirm()
            assert fence.has_ended
            assert StepEvent("a", "stopping").reason == fence.stopping

    asyncio.run(work())
