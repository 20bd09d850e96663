"""Generate parts of `docs/` and the static help of the command line from the code.

    python -m tools.docs            rewrite them
    python -m tools.docs --check    list those that are out of date, change nothing

A page is generated as a whole, or between `<!-- generated: NAME -->` and `<!-- end generated -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

from fanfold.cli.main import NOUNS
from tools import cli_reference, long_tests, recipe_reference, state_diagrams
from tools.gallery import gallery
from tools.tidy import ROOT

NOTICE = "<!-- Generated from the code by `make fix`. Changes made here are lost. -->\n\n"


def http_routes() -> str:
    """All routes of the server: a table of those of one run, and one of the others."""
    from fanfold.server.routes import routes

    of_a_run = "/api/runs/{run}/"
    tables = {"Below `/api`": "/api/", f"Below `{of_a_run.rstrip('/')}`": of_a_run}
    rows: dict[str, list[str]] = {title: ["| | path | |", "|---|---|---|"] for title in tables}
    for route in sorted(routes(), key=lambda route: (route.path, route.method)):
        title = list(tables)[route.path.startswith(of_a_run)]
        path = route.path.removeprefix(tables[title])
        rows[title].append(f"| {route.method} | `{path}` | {route.summary} |")
    return "\n\n".join(f"{title}:\n\n" + "\n".join(lines) for title, lines in rows.items())


def costs() -> str:
    """The figures of the README, from the stored results of the benchmarks."""
    kept = json.loads((ROOT / "bench" / "results" / "latest.json").read_text("utf-8"))
    durable, sizes = kept["durable"]["table"], kept["sizes"]["table"]
    shapes = {"chain": "chain", "fan-out": "fan-out, 16 at once", "layered": "layered graph"}
    rows = [
        "| "
        + " | ".join([label, *(_microseconds(durable[f"{shape}: {name}"]) for name in CONTENDERS)])
        + " |"
        for shape, label in shapes.items()
    ]
    head = ["| | " + " | ".join(CONTENDERS.values()) + " |", "|---" * (len(CONTENDERS) + 1) + "|"]
    resume, sessions = sizes["resume after 10000 events"], sizes["1000 sessions at once"]
    agents = durable["chain: fanfold, agents"]
    summary = (
        f"An agent step of a chain takes {agents['writes']:.1f} writes and {agents['kb']:.0f} kB. "
        f"A run of 10,000 events is resumed in {resume['resume_s']:.2f} s; 1,000 sessions at once take "
        f"{sessions['kb_per_idle_session']:.0f} kB each."
    )
    how, cpus = kept["durable"], kept["machine"]["cpus"]
    if how["load_before"] > cpus:
        load = f"from {how['load_before']:.0f} to {how['load_after']:.0f}"
        summary = f"The load average went {load} meanwhile, on {cpus} processors. {summary}"
    return "\n".join([*head, *rows, "", summary])


def peers() -> str:
    """Each contender of the durable benchmark in a row: version, cost of a step by shape, growth."""
    kept = json.loads((ROOT / "bench" / "results" / "latest.json").read_text("utf-8"))
    durable = kept["durable"]["table"]
    rows = []
    for name, label in CONTENDERS.items():
        facts = kept["durable"].get("facts", {}).get(name, {})
        number = re.findall(r"[Ss]erver ([\d.]+)", facts.get("server", ""))
        version = number[0] if number else " ".join(next(iter(facts.items()), ()))
        figures = [durable[f"{shape}: {name}"] for shape in ("chain", "fan-out", "layered")]
        columns = [
            *map(_microseconds, figures),
            f"{figures[0]['cpu_us']:,.0f}",
            f"{figures[1]['cpu_us']:,.0f}",
        ]
        rows.append("| " + " | ".join([label, version, *columns]) + " |")
    heads = ["", "version", "chain", "fan-out, 16 at once", "layered graph", "CPU, chain", "CPU, fan-out"]
    machine, began = kept["machine"], kept["durable"]["began"][:10]
    where = f"{machine['cpus']} processors ({machine['processor']}), {machine['memory_gb']} GB"
    rounds = kept["durable"]["command"].rpartition(" ")[2]
    conditions = (
        f"Measured on {began}: {where}, {machine['file_system']}. The best of {rounds} rounds counts. "
        "The CPU columns include the servers of Restate and Temporal."
    )
    return "\n".join(["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", *rows, "", conditions])


CONTENDERS = {
    "bare loop": "a bare loop that commits",
    "fanfold": "Fanfold, functions",
    "fanfold, agents": "Fanfold, agents",
    "restate": "Restate",
    "temporal, local": "Temporal, local activities",
    "dbos": "DBOS",
    "langgraph": "LangGraph",
}


def _microseconds(row: dict[str, float]) -> str:
    """While driving; a peer that could not be measured has no row."""
    return f"{row['driven']:,.0f}" if "driven" in row else "not measured"


def agents_seen() -> str:
    """The results of `make agents-test` with the real agents, from the latest run of each."""
    results = json.loads((ROOT / "tests" / "real_agents" / "seen.json").read_text("utf-8"))
    checks = {
        "step": "merges file changes",
        "network": "reaches its provider alone",
        "resume": "continues after `kill -9`",
        "cancel": "cancelled without leftovers",
        "usage": "reports its tokens",
        "limit": "usage limit waited for",
        "limited": "continued after a limit",
        "budget": "token budget",
        "usd": "USD budget",
        "retry": "`retry` after silence",
        "outage": "outage waited for",
        "dropped": "broken connections waited for",
        "unreachable": "unreachable host named",
        "correction": "wrong file corrected",
        "spending": "spending survives `kill -9`",
        "mcp": "starts a workflow by MCP",
    }
    lines = [
        f"The {len(checks)} checks: {', '.join(checks.values())}.",
        "",
        "| back end | version | tried | passed | failed | not tried |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in sorted(results.items()):
        passed = [label for key, label in checks.items() if result.get(key) == "yes"]
        failed = [label for key, label in checks.items() if result.get(key) == "no"]
        other = [label for key, label in checks.items() if result.get(key, "not tried") == "not tried"]
        assert len(passed) + len(failed) + len(other) == len(checks), name
        untried = ", ".join(other) if len(other) < len(passed) else f"the other {len(other)}"
        shown = str(len(passed)) if len(other) < len(passed) else ", ".join(passed)
        row = [f"`{name}`", result["version"], result.get("on", "before"), shown, ", ".join(failed), untried]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def tools_of_models() -> str:
    """The tools that models call, with their arguments."""
    from fanfold.api.tool_registry import TOOLS

    rows = []
    for tool in TOOLS:
        schema = tool.input_schema
        needed = set(schema.get("required", ()))
        takes = ", ".join(f"`{name}`" if name in needed else f"[`{name}`]" for name in schema["properties"])
        does = tool.description.partition(". ")[0].removesuffix(".").replace("|", "\\|")
        rows.append(f"| `{tool.name}` | {'changes' if tool.mutates else 'reads'} | {does} | {takes} |")
    return "\n".join(["| tool | | what it does | takes |", "|---|---|---|---|", *rows])


PAGES: dict[str, Callable[[], str]] = {
    "docs/gallery.md": gallery,
    "docs/cli.md": cli_reference.reference_markdown,
}
HELP = {f"src/fanfold/cli/pages/help_{noun or 'fanfold'}.txt": noun for noun in ("", *NOUNS)}
"""Help as text files: the commands themselves would cost too much to import for them."""
SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/architecture.md", "states"): state_diagrams.state_diagrams,
    ("docs/recipes.md", "keys"): recipe_reference.reference_markdown,
    ("docs/recipes.md", "functions"): recipe_reference.expression_functions,
    ("README.md", "costs"): costs,
    ("docs/comparison.md", "peers"): peers,
    ("docs/appendix/agent-programs.md", "agents seen"): agents_seen,
    ("docs/mcp.md", "tools"): tools_of_models,
    ("docs/console.md", "routes"): http_routes,
    ("CONTRIBUTING.md", "long tests"): long_tests.table,
}


FILES = [*PAGES, *HELP, *dict.fromkeys(name for name, _ in SECTIONS)]


def render(name: str) -> str:
    """The up-to-date text of the file; hand-written parts stay as they are."""
    if name in PAGES:
        return NOTICE + PAGES[name]().strip() + "\n"
    if name in HELP:
        return cli_reference.help_texts()[HELP[name]]
    page = (ROOT / name).read_text("utf-8")
    for (file, section), generate in SECTIONS.items():
        if file == name:
            page = with_section(page, section, generate())
    return page


def with_section(page: str, section: str, body: str) -> str:
    """`page` with the text between the markers of `section` replaced by `body`."""
    start, end = f"<!-- generated: {section} -->\n", "<!-- end generated -->"
    marked = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    new, count = marked.subn(lambda _: f"{start}\n{body.strip()}\n\n{end}", page)
    if count != 1:
        raise ValueError(f'expected one place marked "generated: {section}", found {count}')
    return new


def is_stale(name: str) -> bool:
    """Whether the file differs from the text that the code generates now."""
    file = ROOT / name
    return not file.exists() or file.read_text("utf-8") != render(name)


def main(arguments: list[str]) -> int:
    outdated = [name for name in FILES if is_stale(name)]
    if "--check" in arguments:
        for name in outdated:
            print(f"{name} is out of date: run `make fix`")
        return 1 if outdated else 0
    for name in outdated:
        (ROOT / name).write_text(render(name), "utf-8")
        print(f"rewrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
