"""A program that stands in for an agent: it says what was recorded of the real one, and does what it is told.

What it does is in `<name>.json` beside it: `acts`, one for each call of a session, the last again. An act
has `says` (a file of recorded lines), `errs` (one of what it wrote to stderr), or `lines` (as they are),
`writes` (files by path), `deletes`, `exit`, and `then`: what it does after that, `hang` or `flood`; `told`
has more of it for prompts that hold certain words; `bytes` are said first, each a character of Latin 1. What
it was called with is kept in its home, in `calls.jsonl`.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLOOD_BYTES = 100 * 1024 * 1024


def attempt_write(path: str, text: str) -> str:
    """Try to write a file; what came of it."""
    try:
        file = Path(path).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        return str(error.strerror)
    return "written"


def attempt_read(path: str) -> str:
    """Try to read a file; what is in it, or why not."""
    try:
        return Path(path).expanduser().read_text()
    except OSError as error:
        return str(error.strerror)


def attempt_connection(port: int) -> str:
    """Try to reach a port of the loopback as its provider would be; what it says, or why not."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as line:
            line.sendall(b"hello\n")
            return line.recv(100).decode() or "closed"
    except OSError as error:
        return type(error).__name__


def ask_proxy(line: str) -> str:
    """Say a line to the proxy that the environment names; how it answers."""
    address = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=120) as proxy:
        proxy.sendall(f"{line}\r\n\r\n".encode())
        return proxy.recv(100).decode()


def flood() -> None:
    """Say very much, in lines of every size."""
    block = json.dumps({"type": "noise", "text": "x" * 60_000}) + "\n"
    for _ in range(FLOOD_BYTES // len(block) // 2):
        sys.stdout.write(block)
    sys.stdout.write("y" * (FLOOD_BYTES // 2) + "\n")


def main(name: str) -> int:
    told = json.loads((HERE / f"{name}.json").read_text())
    home = Path.home()
    kept = home / "calls.jsonl"
    before = len(kept.read_text().splitlines()) if kept.exists() else 0
    act = told["acts"][min(before, len(told["acts"]) - 1)]
    asked = sys.stdin.read()
    for words, more in act.get("told", {}).items():
        act = {**act, **(more if words in asked else {})}
    seen = {path: Path(path).expanduser().exists() for path in act.get("looks", ())}
    read = {path: Path(path).expanduser().read_text() for path in act.get("reads", ())}
    tried = {path: attempt_read(path) for path in act.get("tries", ())}
    wrote = {path: attempt_write(path, text) for path, text in act.get("writes", {}).items()}
    reached = {str(port): attempt_connection(port) for port in act.get("connects", ())}
    answered = {line: ask_proxy(line) for line in act.get("asks", ())}
    for path in act.get("deletes", ()):
        Path(path).unlink()
    for path, text in act.get("later", {}).items():
        attempt_write(path, text)
    if act.get("spawns"):
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    for path, target in act.get("links", {}).items():
        Path(path).expanduser().rename(f"{Path(path).expanduser()}-before")
        Path(path).expanduser().symlink_to(target)
    time.sleep(act.get("takes_s", 0))
    call = {"argv": sys.argv[1:], "stdin": asked, "environment": dict(os.environ), "cwd": os.getcwd()}
    with kept.open("a") as out:
        out.write(
            json.dumps(
                {
                    **call,
                    "seen": seen,
                    "read": read,
                    "tried": tried,
                    "wrote": wrote,
                    "reached": reached,
                    "answered": answered,
                }
            )
            + "\n"
        )
    if act.get("then") == "flood":
        flood()
    sys.stdout.buffer.write(act.get("bytes", "").encode("latin-1"))
    sys.stdout.buffer.flush()
    recorded = (HERE / act["says"]).read_text() if "says" in act else ""
    lines = [*act.get("lines", ()), *recorded.splitlines()]
    for line in lines[: act.get("cut", len(lines))]:
        sys.stdout.write(line.replace("/project", os.getcwd()) + "\n")
    sys.stdout.flush()
    if "errs" in act:
        sys.stderr.write((HERE / act["errs"]).read_text())
        sys.stderr.flush()
    if act.get("then") == "hang":
        time.sleep(3_600)
    return int(act.get("exit", 0))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name))
