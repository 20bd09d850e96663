"""Sub-workflows of steps that only read: nothing in them writes, however deep, whoever else calls them."""

import pytest

INNER = "name: inner\nsteps:\n  - {id: do, agent: worker, prompt: x}\n"
OUTER = "name: outer\nsteps:\n  - {id: in, workflow: ./inner.yaml}\n"
TASK = "{id: k, workflow: ./outer.yaml}"
CALLS = {
    "the step itself": "steps:\n  - {id: k, workflow: ./outer.yaml, posture: read_only}\n",
    "a group around it": f"steps:\n  - {{id: g, posture: read_only, steps: [{TASK}]}}\n",
    "a phase that understands": f"phases:\n  - {{id: p, kind: understand, tasks: [{TASK}]}}\n",
    "a step above a phase": "steps:\n  - {id: k, workflow: ./phased.yaml, posture: read_only}\n",
}


@pytest.fixture
def recipes(project):
    (project / "inner.yaml").write_text(INNER)
    (project / "outer.yaml").write_text(OUTER)
    (project / "phased.yaml").write_text(
        "name: phased\nphases:\n  - {id: p, kind: execute, tasks: [{id: in, workflow: ./inner.yaml}]}\n"
    )
    (project / "s.yaml").write_text("default: {output: done, writes: {f.txt: x}}\n")
    return project


@pytest.mark.parametrize("who", CALLS)
def test_read_only_operations_call_no_writing_code(recipes, fanfold, who):
    (recipes / "r.yaml").write_text(f"name: r\n{CALLS[who]}")
    assert "writes" not in fanfold("run", "r.yaml", "--script", "s.yaml", "--dry-run").out
    done = fanfold("run", "r.yaml", "--script", "s.yaml", "--json")  # and nobody has to permit a thing
    assert done.json()["status"] in ("failed", "partial"), done.out
    assert "may only read" in done.out
    assert not (recipes / "f.txt").exists()
    assert fanfold("verify", "--all").status == 0


@pytest.mark.full
def test_one_file_is_called_to_read_and_to_write(recipes, fanfold):
    (recipes / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: reads, workflow: ./outer.yaml, posture: read_only}\n"
        "  - {id: writes, workflow: ./outer.yaml}\n"
    )
    (recipes / "s.yaml").write_text(
        "steps: {reads/in/do: seen, writes/in/do: {output: x, writes: {f.txt: x}}}\n"
    )
    done = fanfold("run", "r.yaml", "--script", "s.yaml", "--yes", "--json").json()
    assert done["status"] == "completed", done
    assert (recipes / "f.txt").read_text() == "x"


def test_a_call_that_reads_and_writes_needs_one_permission(recipes, fanfold):
    (recipes / "inner.yaml").write_text(INNER + "  - {id: try, run: [make]}\n")
    (recipes / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: reads, workflow: ./inner.yaml, posture: read_only}\n"
        "  - {id: writes, workflow: ./inner.yaml}\n"
    )
    refused = fanfold("run", "r.yaml", "--script", "s.yaml")
    assert "needs permission: inner: try runs: make; inner: do writes **/*\n" in refused.err


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ("agent: worker, prompt: x, write_set: [a]", "has a write_set"),
        ("agent: worker, prompt: x, merge: discard", 'inner.yaml:3: "merge" is for writers'),
        ("deliver: {branch: b, message: m}", "inner.yaml:3: a deliver step changes a repository"),
    ],
)
def test_a_write_only_call_is_refused_for_reading(recipes, fanfold, inside, why):
    (recipes / "inner.yaml").write_text(f"name: inner\nsteps:\n  - {{id: do, {inside}}}\n")
    (recipes / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: k, workflow: ./outer.yaml, posture: read_only}\n"
    )
    (found,) = fanfold("check", "r.yaml", "--json").json()["diagnostics"]
    assert (found["code"], found["file"]) == ("recipe.conflicting_keys", "r.yaml")
    assert found["range"]["start"] == {"line": 3, "column": 46}
    assert why in found["message"]
