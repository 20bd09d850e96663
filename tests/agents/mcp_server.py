"""A real MCP server for tests, made with the official package: `python mcp_server.py [http|sse PORT]`.

Over HTTP it prints its port, then serves the loopback address.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("workshop")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool(annotations=READS, structured_output=False)
def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


@server.tool(annotations=READS, structured_output=False)
def picture() -> list[Any]:
    """A picture with a caption."""
    return ["the caption", Image(data=b"\x89PNG" * 75, format="png")]


@server.tool(annotations=READS, structured_output=False)
def long_text(chars: int) -> str:
    return "0123456789" * (chars // 10)


@server.tool(annotations=READS, structured_output=False)
def variables() -> str:
    return "\n".join(f"{name}={text}" for name, text in sorted(os.environ.items()))


@server.tool(structured_output=False)
def note(text: str) -> str:
    """Write a note into the workspace."""
    with Path("notes.txt").open("a") as file:
        file.write(f"{text}\n")
    return "noted"


@server.tool(annotations=READS, structured_output=False)
def refuse() -> str:
    raise ValueError("the drawer is locked")


@server.tool(annotations=READS, structured_output=False)
async def wait() -> str:
    await asyncio.Event().wait()
    return "never"


@server.tool(name="odd.name/with spaces", annotations=READS, structured_output=False)
def odd() -> str:
    return "odd, but fine"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run("stdio")
    else:
        import uvicorn

        listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
        print(listening.getsockname()[1], flush=True)  # noqa: T201 - how the test learns the port
        app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
