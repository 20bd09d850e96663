"""LangGraph with its SQLite checkpoint saver: one node a step, the graph's edges as edges.

`durability="sync"`: a checkpoint is on the disk before the next super-step begins; the default would let
the next one begin before. The state is one small value that every node overwrites, which is the
least a graph can keep. The saver sets WAL mode; `synchronous=FULL` is set on the connection it is given.
Building and compiling the graph is not counted.
"""

from __future__ import annotations

import sqlite3
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.contenders.protocol import CONCURRENCY, Clock, OutOfTime, contend


def newest(_: str, new: str) -> str:
    return new


class Kept(TypedDict):
    answer: Annotated[str, newest]


def run(graph: list[list[int]], folder: Path, clock: Clock) -> dict[str, str]:
    graphs: Any = import_module("langgraph.graph")
    sqlite: Any = import_module("langgraph.checkpoint.sqlite")
    connection = sqlite3.connect(folder / "langgraph.db", check_same_thread=False)
    saver = sqlite.SqliteSaver(connection)
    saver.setup()
    connection.execute("PRAGMA synchronous=FULL")
    builder = graphs.StateGraph(Kept)

    def node(_: Kept) -> dict[str, str]:
        return {"answer": clock.tick()}

    needed = {i for needs in graph for i in needs}
    for number, needs in enumerate(graph):
        builder.add_node(f"s{number}", node)
        if not needs:
            builder.add_edge(graphs.START, f"s{number}")
        elif len(needs) == 1:
            builder.add_edge(f"s{needs[0]}", f"s{number}")
        else:
            builder.add_edge([f"s{i}" for i in needs], f"s{number}")
        if number not in needed:
            builder.add_edge(f"s{number}", graphs.END)
    compiled = builder.compile(checkpointer=saver)
    config = {
        "configurable": {"thread_id": "1"},
        "recursion_limit": 10 * len(graph),
        "max_concurrency": CONCURRENCY,
    }
    clock.start()
    try:
        compiled.invoke({"answer": ""}, config, durability="sync")
    except OutOfTime:
        pass
    clock.stop()
    connection.close()
    names = ("langgraph", "langgraph-checkpoint-sqlite")
    return {name: version(name) for name in names} | {"sqlite": sqlite3.sqlite_version}


contend(run)
