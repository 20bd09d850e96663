"""A program that stands in for an agent over the Agent Client Protocol: it says what was recorded of one.

What it does is in `<name>.json` beside it, as for `stand_in.py`: `says` (a recording of a client), `writes`,
`then`: `hang` in the middle of a turn, `garbage` before everything. It keeps its conversations in its home.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class StandIn:
    def __init__(self, act: dict[str, Any]) -> None:
        self.act = act
        self.recorded = [json.loads(line) for line in (HERE / act["says"]).read_text().splitlines()]
        self.name = next(one["r"]["sessionId"] for one in self.recorded if one["kind"] == "session")
        self.asked = 0
        self.kept = Path.home() / "conversation.jsonl"

    def say(self, message: dict[str, Any]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}).replace("/project", os.getcwd())
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def update(self, update: dict[str, Any]) -> None:
        self.say({"method": "session/update", "params": {"sessionId": self.name, "update": update}})

    def keep(self, what: dict[str, Any]) -> None:
        with self.kept.open("a") as out:
            out.write(json.dumps(what) + "\n")

    def answer(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "initialize":
            self.keep({"offered": params.get("clientCapabilities", {}), "environment": dict(os.environ)})
            self.say({"id": message["id"], "result": self._first("initialized")})
        elif method == "session/new":
            if params.get("mcpServers"):
                self.keep({"servers": params["mcpServers"]})
            self.say({"id": message["id"], "result": {**self._first("session"), "sessionId": self.name}})
        elif method == "session/load" and not self.act.get("forgets"):
            said = [json.loads(line) for line in self.kept.read_text().splitlines()]
            for one in said:
                if "prompt" in one:
                    old = {"type": "text", "text": "something old"}
                    self.update({"sessionUpdate": "agent_message_chunk", "content": old})
            self.keep({"loaded": params["sessionId"]})
            self.say({"id": message["id"], "result": {}})
        elif method == "session/prompt":
            self.keep({"prompt": params["prompt"][0]["text"], "cwd": os.getcwd()})
            self.turn(message["id"])
        elif method == "session/cancel":
            self.keep({"cancelled": True})
        elif "id" in message and method is not None:
            self.say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

    def turn(self, number: int) -> None:
        for path, text in self.act.get("writes", {}).items():
            Path(path).write_text(text)
        for one in self.recorded:
            if one["kind"] == "update":
                self.update(one["u"])
            elif one["kind"] == "permission":
                self.permission(one)
            elif one["kind"] == "stop":
                if self.act.get("then") == "hang":
                    while True:
                        line = sys.stdin.readline()
                        if not line:
                            time.sleep(3_600)
                        self.answer(json.loads(line))
                self.say({"id": number, "result": one["r"]})

    def permission(self, one: dict[str, Any]) -> None:
        options = [{"optionId": key, "kind": kind, "name": name} for key, kind, name in one["options"]]
        self.asked += 1
        params = {"sessionId": self.name, "toolCall": one["tool"], "options": options}
        self.say({"id": f"p{self.asked}", "method": "session/request_permission", "params": params})
        while True:
            answer = json.loads(sys.stdin.readline())
            if answer.get("id") == f"p{self.asked}":
                self.keep({"permission": answer["result"]["outcome"]})
                return

    def _first(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one["r"] for one in self.recorded if one["kind"] == kind)
        return found


def main(name: str) -> None:
    told = json.loads((HERE / f"{name}.json").read_text())
    before = Path.home() / "conversation.jsonl"
    calls = before.read_text().count('"offered"') if before.exists() else 0
    act = told["acts"][min(calls, len(told["acts"]) - 1)]
    if act.get("then") == "garbage":
        sys.stdout.write("not a message\n[1, 2]\n\x1b[31mred\n")
    stand_in = StandIn(act)
    for line in sys.stdin:
        stand_in.answer(json.loads(line))


if __name__ == "__main__":
    main(Path(sys.argv[0]).name)
