"""The MCP servers of a role reach the real agents: each starts them, and asks for their tools."""

import json

import pytest

from tests.real_agents.test_real_agents import WANTED, pytestmark
from tests.real_agents.world import RealWorld, task

__all__ = ["pytestmark"]

SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        version = asked["params"]["protocolVersion"]
        info = {"name": "shelf", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked.get("method") == "tools/list":
        open("served.txt", "w").write(os.environ.get("SHELF", "") + "\\n")
        result = {"tools": [{"name": "find", "description": "Finds", "inputSchema": {"type": "object"}}]}
    else:
        result = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
TAKES_NONE = ("gemini", "goose", "qwen", "copilot", "copilot-acp")
"""Those of them that speak the protocol take them there; Copilot passes them over."""


@pytest.mark.parametrize("name", [name for name in WANTED if name not in TAKES_NONE])
def test_an_agent_starts_the_servers_of_its_role(world: RealWorld, name: str):
    (world.project / "shelf.py").write_text(SERVER)
    servers = '[mcp_servers.shelf]\ncommand = "python3"\nargs = ["shelf.py"]\nenv = {SHELF = "second"}\n'
    world.role("coder", name)
    with (world.project / ".fanfold" / "agents" / "coder.toml").open("a") as role:
        role.write(f"\n{servers}")
    prompt = task({"write": "hello.txt", "text": "hello"}, say="I wrote it.")
    step = {"id": "work", "agent": "coder", "prompt": prompt, "write_set": ["*.txt"]}
    done = world.fanfold("run", world.recipe(step), "--yes")
    assert done["status"] == "completed", json.dumps(done["steps"])
    assert (world.project / "served.txt").read_text() == "second\n"
