"""`fanfold runs` finds runs by recipe, status, time, and words in inputs and errors."""

from __future__ import annotations

import pytest

from tools.screen import Screen

ONE_STEP = "steps: [{id: a, agent: explorer, prompt: x}]\n"
RECIPES = {
    "greet": "name: greet\ninputs: [{name: who, default: owls}]\n" + ONE_STEP,
    "break": "name: break\n" + ONE_STEP.replace("id: a", "id: b"),
}
SCRIPT = "{default: ok, steps: {b: {fail: {class: agent, message: the parser gave up}}}}\n"


@pytest.fixture
def runs(fanfold, project):
    for name, text in RECIPES.items():
        (project / f"{name}.yaml").write_text(text)
    (project / "script.yaml").write_text(SCRIPT)
    fanfold("run", "greet.yaml", "-i", "who=penguins", "--script", "script.yaml")
    fanfold("run", "greet.yaml", "--script", "script.yaml")
    fanfold("run", "break.yaml", "--script", "script.yaml")

    def found(*options):
        return [(one["recipe"], one["inputs"]) for one in fanfold("runs", "--json", *options).json()]

    return found


def test_runs_are_found_by_each_filter_and_by_all_together(runs):
    assert runs() == [("break", ""), ("greet", "who=owls"), ("greet", "who=penguins")]
    assert runs("--recipe", "greet", "--limit", "1") == [("greet", "who=owls")]
    assert runs("--status", "failed") == [("break", "")]
    assert runs("--grep", "penguins") == [("greet", "who=penguins")]
    assert runs("--grep", "PARSER gave") == [("break", "")], "words of the error, in any case"
    assert runs("--since", "1h", "--grep", "owls", "--recipe", "greet", "--status", "completed")
    assert runs("--since", "2999-01-01") == []


def test_scripted_runs_are_marked_and_no_match_is_reported(runs, fanfold):
    assert runs("--grep", "nothing like it") == []
    assert fanfold("runs").out.count("scripted") == 3
    assert fanfold("runs", "--grep", "nothing like it").out == "no run matches\n"


def test_a_time_that_is_none_is_refused_with_examples(runs, fanfold):
    refused = fanfold("runs", "--since", "yesterday-ish")
    assert refused.status == 2
    assert "usage.bad_time" in refused.err
    assert "12h" in refused.err
    assert fanfold("runs", "--all", "--grep", "x").status == 2


@pytest.mark.full
def test_on_a_narrow_terminal_the_price_of_a_run_is_not_cut(fanfold, project):
    (project / "a-recipe-with-a-long-name.yaml").write_text(f"name: a-recipe-with-a-long-name\n{ONE_STEP}")
    answer = "{output: ok, usage: {input_tokens: 24000, output_tokens: 3800, cost_usd: 0.0123}}"
    (project / "script.yaml").write_text(f"default: {answer}\n")
    fanfold("run", "a-recipe-with-a-long-name.yaml", "--script", "script.yaml")
    assert "scripted, 1 agent, 27,800 tokens, $0.0123" in fanfold("runs").out
    screen = Screen(80, 24, project, "runs")
    try:
        [row] = [row for row in screen.until("$0.0123") if "a-recipe" in row]
        assert row.endswith("$0.0123"), row
    finally:
        screen.close()
