"""`fanfold costs`, and prices of the user's own for a server of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import Provider
from tests.provider import Call, RecordedRequest, Reply

TWO = """
name: two
steps:
  - {id: a, agent: explorer, prompt: a, cache: true}
  - {id: b, agent: explorer, prompt: b}
"""
SCRIPT = "default: {output: x, usage: {input_tokens: 1000, output_tokens: 100, cost_usd: 0.01}}\n"


def test_costs_are_summed_by_recipe_run_and_day_with_what_was_reused(project: Path, fanfold) -> None:
    (project / "two.yaml").write_text(TWO)
    (project / "one.yaml").write_text("name: one\nsteps: [{id: a, agent: explorer, prompt: z}]\n")
    (project / "s.yaml").write_text(SCRIPT)
    assert "nothing has run here yet" in fanfold("costs").out
    for recipe in ("two.yaml", "two.yaml", "one.yaml"):
        assert fanfold("run", recipe, "--script", "s.yaml", "--yes").status == 0
    told = fanfold("costs", "--json").json()
    lines = [(one["name"], one["runs"], one["requests"], one["cache_hits"]) for one in told["lines"]]
    assert lines == [("two", 2, 3, 1), ("one", 1, 1, 0)]
    assert (told["total"]["cost_usd"], told["total"]["input_tokens"]) == (0.04, 4_000)
    assert len(fanfold("costs", "--by", "run", "--json").json()["lines"]) == 3
    [day] = fanfold("costs", "--by", "day", "--json").json()["lines"]
    assert (day["runs"], day["requests"]) == (3, 4)
    assert fanfold("costs", "--since", "2099-01-01", "--json").json()["lines"] == []
    rows = fanfold("costs", "--csv").out.splitlines()
    head = "recipe,runs,requests,input_tokens,cached_tokens,output_tokens,cache_hits,cost_usd,unpriced"
    assert rows == [head, "two,2,3,3000,0,300,1,0.030000,0", "one,1,1,1000,0,100,0,0.010000,0"]
    assert "$0.0400" in fanfold("costs", "--since", "7d").out
    assert fanfold("costs", "--csv", "--json").status == 2


def looping(asked: RecordedRequest) -> Reply:
    cached = 500 if asked.turns else 0
    return Reply(
        calls=(Call("list_files", {"glob": f"*.{asked.turns}"}),),
        input_tokens=600,
        cached_tokens=cached,
        output_tokens=50,
    )


@pytest.mark.full
def test_a_budget_in_dollars_binds_on_the_user_s_own_server_at_the_user_s_own_prices(
    project: Path, fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "loop.yaml").write_text("name: loop\nsteps: [{id: a, agent: explorer, prompt: a}]\n")
    with Provider(looping) as provider:
        for name, value in provider.environment.items():
            monkeypatch.setenv(name, value)
        asked = ("run", "loop.yaml", "--model", "openai:homemade", "--budget-usd", "0.01", "--yes", "--json")
        refused = fanfold(*asked)
        assert (refused.status, refused.json()["error"]["code"]) == (5, "budget.unpriced")
        home = tmp_path / "home/.fanfold"
        home.mkdir(parents=True, exist_ok=True)
        prices = '[models.prices]\n"homemade" = { input = 2, output = 10, cached = 0.5 }\n'
        (home / "config.toml").write_text(prices)
        paused = fanfold(*asked)
        assert (paused.status, paused.json()["status"]) == (5, "paused")
        cost = paused.json()["usage"]["cost_usd"]
        assert 0.008 < cost <= 0.011, "at most one request beyond it"
        first, later = 600 * 2 + 50 * 10, 100 * 2 + 500 * 0.5 + 50 * 10
        requests = len(provider.asked)
        assert cost == pytest.approx((first + (requests - 1) * later) / 1e6)
        [line] = fanfold("costs", "--by", "model", "--json").json()["lines"]
        assert (line["name"], line["requests"], line["unpriced"]) == ("openai:homemade", requests, 0)
        assert (line["cached_tokens"], line["cost_usd"]) == (500 * (requests - 1), pytest.approx(cost))
        assert fanfold("verify", "last").status == 0


@pytest.mark.parametrize(
    "given", ["5", "{ input = -1, output = 1 }", "{ input = 1 }", '{ input = "x", output = 1 }']
)
def test_a_price_that_is_none_is_refused_with_what_it_must_be(
    project: Path, fanfold, tmp_path: Path, given: str
) -> None:
    home = tmp_path / "home/.fanfold"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[models.prices]\n"m" = {given}\n')
    refused = fanfold("runs", "--json")
    assert refused.status == 2
    assert "dollars per million" in refused.json()["error"]["message"]
