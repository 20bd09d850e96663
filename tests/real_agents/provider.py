"""A provider for real agents, on loopback: their model does what the prompt says, with whatever tools it has.

Run as `python -m tests.real_agents.provider FOLDER`: it writes its port to `FOLDER/port`, and a line for each
request to `FOLDER/asked.jsonl`. What the model does is in the prompt, as JSON behind `DO`:
`{"acts": [{"write": "a.txt", "text": "hello"}, {"run": "true"}], "say": "done", "wait": "go"}`; an act may
also be a tool of an MCP server, `{"mcp": "run_workflow", "args": {…}}`. `undo` is the act of a model that is
asked to correct its changes. With `wait` the last answer does not come until a file of that name is in
FOLDER: time to kill somebody. While `FOLDER/fault.json` is there, requests fail as it says:
`{"kind": "limit", "for_s": 130, "turns": 1}`
refuses each whose conversation has at least so many responses of the model; see `faults.py`.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from fanfold.steps.agent import GO_ON
from tests.provider import Call, Fault, RecordedRequest, Reply, ScriptedProvider
from tests.real_agents.faults import fault_for
from tests.real_agents.google import serve_google

KEY = "key-of-the-scripted-provider"
CONNECTING = "WaitForMcpServers"
"""What a model calls while servers are still being reached."""
MAX_CONNECTING = 20
"""So often it calls that; then its server is not reached any more."""
CORRECTED = "that this step may not change"
_TASK = re.compile(r"DO (\{.*\}) END")


def call_for(asked: RecordedRequest, act: dict[str, Any]) -> Call | None:
    """The call by which this agent's model does something: each has tools of its own."""
    if "mcp" in act:
        return _call_server(asked, act["mcp"], act["args"])
    command = act.get("run") or f"printf '%s\\n' '{act['text']}' > '{act['write']}'"
    known: dict[str, dict[str, Any]] = {}
    if "write" in act:
        absolute = f"{_working_folder(asked)}/{act['write']}"
        text = f"{act['text']}\n"
        known |= {
            "Write": {"file_path": absolute, "content": text},
            "write": {"filePath": absolute, "path": absolute, "content": text},
            "write_file": {"file_path": absolute, "content": text},
        }
    known |= {
        "Bash": {"command": command, "description": "work"},
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": command},
        "bash": {"command": command, "description": "work"},
        "run_shell_command": {"command": command, "is_background": False, "description": "work"},
    }
    return next((Call(tool, args) for tool, args in known.items() if tool in asked.tools), None)


def _call_server(asked: RecordedRequest, name: str, args: dict[str, Any]) -> Call | None:
    """A tool of an MCP server: named with the server in front, or in a namespace of the server's."""
    found = next((Call(tool, args) for tool in asked.tools if tool.endswith(name)), None)
    for one in asked.body.get("tools") or ():
        inside = [tool["name"] for tool in one.get("tools", ()) if tool["name"].endswith(name)]
        if one.get("type") == "namespace" and inside:
            return Call(inside[0], args, namespace=one["name"])
    return found or (Call(CONNECTING, {}) if CONNECTING in asked.tools else None)


def _working_folder(asked: RecordedRequest) -> str:
    """Where the agent says that it works: some tools want whole paths."""
    found = re.search(
        r"(?i)(?<!temporary )director(?:y|ies)(?: is)?[:\s`*\\n-]*(/[^\s\\`<\",]+)", json.dumps(asked.body)
    )
    return found[1] if found else ""


def answer(asked: RecordedRequest, folder: Path) -> Reply | None:
    """What the model says; None while it has to wait."""
    told = [i for i, heard in enumerate(asked.messages) if heard.role == "user" and _TASK.search(heard.text)]
    if not told:
        return Reply(text="A title")  # some ask for one first
    task = json.loads(_TASK.findall(asked.messages[told[-1]].text)[-1])
    since = asked.messages[told[-1] :]
    acts = task.get("acts", [])
    again = [i for i, heard in enumerate(since) if i and heard.role == "user" and GO_ON in heard.text]
    since = since[again[-1] :] if again else since  # the files are gone
    asked_to = [i for i, heard in enumerate(since) if i and heard.role == "user" and CORRECTED in heard.text]
    if asked_to:
        since, acts = since[asked_to[-1] :], [task["undo"]]
    waited = sum(call.tool == CONNECTING for heard in since for call in heard.calls)
    done = sum(len(heard.results) for heard in since) - waited
    call = call_for(asked, acts[done]) if done < len(acts) else None
    if call is not None and (call.tool != CONNECTING or waited < MAX_CONNECTING):
        return Reply(text="I will do it.", calls=(call,), input_tokens=1_000, output_tokens=20)
    if "wait" in task and not (folder / task["wait"]).exists():
        return None
    words = task["say"].replace("TURNS", str(asked.turns))
    return Reply(text=words, input_tokens=1_200, output_tokens=30)


async def serve(folder: Path) -> None:
    log = (folder / "asked.jsonl").open("a")

    async def script(asked: RecordedRequest) -> Reply | Fault:
        fault = fault_for(asked, folder)
        kept = {"format": asked.format, "model": asked.model, "tools": asked.tools, "turns": asked.turns}
        log.write(json.dumps({**kept, "fault": fault is not None, "body": asked.body}) + "\n")
        log.flush()
        if fault is not None:
            if fault.kind == "stall":
                await asyncio.Event().wait()
            return fault
        while (said := answer(asked, folder)) is None:  # noqa: ASYNC110 - a file of another process says when
            await asyncio.sleep(0.05)
        return said

    async with ScriptedProvider(script, key=KEY) as provider:
        (folder / "google").write_text(str(await serve_google(script)))
        (folder / "port").write_text(str(provider.port))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
