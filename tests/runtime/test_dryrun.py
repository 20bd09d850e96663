"""The dry run: waves, conflicts, critical path and bounds, and that the scheduler would agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.engine.dry_run import DryRun, ForeseenConflict, dry_run
from fanfold.kernel.events import Settings
from fanfold.kernel.paths import matches, overlaps
from fanfold.kernel.plan import (
    Constant,
    GroupAction,
    Input,
    Plan,
    Ref,
    Repeat,
    RetryPolicy,
    Step,
    WorkflowAction,
)
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, CommandBody
from tests.sampling import examples
from tests.work import count_calls


def agent(id: str, *deps: str, **more: Any) -> Step:
    if "write_set" in more:
        more.setdefault("posture", "writer")
        more.setdefault("workspace_mode", "isolated")
    return Step(id=id, action=AgentBody(prompt=id).action(), depends_on=deps, **more)


def group(id: str, *steps: Step, deps: tuple[str, ...] = (), cap: int | None = None, **more: Any) -> Step:
    return Step(id=id, action=GroupAction(steps=steps, max_concurrency=cap), depends_on=deps, **more)


def predict(*steps: Step, inputs: dict[str, Any] | None = None, slots: int = 4, **plan: Any) -> DryRun:
    limits = plan.pop("settings", {})
    return dry_run(
        Plan(name="p", steps=steps, **plan), inputs or {}, Settings(max_concurrency=slots, **limits)
    )[0]


# Waves


def test_steps_start_as_soon_as_what_they_need_has_ended():
    result = predict(agent("a"), agent("b"), agent("c", "a"), agent("d", "c", "b"))
    assert result.waves == [["a", "b"], ["c"], ["d"]]
    assert result.critical_path == ["a", "c", "d"]


def test_a_step_may_depend_on_one_declared_later():
    assert predict(agent("late", "early"), agent("early")).waves == [["early"], ["late"]]


def test_slots_limit_a_wave_and_approvals_take_none():
    approval = Step(id="ok", action=ApprovalBody(approve="?").action())
    result = predict(agent("a"), agent("b"), agent("c"), approval, slots=2)
    assert result.waves == [["ok", "a", "b"], ["c"]]
    assert result.warnings == ["assumes approval of: ok"]


def test_a_known_list_gives_its_instances_and_an_unknown_one_a_representative():
    steps = (
        agent("one", for_each="inputs.files"),
        agent("two", "one", for_each="steps.one.output"),
        agent("three", "two"),
    )
    result = predict(*steps, inputs={"files": ["x", "y"]})
    assert result.waves == [["one[0]", "one[1]"], ["two[*]"], ["three"]]
    assert result.warnings[-1] == "lists that are known only during the run are shown with one item: two"
    assert result.would_run


def test_items_of_a_group_flow_through_it_without_a_barrier():
    inner = (agent("x"), agent("y", "x"))
    result = predict(group("g", *inner, for_each="[1, 2, 3]"), agent("end", "g"), slots=2)
    assert result.waves == [
        ["g[0]/x", "g[1]/x"],
        ["g[0]/y", "g[1]/y"],
        ["g[2]/x"],
        ["g[2]/y"],
        ["end"],
    ]


def test_a_loop_shows_its_first_iteration_and_its_fold_comes_last():
    loop = group("fix", agent("apply"), repeat=Repeat("output == 'ok'", 3), fold=agent("fold"))
    result = predict(loop, agent("end", "fix"))
    assert result.waves == [["fix#1/apply"], ["fix/fold"], ["end"]]
    assert (result.agents.min, result.agents.max) == (3, 3 * 2 + 2 + 2)
    assert "shown with one iteration: fix" in result.warnings[0]


def test_a_gate_that_needs_no_result_is_decided():
    loop = agent("fix", repeat=Repeat("iteration == 2", 5))
    result = predict(loop)
    assert (result.waves, result.critical_path) == ([["fix#1"], ["fix#2"]], ["fix#1", "fix#2"])
    assert (result.agents.min, result.agents.max, result.warnings) == (2, 4, [])
    never = predict(agent("fix", repeat=Repeat("false", 2)), agent("end", "fix"))
    assert never.waves == [["fix#1"], ["fix#2"]]
    assert not never.would_run
    assert never.warnings == ['"fix" would fail: fix did not pass its gate in 2 iterations']


def test_a_scope_with_its_own_concurrency_keeps_to_it():
    result = predict(group("g", agent("a"), agent("b"), agent("c"), cap=1), agent("other"))
    assert result.waves == [["g/a", "other"], ["g/b"], ["g/c"]]


def test_sub_workflows_are_opened_with_their_tree_paths():
    child = Plan(
        name="c", steps=(agent("up", for_each="inputs.list"),), inputs=(Input("list"), Input("other"))
    )
    call = Step(
        id="kids",
        action=WorkflowAction(workflow="c@1"),
        for_each="inputs.lists",
        inputs={"list": Ref("item"), "other": Constant(1)},
    )
    result = predict(call, inputs={"lists": [["a", "b"], []]}, workflows={"c@1": child})
    assert result.waves == [["kids[0]/up[0]", "kids[0]/up[1]"]]
    assert result.agents.min == 2


def test_a_child_s_input_that_is_not_known_yet_is_not_guessed():
    child = Plan(name="c", steps=(agent("up", for_each="inputs.list"),), inputs=(Input("list"),))
    call = Step(
        id="kid",
        action=WorkflowAction(workflow="c"),
        inputs={"list": Ref("steps.a.output")},
        depends_on=("a",),
    )
    assert predict(agent("a"), call, workflows={"c": child}).waves == [["a"], ["kid/up[*]"]]


@pytest.mark.parametrize(("value", "waves"), [(True, [["a"], ["b"]]), (False, [["b"]])])
def test_a_condition_on_inputs_alone_is_decided(value, waves):
    result = predict(agent("a", when="inputs.deep"), agent("b", "a"), inputs={"deep": value})
    assert result.waves == waves


@pytest.mark.parametrize(
    ("when", "starts"),
    [
        ("inputs.deep && steps.a.output == 'x'", False),  # false whatever the step gives
        ("inputs.deep || steps.a.output == 'x'", True),
        ("has(inputs.missing)", True),
        ("steps.skipped.output == null", True),
        ("steps.skipped.output != null", False),
    ],
)
def test_a_condition_is_decided_as_far_as_values_are_known(when, starts):
    skipped = agent("skipped", when="false")
    result = predict(
        agent("a"), skipped, agent("b", "a", "skipped", when=when), inputs={"deep": False}, slots=9
    )
    assert result.waves == ([["a"], ["b"]] if starts else [["a"]])
    assumed = "conditions that are known only during the run are taken as true: b"
    assert (assumed in result.warnings) == (
        when in ("has(inputs.missing)", "inputs.deep || steps.a.output == 'x'")
    )


def test_an_expression_that_fails_whatever_the_values_fails_its_step_and_skips_what_depends_on_it():
    result = predict(agent("a", when="1 / 0 == 1"), agent("b", "a"), agent("c"))
    assert result.waves == [["c"]]
    assert (result.would_run, result.agents.min) == (False, 1)
    assert result.warnings[0].startswith('"a" would fail: ')


def test_a_child_run_that_would_refuse_its_inputs_fails_its_step():
    child = Plan(name="c", steps=(agent("up"),), inputs=(Input("n", type="integer"),))
    call = Step(id="kid", action=WorkflowAction(workflow="c"), inputs={"n": Constant("two")})
    result = predict(call, workflows={"c": child})
    assert (result.waves, result.would_run) == ([], False)
    assert 'input "n" must be an integer' in result.warnings[0]


def test_without_inputs_what_hangs_on_them_is_assumed():
    steps = (agent("each", for_each="inputs.files"), agent("b", when="inputs.deep"))
    result = predict(*steps)
    assert result.waves == [["each[*]", "b"]]
    assert (result.agents.min, result.agents.expected, result.agents.max) == (0, 6, 64)


def test_an_empty_list_leaves_nothing_and_delays_no_step():
    result = predict(agent("a", for_each="inputs.none"), agent("b", "a"), inputs={"none": []})
    assert (result.waves, result.critical_path) == ([["b"]], ["b"])


def test_a_plan_in_which_nothing_starts_is_still_a_prediction():
    result = predict(agent("a", when="false"))
    assert (result.waves, result.critical_path, result.agents.max, result.cost.usd_max) == ([], [], 0, 0.0)


# Conflicts


def conflicts(*steps: Step) -> list[tuple[str, str, str]]:
    return [(c.a, c.b, c.on) for c in predict(*steps).conflicts]


def test_writers_of_overlapping_sets_conflict_whatever_their_workspace():
    for mode in ("shared", "isolated"):
        pair = (agent("a", write_set=("src/**",), workspace_mode=mode), agent("b", write_set=("src/x.py",)))
        assert conflicts(*pair)[0] == ("a", "b", "src/x.py")
        assert predict(*pair).waves == [["a"], ["b"]]


def test_writers_of_separate_sets_and_isolated_writers_beside_readers_do_not():
    assert conflicts(agent("a", write_set=("src/**",)), agent("b", write_set=("docs/**",)), agent("c")) == []


def test_a_shared_writer_conflicts_with_readers_of_its_files():
    writer = agent("w", write_set=("src/**",), workspace_mode="shared")
    reads_it, reads_other = agent("r", read_set=("src/a.py",)), agent("o", read_set=("docs/**",))
    assert conflicts(writer, reads_it, reads_other) == [("w", "r", "src/a.py")]
    assert predict(writer, reads_it, reads_other).waves == [["w", "o"], ["r"]]


def test_a_writer_reads_too():
    shared = agent("w", write_set=("src/**",), workspace_mode="shared")
    other = agent("x", write_set=("docs/**",), read_set=("src/**",))
    assert [(a, b) for a, b, _ in conflicts(shared, other)] == [("w", "x")]


def test_steps_that_an_edge_orders_are_no_conflict():
    assert conflicts(agent("a", write_set=("x",)), agent("b", "a"), agent("c", "b", write_set=("x",))) == []


def test_path_sets_are_filled_in_per_item():
    step = agent("a", for_each="inputs.dirs", write_set=("{{item}}/**",), templated_sets=True)
    result = predict(step, inputs={"dirs": ["p", "q", "p/sub"]})
    assert [(c.a, c.b) for c in result.conflicts] == [("a[0]", "a[2]")]
    assert result.waves == [["a[0]", "a[1]"], ["a[2]"]]


def test_a_set_whose_item_is_not_known_may_be_any_path():
    sets = ("src/{{item}}/**", "docs/{{item}}.md")
    each = agent("each", "a", for_each="steps.a.output", write_set=sets, templated_sets=True)
    others = (agent("s", "a", write_set=("src/x",)), agent("d", "a", write_set=("docs/x/y",)))
    assert [(c.a, c.b) for c in predict(agent("a"), each, *others).conflicts] == [("each[*]", "s")]


def test_an_item_that_leads_out_of_the_workspace_would_fail():
    step = agent("a", for_each="inputs.dirs", write_set=("{{item}}/**",), templated_sets=True)
    result = predict(step, inputs={"dirs": ["../up"]})
    assert not result.would_run
    assert "would fail" in result.warnings[0]


def test_all_conflicts_are_counted_and_a_thousand_listed():
    result = predict(*(agent(f"s{i}", write_set=("x",)) for i in range(60)))
    assert (len(result.conflicts), result.conflicts_total) == (1_000, 60 * 59 // 2)
    assert result.conflicts[0] == ForeseenConflict("s0", "s1", "x")


def test_an_older_step_that_waits_is_not_overtaken_for_ever():
    """`big` is parked behind `a`; `b2`, ready later, must not slip in before it."""
    steps = (
        agent("a", write_set=("a/**",)),
        agent("b1", write_set=("b/**",)),
        agent("b2", "b1", write_set=("b/**",)),
        agent("big", write_set=("**/*",)),
    )
    assert predict(*steps).waves == [["a", "b1"], ["big"], ["b2"]]


# Bounds


@pytest.mark.parametrize(
    ("step", "low", "high"),
    [
        (agent("a"), 1, 2),
        (agent("a", retry=RetryPolicy(attempts=1)), 1, 1),
        (agent("a", retry=RetryPolicy(attempts=5)), 1, 5),
        (agent("a", when="steps.x.output"), 0, 2),
        (agent("a", cache=True), 0, 2),
        (agent("a", for_each="[1, 2, 3]"), 3, 6),
        (agent("a", for_each="steps.x.output", max_items=10), 0, 20),
        (agent("a", repeat=Repeat("x", 4)), 1, 8),
        (group("g", agent("a"), agent("b"), for_each="[1, 2]", repeat=Repeat("x", 3)), 4, 24),
        (Step(id="c", action=CommandBody(run=("true",)).action()), 0, 0),
    ],
)
def test_agents_are_bounded_over_conditions_items_iterations_and_retries(step, low, high):
    agents = predict(step).agents
    assert (agents.min, agents.max) == (low, high)


def test_limits_that_would_stop_the_run_are_reported():
    many = agent("a", for_each="inputs.n", max_items=500)
    result = predict(many, inputs={"n": list(range(70))})
    assert not result.would_run
    assert "max_agents is 64" in result.warnings[0]
    could = predict(*(agent(f"s{i}") for i in range(40)))
    assert could.would_run
    assert "may need more agents than max_agents (64)" in could.warnings[0]


def test_the_step_at_which_a_limit_pauses_the_run_is_shown_with_the_rest():
    five = tuple(agent(f"s{i}") for i in range(5))
    agents = predict(*five, slots=2, settings={"max_agents": 4})
    assert agents.waves == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    assert agents.warnings == ["needs at least 5 agents, but max_agents is 4: it would pause after wave 2"]
    assert not agents.would_run
    unsure = predict(*five, agent("x", "s0", when="steps.s0.output == 'y'"), settings={"max_agents": 5})
    assert unsure.warnings[0] == "may need more agents than max_agents (5): it would pause after wave 2"
    assert unsure.would_run
    tokens = predict(*five, slots=1, settings={"budget_tokens": 9_000})
    assert "it would pause after wave 2 for its budget" in tokens.warnings[0]
    assert tokens.would_run
    steps = predict(group("g", *five), settings={"max_steps": 3})
    assert steps.warnings[0].startswith(
        "has more step instances than max_steps allows (3): it would pause before"
    )
    assert not steps.would_run
    phase = Step(id="p", action=GroupAction(steps=five, max_agents=2))
    assert "its own max_agents: it would pause after wave 1" in predict(phase).warnings[0]


def test_a_list_longer_than_allowed_would_fail():
    result = predict(agent("a", for_each="inputs.n", max_items=2), inputs={"n": [1, 2, 3]})
    assert not result.would_run


def test_cost_is_bounded_by_the_budget():
    assert predict(agent("a"), settings={"budget_micro_usd": 2_500_000}).cost.usd_max == 2.5
    assert predict(agent("a")).cost.usd_max is None


@pytest.mark.full
@pytest.mark.parametrize("sets", [("d/{{item}}",), ("d/**",), ("d/{{item}}/**", "CHANGELOG.md")])
def test_each_of_thousands_of_items_is_as_much_work_to_predict_as_each_of_hundreds(sets):
    """Also when each of them conflicts with all the others."""
    many = agent("a", for_each="inputs.n", max_items=10_000, write_set=sets, templated_sets=True)
    roomy = {"max_steps": 100_000, "max_agents": 100_000}

    def predicted(count: int) -> DryRun:
        return predict(many, inputs={"n": [f"f{i}" for i in range(count)]}, slots=16, settings=roomy)

    few, more = (count_calls(predicted, count) for count in (500, 2_000))
    assert more < 6 * few
    result = predicted(4_000)
    assert sum(map(len, result.waves)) == 4_000
    assert (result.agents.min, result.agents.max, result.warnings) == (4_000, 8_000, [])


@pytest.mark.full
def test_a_plan_too_large_for_a_forecast_is_reported_and_bounded():
    pair = group("g", agent("x"), agent("y", "x"), for_each="inputs.n", max_items=10_000)
    roomy = {"max_steps": 100_000, "max_agents": 100_000}
    result = predict(pair, inputs={"n": list(range(10_000))}, settings=roomy)
    assert result.warnings == ["only the first 20,000 step instances were looked into"]
    assert result.waves
    assert (result.agents.max, result.would_run) == (40_000, True)


# The rules hold for any plan

SETS = [("src/**",), ("src/a.py",), ("docs/*",), ("docs/x", "src/b.py"), ("**/*",)]


@st.composite
def flat_plans(draw: st.DrawFn) -> tuple[Step, ...]:
    steps: list[Step] = []
    for i in range(draw(st.integers(1, 10))):
        earlier = [step.id for step in steps]
        deps = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        more: dict[str, Any] = {"read_set": draw(st.sampled_from(SETS))}
        if draw(st.booleans()):
            more["write_set"] = draw(st.sampled_from(SETS))
            more["workspace_mode"] = draw(st.sampled_from(["shared", "isolated"]))
        steps.append(agent(f"s{i}", *sorted(deps), **more))
    return tuple(steps)


def clash(a: Step, b: Step) -> bool:
    """The rule, written the slow and obvious way."""
    if a.write_set and b.write_set and overlaps(a.write_set, b.write_set):
        return True
    return any(
        w.write_set and w.workspace_mode == "shared" and overlaps(w.write_set, r.read_set)
        for w, r in ((a, b), (b, a))
    )


@pytest.mark.full
@settings(max_examples=examples(400))
@given(flat_plans(), st.integers(1, 4))
def test_waves_keep_the_rules_and_omit_no_step_without_a_reason(steps: tuple[Step, ...], slots: int):
    result = predict(*steps, slots=slots)
    by_id = {step.id: step for step in steps}
    ready_at: dict[str, tuple[int, int]] = {}
    before: list[str] = []
    done: set[str] = set()
    for tick, wave in enumerate(result.waves):
        ready = [s.id for s in steps if s.id not in done and set(s.depends_on) <= done]
        for name in ready:
            # Each end of the wave before is a decision of its own, in the order of their starts.
            ends = [before.index(need) for need in by_id[name].depends_on if need in before]
            ready_at.setdefault(name, (tick, max(ends, default=-1)))
        assert wave
        assert len(wave) <= slots
        assert set(wave) <= set(ready)
        assert not any(clash(by_id[a], by_id[b]) for i, a in enumerate(wave) for b in wave[:i])
        for name in ready:
            older = [other for other in ready if ready_at[other] < ready_at[name] and other not in wave]
            blockers = [other for other in (*wave, *older) if other != name]
            assert name in wave or len(wave) == slots or any(clash(by_id[name], by_id[b]) for b in blockers)
        done.update(wave)
        before = wave
    assert sorted(name for wave in result.waves for name in wave) == sorted(by_id)


@pytest.mark.full
@settings(max_examples=examples(400))
@given(flat_plans())
def test_conflicts_are_exactly_the_unordered_pairs_that_clash(steps: tuple[Step, ...]):
    above: dict[str, set[str]] = {}
    for step in steps:  # declared after what they need
        above[step.id] = {x for need in step.depends_on for x in (need, *above[need])}
    expected = [
        (a.id, b.id)
        for i, a in enumerate(steps)
        for b in steps[i + 1 :]
        if a.id not in above[b.id] and clash(a, b)
    ]
    result = predict(*steps)
    assert [(c.a, c.b) for c in result.conflicts] == expected
    assert result.conflicts_total == len(expected)
    for conflict in result.conflicts:
        a, b = (next(s for s in steps if s.id == name) for name in (conflict.a, conflict.b))
        assert any(matches(s, conflict.on) for s in (a.write_set, b.write_set) if s)
        assert all(
            matches(s.write_set or s.read_set, conflict.on) or matches(s.read_set, conflict.on)
            for s in (a, b)
        )


@settings(max_examples=examples(200))
@given(flat_plans())
def test_with_room_for_all_and_no_conflict_a_run_is_as_long_as_its_critical_path(steps: tuple[Step, ...]):
    readers = tuple(agent(step.id, *step.depends_on) for step in steps)
    result = predict(*readers, slots=100)
    assert len(result.waves) == len(result.critical_path)
    assert all(name in wave for name, wave in zip(result.critical_path, result.waves, strict=True))
