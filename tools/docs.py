"""Write what is generated from the code: parts of `docs/`, and the static help of the command line.

    python -m tools.docs            rewrite them
    python -m tools.docs --check    say which are out of date, change nothing

A page is generated as a whole, or between `<!-- generated: NAME -->` and `<!-- end generated -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

from fanfold.cli.main import NOUNS
from tools import cli_reference, long_tests, recipe_reference, state_diagrams
from tools.cookbook import cookbook
from tools.gallery import gallery
from tools.tidy import ROOT

NOTICE = "<!-- Generated from the code by `make fix`. Changes made here are lost. -->\n\n"


def http_routes() -> str:
    """The table of routes as the server has it."""
    from fanfold.server.routes import routes

    rows = [
        f"| {route.method} | `{route.path}` | {route.summary} |"
        for route in sorted(routes(), key=lambda route: (route.path, route.method))
    ]
    return "\n".join(["| | path | |", "|---|---|---|", *rows])


def costs() -> str:
    """The few figures that the README shows, from the kept results of the benchmarks."""
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
    """What `make agents-test` saw of the real agents, the last time it was run for each."""
    kept = json.loads((ROOT / "tests" / "real_agents" / "seen.json").read_text("utf-8"))
    columns = {
        "step": "changes files, merged",
        "network": "reaches its provider alone",
        "resume": "continues after `kill -9`",
        "cancel": "cancelled, nothing left",
        "usage": "reports its tokens",
        "limit": "usage limit waited for",
        "limited": "continued after a limit in the middle",
        "budget": "token budget kept, then continued",
        "usd": "USD budget kept, then continued",
        "retry": "`retry` continues after silence",
        "outage": "outage waited for, then continued",
        "dropped": "broken connections waited for, then continued",
        "unreachable": "unreachable host named",
        "correction": "wrong file corrected in a turn",
        "spending": "spending survives `kill -9`",
        "mcp": "starts a workflow by MCP",
    }
    head = [
        "| back end | version | tried | " + " | ".join(columns.values()) + " |",
        "|---" * (len(columns) + 3) + "|",
    ]
    rows = [
        f"| `{name}` | {seen['version']} | {seen.get('on', 'before')} | "
        + " | ".join(seen.get(key, "not tried") for key in columns)
        + " |"
        for name, seen in sorted(kept.items())
    ]
    return "\n".join([*head, *rows])


def tools_of_models() -> str:
    """The tools that models call, with what each takes."""
    from fanfold.api.tool_registry import TOOLS

    rows = []
    for tool in TOOLS:
        schema = tool.input_schema
        needed = set(schema.get("required", ()))
        takes = ", ".join(f"`{name}`" if name in needed else f"[`{name}`]" for name in schema["properties"])
        does = tool.description.partition(". ")[0].removesuffix(".").replace("|", "\\|")
        rows.append(f"| `{tool.name}` | {'changes' if tool.mutates else 'looks'} | {does} | {takes} |")
    return "\n".join(["| tool | | what it does | takes |", "|---|---|---|---|", *rows])


PAGES: dict[str, Callable[[], str]] = {
    "docs/cookbook.md": cookbook,
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
    """What the file should hold, its hand-written parts kept as they are."""
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
    """Whether the file differs from what the code says now."""
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
