"""One project, one store: where runs are created, owned, resumed, asked and looked into.

Every surface goes through here. Whoever drives a run holds its lease; everybody else reads the log and
leaves requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fanfold.agents.permissions import Ask
from fanfold.agents.role import Role
from fanfold.agents.roles.registry import Registry
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.events import Created, Event, Forked, Raised, Settings
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.plan import JSON, AgentAction, CommandAction, Plan
from fanfold.recipe.inputs import bind_inputs
from fanfold.runtime.config import Config
from fanfold.runtime.hosting.host import Host, now_ms
from fanfold.runtime.hosting.requests import check_choice, find_approval, this_person
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.places.isolation import Isolation
from fanfold.runtime.records.frozen import (
    Frozen,
    all_steps_below,
    freeze_roles,
    from_json,
    to_json,
    with_stages,
)
from fanfold.runtime.records.ids import new_run_id, session_id, settling_ids
from fanfold.runtime.steps.handlers import Handlers
from fanfold.runtime.steps.means import Means
from fanfold.runtime.steps.performer import Performer
from fanfold.runtime.steps.programs import Programs
from fanfold.runtime.views.report import write_mirror
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.protocol import Request, RunHead, Store

MakeSupervisor = Callable[[Store, Frozen, Means], Supervisor]


class Options(Struct, frozen=True, kw_only=True):
    """What a caller may fix for one run; None leaves it to recipe and configuration."""

    max_concurrency: int | None = None
    max_agents: int | None = None
    budget_tokens: int | None = None
    budget_micro_usd: int | None = None
    timeout_ms: int | None = None
    permission: str = "ask"
    unsafe_no_sandbox: bool = False
    """Run programs even where this machine cannot confine them."""
    backend: str | None = None
    model: str | None = None
    script: str | None = None
    script_file: str = ""


class Lineage(Struct, frozen=True, kw_only=True):
    """Where a fork comes from, what it keeps of it, and the roles its steps had there."""

    run_id: str
    kept: dict[str, str]
    """Tree path to blob of the steps whose output is reused."""
    roles: dict[str, Role]
    default_model: str | None = None


class Project:
    """`folder` is the workspace; its memory lives in `.fanfold/` below it."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        roles: Callable[[], Registry],
        store: Store,
        supervise: MakeSupervisor,
    ) -> None:
        self.folder = folder.resolve()
        self.config = config
        self.store = store
        self._roles = roles
        self._supervise = supervise
        self._handlers = Handlers(self.folder)
        self._performers: dict[str, Performer] = {}
        """By root: who looked for outputs to reuse also remembers new ones under the same keys."""
        self.isolation = Isolation(self.folder)
        self.asker: Ask | None = None
        """Puts what an agent wants to do to a person; None when nobody is there."""

    def close(self) -> None:
        self.store.close()

    # Creating and driving

    def create(
        self,
        plan: Plan,
        given: Mapping[str, JSON],
        options: Options,
        fork: Lineage | None = None,
    ) -> RunTree:
        """Record a new run: plan, inputs and everything else it will ever need."""
        self._check_enabled()
        bound = bind_inputs(plan, given)
        _check_sandbox(plan, options)
        frozen, settings = self._freeze(plan, options, fork), self.settings(plan, options)
        if frozen.backend == "model":  # scripted agents need no model, and no import of what knows them
            from fanfold.runtime.operations.preflight import prepare

            frozen, settings = prepare(plan, frozen, settings, self.config, self.store)
        root = new_run_id()
        performer = self._performer(root, frozen)
        if frozen.backend not in performer.backends and any(
            isinstance(step.action, AgentAction) for step in all_steps_below(plan)
        ):
            raise _no_backend(frozen.backend, named=options.backend is not None)
        lease = self.store.acquire(root)
        data = Created(
            plan=plan,
            settings=settings,
            epoch=lease.epoch,
        )
        tree = RunTree(self.store, Event(root, now_ms(), data), lease, performer.reuse)
        data = msgspec.structs.replace(
            data, inputs=tree.blobs.put(bound), frozen=tree.blobs.put(to_json(frozen))
        )
        first = Event(root, now_ms(), data)
        tree.memory.observe(first)
        tree.begin(first)
        if fork is not None:
            tree.forked_from = fork.run_id
            # Named in the log, or collecting the source run would take them away.
            kept = tuple(sorted(set(fork.kept.values())))
            tree.report(root, now_ms(), Forked(f"from {fork.run_id}", kept))
        tree.commit()
        return tree

    def _freeze(self, plan: Plan, options: Options, fork: Lineage | None) -> Frozen:
        """Everything beside plan and inputs that a run must not look up again later."""
        before = fork.roles if fork is not None else {}
        backend = options.backend or ("scripted" if options.script is not None else "model")

        def find(name: str) -> Role | None:
            return before.get(name) or self._roles().find(name)

        return Frozen(
            roles=with_stages(freeze_roles(plan, find), find),
            backend=backend,
            model=options.model,
            default_model=fork.default_model if fork is not None else None,
            fast_model=self.config.text("workflows.model"),
            instructions=self._instructions() if backend == "model" else None,
            script=options.script,
            script_file=options.script_file,
            permission=options.permission,
            unsafe=options.unsafe_no_sandbox,
            forked_from=fork.run_id if fork is not None else None,
            reused=fork.kept if fork is not None else {},
        )

    def _instructions(self) -> str:
        from fanfold.agents.instructions import project_instructions

        wanted = self.config.switch("agents.project_instructions")
        return project_instructions(str(self.folder)) if wanted else ""

    def find_role(self, name: str) -> Role | None:
        """A role of this project as it is now."""
        return self._roles().find(name)

    def host(self, tree: RunTree, *, leave_when_waiting: bool = True) -> Host:
        """What drives a tree this process owns."""
        performer = self._performer(tree.root.id, self.frozen(tree))
        return Host(tree, performer, leave_when_waiting=leave_when_waiting)

    def own(self, root: str) -> RunTree:
        """Take a run tree over. Raises `LeaseHeld` while its owner lives."""
        lease = self.store.acquire(root)
        try:
            tree = RunTree.load(self.store, root, lease)
            frozen = self.frozen(tree)  # stands in the first event, so it is known only now
            tree.answers.reuse = self._performer(root, frozen).reuse
            tree.forked_from = frozen.forked_from
            if tree.root.status not in RUN_TERMINAL:
                self._clear_up(tree)
        except BaseException:
            self.store.release(lease)
            raise
        return tree

    def _clear_up(self, tree: RunTree) -> None:
        """End what an owner that died left running, and finish or undo what it was merging."""
        from fanfold.sessions.processes import sweep_stragglers

        sweep_stragglers(_sessions(tree))
        self.isolation.recover()

    def done(self, tree: RunTree) -> Path | None:
        """Give the lease back and write the files people read."""
        self.let_go(tree)
        try:
            return write_mirror(tree, self.runs_folder)
        except OSError:
            return None  # the log has everything; the files are made again when somebody asks

    def let_go(self, tree: RunTree) -> None:
        """Give the lease back without a word: also after a fault, when memory may be ahead of the log."""
        self._performers.pop(tree.root.id, None)
        if tree.lease is not None:
            self.store.release(tree.lease)

    @property
    def runs_folder(self) -> Path:
        return self.folder / ".fanfold" / "runs"

    def frozen(self, tree: RunTree) -> Frozen:
        return from_json(tree.blobs.get(tree.memory.frozen)) if tree.memory.frozen is not None else Frozen()

    def _performer(self, root: str, frozen: Frozen) -> Performer:
        performer = self._performers.get(root)
        if performer is None:
            programs = Programs(self.isolation, unsafe=frozen.unsafe)
            performer = Performer(
                self.store,
                self._supervise(self.store, frozen, self.means(programs, frozen.permission)),
                frozen,
                str(self.folder),
                self._handlers.find,
                self.isolation,
                programs,
            )
            self._performers[root] = performer
        return performer

    def means(self, programs: Programs, permission: str) -> Means:
        """What agents of this project have to work with."""
        memory = self.folder / ".fanfold"
        return Means(self.store, memory, programs, permission, lambda: self.asker)

    def settings(self, plan: Plan, options: Options) -> Settings:
        """Flags, then the recipe, then configuration."""
        limits, config = plan.limits, self.config
        budget = limits.budget
        return Settings(
            max_concurrency=options.max_concurrency
            or limits.max_concurrency
            or config.integer("workflows.max_concurrent"),
            max_agents=options.max_agents or limits.max_agents or config.integer("workflows.max_agents"),
            max_steps=limits.max_steps or 1_000,
            timeout_ms=options.timeout_ms or limits.timeout_ms or config.integer("workflows.timeout_ms"),
            budget_tokens=options.budget_tokens if options.budget_tokens is not None else budget.tokens,
            budget_micro_usd=options.budget_micro_usd
            if options.budget_micro_usd is not None
            else budget.micro_usd,
        )

    def _check_enabled(self) -> None:
        if not self.config.switch("workflows.enabled"):
            origin = self.config.origins["workflows.enabled"]
            raise AuthorError(
                "workflows.off",
                f"workflows are switched off ({origin})",
                hint="set FANFOLD_WORKFLOWS=on",
                exit_status=4,
            )

    # Looking

    def resolve(self, run: str) -> RunHead:
        """A run by id, unique prefix, or `last`."""
        head = self.store.head(self.store.resolve(run))
        if head is None:
            raise NotFoundError("run.not_found", f"there is no run {run}", hint="fanfold runs")
        return head

    def view(self, root: str) -> RunTree:
        """A reader's copy of a tree as its log is now."""
        return RunTree.load(self.store, root)

    # Asking

    def ask(self, head: RunHead, kind: str, data: dict[str, Any]) -> int:
        """Leave a request and wake the owner, if there is one."""
        request = Request(root=head.root_run_id, run_id=head.run_id, kind=kind, data=data, at=now_ms())
        return self.store.request(request)

    def answer(self, head: RunHead, path: str, decision: str, comment: str | None, edited: JSON) -> int:
        """Answer an approval; checked now against the log, acted on by the run's owner. The request's id."""
        tree = self.view(head.root_run_id)
        full = tree.state.runs[head.run_id].tree_path(path)
        node = find_approval(tree.state, full)
        check_choice(node, decision)
        data = {
            "path": full,
            "decision": decision,
            "by": this_person(),
            "comment": comment,
            "edited": edited,
        }
        return self.ask(head, "answer", data)

    def has_owner(self, root: str) -> bool:
        found = self.store.owner(root)
        return found is not None and found[1]


def raised(
    max_agents: int | None, tokens: int | None, micro_usd: int | None, max_steps: int | None = None
) -> Raised | None:
    """New limits for a resume, or None when nothing was raised."""
    if max_agents is None and tokens is None and micro_usd is None and max_steps is None:
        return None
    return Raised(
        max_agents=max_agents, max_steps=max_steps, budget_tokens=tokens, budget_micro_usd=micro_usd
    )


def _no_backend(name: str, *, named: bool) -> AuthorError:
    if named and name != "model":
        return AuthorError(
            "backend.unknown",
            f'there is no agent back end "{name}"',
            hint="--script FILE gives scripted agents",
        )
    return AuthorError(
        "provider.none",
        "no model is configured for the agents of this recipe",
        hint="this version runs scripted agents: --script FILE",
    )


def _check_sandbox(plan: Plan, options: Options) -> None:
    """Commands that could not be confined are refused before anything began."""
    if any(isinstance(step.action, CommandAction) for step in all_steps_below(plan)):
        from fanfold.workspace.sandbox.start import choose_level, detect

        choose_level(detect(), unsafe=options.unsafe_no_sandbox)


def _sessions(tree: RunTree) -> list[str]:
    found = [session_id(n.run.id, n.path, n.attempt) for n in tree.state.in_flight.values()]
    return [one for session in found for one in (session, *settling_ids(session))]
