"""Pictures of plans: every step is in them, nothing overlaps, nothing a recipe says becomes markup."""

import random
from collections.abc import Iterable
from itertools import combinations
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from fanfold.api.graph import Box, Boxes, Drawing, draw, draw_boxes, label, mermaid, svg
from fanfold.api.graph_layout import place
from fanfold.kernel.plan import GroupAction, Plan, Repeat, Step
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, CommandBody
from tests.work import count_calls

SVG = "{http://www.w3.org/2000/svg}"


def agent(id: str, *deps: str, **more: Any) -> Step:
    return Step(id=id, action=AgentBody(agent="explorer", prompt="x").action(), depends_on=deps, **more)


def group(id: str, *steps: Step, deps: tuple[str, ...] = (), **more: Any) -> Step:
    return Step(id=id, action=GroupAction(steps=steps), depends_on=deps, **more)


def random_plan(seed: int, count: int, reach: int = 20) -> Plan:
    dice = random.Random(seed)
    steps = []
    for i in range(count):
        deps = {f"s{dice.randrange(max(0, i - reach), i)}" for _ in range(dice.randrange(3))} if i else set()
        steps.append(agent(f"s{i}", *sorted(deps)))
    return Plan(name="p", steps=tuple(steps))


EXAMPLE = Plan(
    name="example",
    description="Shows <everything> & more",
    steps=(
        agent("late", "loop", "ask"),
        agent("first", for_each="inputs.x"),
        group(
            "loop",
            agent("in"),
            group("deep", agent("er"), deps=("in",)),
            deps=("first",),
            repeat=Repeat("x", 3),
        ),
        Step(id="ask", action=ApprovalBody(approve="?").action(), depends_on=("first",)),
        Step(id="cmd", action=CommandBody(run=("git", "diff", "<x>")).action(), posture="writer"),
    ),
)


def overlapping(drawing: Drawing) -> list[tuple[str, str]]:
    found = []
    for a, b in combinations(drawing.nodes, 2):
        if a.path.startswith(f"{b.path}/") or b.path.startswith(f"{a.path}/"):
            continue
        across = a.x < b.x + b.w and b.x < a.x + a.w
        if across and a.y < b.y + b.h and b.y < a.y + a.h:
            found.append((a.path, b.path))
    return found


@pytest.mark.parametrize("plan", [EXAMPLE, *(random_plan(seed, 60) for seed in range(5))], ids=str)
def test_no_two_boxes_overlap_and_inner_ones_lie_inside(plan):
    drawing = draw(plan)
    assert overlapping(drawing) == []
    boxes = {node.path: node for node in drawing.nodes}
    for path, inner in boxes.items():
        outer = boxes.get(path.rpartition("/")[0])
        if outer is not None:
            assert outer.x < inner.x
            assert outer.y < inner.y
            assert inner.x + inner.w < outer.x + outer.w
            assert inner.y + inner.h < outer.y + outer.h
    for node in drawing.nodes:
        assert 0 <= node.x <= node.x + node.w <= drawing.width + 0.1
        assert 0 <= node.y <= node.y + node.h <= drawing.height + 0.1


@pytest.mark.parametrize("plan", [EXAMPLE, random_plan(7, 80)], ids=str)
def test_every_edge_points_from_left_to_right_between_its_boxes(plan):
    drawing = draw(plan)
    boxes = {node.path: node for node in drawing.nodes}
    for edge in drawing.edges:
        source, target = boxes[edge.source], boxes[edge.target]
        (x0, y0), (x1, y1) = edge.points[0], edge.points[-1]
        assert x0 == pytest.approx(source.x + source.w, abs=0.2)
        assert x1 == pytest.approx(target.x, abs=0.2)
        assert source.y < y0 < source.y + source.h
        assert target.y < y1 < target.y + target.h
        assert [x for x, _ in edge.points] == sorted(x for x, _ in edge.points)


def test_an_edge_that_a_longer_way_implies_is_left_out():
    plan = Plan(name="p", steps=(agent("a"), agent("b", "a"), agent("c", "a", "b")))
    assert [(edge.source, edge.target) for edge in draw(plan).edges] == [("a", "b"), ("b", "c")]


def test_the_same_plan_gives_the_same_picture():
    assert svg(random_plan(3, 100)) == svg(random_plan(3, 100))


def test_steps_without_edges_stand_in_one_column():
    placed = place(((10.0, 10.0),) * 4, ())
    assert {x for x, _ in placed.at} == {0.0}
    assert place((), ()).at == ()


@pytest.mark.full
@pytest.mark.parametrize("picture", [draw, svg])
@pytest.mark.parametrize("reach", [1, 20, 2_000])
def test_four_times_as_many_steps_are_not_sixteen_times_the_work(reach, picture):
    few, many = (count_calls(picture, random_plan(1, count, reach)) for count in (500, 2_000))
    assert many < 8 * few


def layered_plan(seed: int, layers: int, width: int) -> Plan:
    """Layers whose steps are declared in an order that says nothing about their edges."""
    dice = random.Random(seed)
    steps = []
    for layer in range(layers):
        names = [f"l{layer}n{i}" for i in range(width)]
        for i in dice.sample(range(width), width):
            near = {max(0, min(width - 1, i + dice.choice((-1, 0, 1)))) for _ in range(2)}
            deps = [f"l{layer - 1}n{j}" for j in sorted(near)] if layer else []
            steps.append(agent(names[i], *deps))
    return Plan(name="p", steps=tuple(steps))


def crossings(edges: Iterable[tuple[tuple[float, float], tuple[float, float]]]) -> int:
    """Pairs of straight pieces between the same two columns that cross."""
    count = 0
    for ((ax, ay), (bx, by)), ((cx, cy), (dx, dy)) in combinations(edges, 2):
        if ax < dx and cx < bx and (ay - cy) * (by - dy) < 0:
            count += 1
    return count


@pytest.mark.parametrize("seed", range(3))
def test_edges_cross_far_less_often_than_in_the_order_of_the_recipe(seed):
    plan = layered_plan(seed, 6, 12)
    drawing = draw(plan)
    naive = {step.id: (int(step.id[1]) * 300.0, i * 60.0) for i, step in enumerate(plan.steps)}
    written = [(naive[edge.source], naive[edge.target]) for edge in drawing.edges]
    drawn = [(edge.points[0], edge.points[-1]) for edge in drawing.edges]
    assert crossings(drawn) < crossings(written) / 4


def test_a_long_edge_goes_around_the_boxes_in_its_way():
    plan = Plan(
        name="p", steps=(agent("a"), agent("b", "a"), agent("c", "b"), agent("x", "a"), agent("d", "c", "x"))
    )
    drawing = draw(plan)
    (edge,) = [edge for edge in drawing.edges if (edge.source, edge.target) == ("x", "d")]
    assert len(edge.points) > 2
    for box in (node for node in drawing.nodes if node.path not in ("x", "d")):
        for x, y in edge.points[1:-1]:
            assert not (box.x <= x <= box.x + box.w and box.y < y < box.y + box.h)


def rows_of(drawing: Drawing) -> dict[float, list[str]]:
    rows: dict[float, list[str]] = {}
    for node in sorted(drawing.nodes, key=lambda node: (node.x, node.y)):
        rows.setdefault(node.x, []).append(node.path)
    return rows


def test_steps_that_are_added_leave_the_others_in_their_order():
    dice = random.Random(4)
    needs = [sorted({dice.randrange(i) for _ in range(dice.randrange(3))}) if i else [] for i in range(60)]
    boxes = [Box(path=f"s{i}", label=label(agent(f"s{i}")), kind="step", status="running") for i in range(60)]
    edges = [(before, i) for i, befores in enumerate(needs) for before in befores]

    def first(count: int) -> list[list[str]]:
        known = tuple(edge for edge in edges if edge[1] < count)
        return list(rows_of(draw_boxes(Boxes(tuple(boxes[:count]), known, added_one_by_one=True))).values())

    for count in range(1, 60):
        before, after = first(count), first(count + 1)
        kept = [[path for path in column if path != f"s{count}"] for column in after]
        assert [column for column in kept if column] == before


@pytest.mark.full
def test_a_chain_with_edges_over_all_of_it_does_not_explode():
    def chain(length: int) -> Plan:
        steps = [agent("s0"), *(agent(f"s{i}", f"s{i - 1}") for i in range(1, length))]
        steps += [agent(f"t{i}", "s0") for i in range(length // 6)]
        last = agent("end", f"s{length - 1}", *(f"t{i}" for i in range(length // 6)))
        return Plan(name="p", steps=(*steps, last))

    short, long = (count_calls(draw, chain(length)) for length in (150, 600))
    assert long < 8 * short


HOSTILE = '"><script>alert(1)</script>&\x00\x1b]\n{{x}}'


def test_words_of_a_recipe_are_plain_text_in_the_drawing():
    step = Step(id="a", action=CommandBody(run=(HOSTILE,)).action(), description=HOSTILE)
    plan = Plan(name="p", description=HOSTILE, steps=(step, agent("b")))
    root = ET.fromstring(svg(plan))
    assert root.findall(f".//{SVG}script") == []
    text = mermaid(plan)
    assert "<script" not in text
    assert all(line.startswith(("flowchart", "  ")) for line in text.splitlines())
    assert not any('"' in line.replace('["', "").replace('"]', "") for line in text.splitlines())


def test_the_picture_loads_nothing_and_can_be_heard():
    text = svg(EXAMPLE)
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    labelled = (root.get("aria-labelledby") or "").split()
    assert [element.get("id") for element in root if element.get("id")] == labelled
    said = "".join(root.find(f"{SVG}desc").itertext())  # type: ignore[union-attr]  # its absence fails the test too
    for name in ("late", "first", "loop", "in", "er", "ask", "cmd"):
        assert f"{name}:" in said
    assert "after loop, ask" in said
    assert "href" not in text
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text


def test_mermaid_has_every_step_and_nests_groups():
    text = mermaid(EXAMPLE)
    assert text.count("subgraph") == text.count("\n    end") + text.count("\n  end") == 2
    for name in ("late", "first", "in", "er", "ask", "cmd"):
        assert f'"{name}<br/>' in text
    assert "classDef writer" not in text  # a command is no agent; its frame says command


def test_ids_that_are_words_of_mermaid_are_safe():
    text = mermaid(Plan(name="p", steps=(agent("end"), agent("subgraph", "end"))))
    assert 's0["end<br/>' in text
    assert "s0 --> s1" in text
