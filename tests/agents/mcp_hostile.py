"""MCP servers that misbehave, written by hand: `python mcp_hostile.py WAY`.

Each greets and lists one tool, `do`, unless its way is to fail at that; what it does when called is its way.
"""

import json
import os
import sys
import time
from typing import Any

WAY = sys.argv[1]
OUT = sys.stdout.buffer
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}


def say(value: Any) -> None:
    OUT.write(value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n")
    OUT.flush()


def answer(asked: dict[str, Any], result: Any) -> None:
    if WAY == "newest":
        result = {**MODERN, **result}
    say({"jsonrpc": "2.0", "id": asked["id"], "result": result})


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def tools(asked: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    tool: dict[str, Any] = {"name": "do", "inputSchema": schema, "annotations": {"readOnlyHint": True}}
    if WAY == "many":
        return {"tools": [{**tool, "name": f"do{i}"} for i in range(200)]}
    if WAY == "pages":
        at = int((asked.get("params") or {}).get("cursor") or 0)
        page = {"tools": [{**tool, "name": f"do{at}"}, {**tool, "name": "do"}]}
        return page if at == 3 else {**page, "nextCursor": str(at + 1)}
    if WAY == "endless":
        return {"tools": [tool], "nextCursor": "again"}
    if WAY == "schemas":
        properties = {
            "elsewhere": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}},
            "wrong": {"a": {"type": "strung"}},
            "huge": {"a": {"description": "x" * 50_000}},
            "good": {"a": {"type": "integer"}},
        }
        described = {"description": "y" * 5_000}
        return {
            "tools": [
                {**tool, **described, "name": name, "inputSchema": {"type": "object", "properties": each}}
                for name, each in properties.items()
            ]
        }
    return {"tools": [tool]}


def misbehave(asked: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - a list of ways
    match WAY:
        case "die":
            sys.stderr.write("a last word\n")
            sys.stderr.flush()
            os._exit(3)
        case "stall":
            time.sleep(3600)
        case "hang_up":
            os.close(1)
            time.sleep(3600)
        case "flood":
            while True:
                say(b"x" * 1_000_000 + b"\n")
        case "unending":
            while True:
                say(b"x" * 1_000_000)
        case "long_line":
            say(b'{"jsonrpc": "2.0", "result": "' + b"x" * 9_000_000 + b'", "id": 3}\n')
        case "junk":
            say(b"Loading...\n\n{]\n\xff\xfe\n[1, 2]\n{}\n")
            say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}})
            say({"jsonrpc": "2.0", "id": 999, "result": text("for nobody")})
            say({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "for nobody"}})
            answer(asked, text("after all that"))
        case "wrong_id":
            say({"jsonrpc": "2.0", "id": 4711, "result": text("wrong")})
        case "bad_result":
            answer(asked, {"content": "no list"})
        case "error":
            say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32000, "message": "not today"}})
        case "asks":
            say({"jsonrpc": "2.0", "id": "s1", "method": "sampling/createMessage", "params": {}})
            say({"jsonrpc": "2.0", "id": "s2", "method": "ping"})
            said = [json.loads(sys.stdin.readline()) for _ in range(2)]
            kinds = {one["id"]: "error" if "error" in one else "result" for one in said}
            answer(asked, text(json.dumps(kinds, sort_keys=True)))
        case "stubborn":
            answer(asked, text("here to stay"))
        case "numbers":
            say(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":' % asked["id"])
            say(b'{"nan":NaN,"huge":1' + b"0" * 400 + b"}}}\n")
        case _:
            answer(asked, text("fine"))


def main() -> None:
    if WAY == "mute":
        time.sleep(3600)
    if WAY == "not_mcp":
        sys.stderr.write(f"starting\nthis is no server; token={os.environ.get('TOKEN')}\n\n")
        sys.exit(2)
    if WAY == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        refused = {("newest", "initialize"): -32601, ("toolless", "tools/list"): -32601}
        if code := refused.get((WAY, asked.get("method", ""))):
            say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": "what?"}})
            continue
        match asked.get("method"):
            case "server/discover":
                newest = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                answer(asked, newest)
            case "initialize":
                version = asked["params"]["protocolVersion"]
                info = {"name": "hostile", "version": "1"}
                answer(asked, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
            case "tools/list":
                answer(asked, tools(asked))
            case "tools/call":
                misbehave(asked)
    if WAY == "stubborn":
        time.sleep(3600)


main()
