"""A provider for real agents, on loopback: whatever agent asks, its model writes a file and then says so.

Run as `python -m tests.real_agents.provider FOLDER`: it writes its port to `FOLDER/port`, and a line for each
request to `FOLDER/asked.jsonl`. What the model does is in the prompt, as JSON behind `DO`:
`{"path": "hello.txt", "text": "hello", "say": "done", "wait": true}`. With `wait` the last answer does not
come until `FOLDER/go` is there: time to kill somebody.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from fanfold.testing.provider import Asked, Call, Fault, Reply, ScriptedProvider

KEY = "key-of-the-scripted-provider"
_TASK = re.compile(r"DO (\{.*?\})(?:\s|$)")


def writing_call(asked: Asked, path: str, text: str) -> Call | None:
    """The call by which this agent's model writes a file: each has tools of its own."""
    command = f"printf '%s\\n' '{text}' > '{path}'"
    cwd = _working_folder(asked)
    absolute = f"{cwd}/{path}" if cwd else path
    known: dict[str, dict[str, Any]] = {
        "Write": {"file_path": absolute, "content": f"{text}\n"},
        "write": {"filePath": absolute, "path": absolute, "content": f"{text}\n"},
        "write_file": {"file_path": absolute, "content": f"{text}\n"},
        "developer__text_editor": {"command": "write", "path": absolute, "file_text": f"{text}\n"},
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": ["sh", "-c", command]},
        "bash": {"command": command, "description": "write a file"},
    }
    for tool, args in known.items():
        if tool in asked.tools:
            return Call(tool, args)
    return None


def _working_folder(asked: Asked) -> str:
    """Where the agent says that it works: some tools want whole paths."""
    said = json.dumps(asked.body)
    found = re.search(
        r"(?:[Ww]orking directory(?: is)?|<cwd>|Workspace root folder|working directory[^:/]*|directory)"
        r"[:\s`*\\n]*(/[^\s\\`<\",]+)",
        said,
    )
    return found[1] if found else ""


def answer(asked: Asked, folder: Path) -> Reply | Fault | None:
    """What the model says; None while it has to wait."""
    users = [heard.text for heard in asked.messages if heard.role == "user" and "DO {" in heard.text]
    if not users:
        return Reply(text="A title")  # some ask for one first
    task = json.loads(_TASK.findall(users[-1])[-1])
    after = max(i for i, heard in enumerate(asked.messages) if heard.role == "user" and "DO {" in heard.text)
    done = any(heard.results for heard in asked.messages[after:])
    call = None if done or "path" not in task else writing_call(asked, task["path"], task["text"])
    if call is not None:
        return Reply(text="I will write the file.", calls=(call,), input_tokens=1_000, output_tokens=20)
    if task.get("wait") and not (folder / "go").exists():
        return None
    turns = sum("DO {" in heard.text for heard in asked.messages if heard.role == "user")
    return Reply(text=task["say"].replace("TURNS", str(turns)), input_tokens=1_200, output_tokens=30)


async def serve(folder: Path) -> None:
    log = (folder / "asked.jsonl").open("a")

    async def script(asked: Asked) -> Reply | Fault:
        kept = {"format": asked.format, "model": asked.model, "tools": asked.tools, "key": asked.key}
        log.write(json.dumps({**kept, "messages": len(asked.messages), "body": asked.body}) + "\n")
        log.flush()
        while (said := answer(asked, folder)) is None:  # noqa: ASYNC110 - a file of another process says when
            await asyncio.sleep(0.05)
        return said

    async with ScriptedProvider(script, key=KEY) as provider:
        (folder / "port").write_text(str(provider.port))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
