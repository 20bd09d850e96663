"""What a provider answers instead of a reply, with the real statuses, headers and bodies of each.

Seen in public reports and in the programs themselves: Anthropic's unified limits, the usage limit of ChatGPT
plans, Google's quota with its time, and a plain 429 with `retry-after`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.provider import Fault, RecordedRequest


def fault_for(asked: RecordedRequest, folder: Path) -> Fault | None:
    """Why this request fails; None when it does not."""
    try:
        wanted = json.loads((folder / "fault.json").read_text())
    except (OSError, ValueError):
        return None
    if asked.turns < wanted.get("turns", 0) or len(asked.tools) < wanted.get("tools", 1):
        return None
    match wanted["kind"]:
        case "limit":
            return _limit(asked.format, _reset(folder, wanted["for_s"]))
        case "overloaded":
            return _overloaded(asked.format)
        case "dropped":
            return Fault("hang_up")
    return Fault("stall")


def _reset(folder: Path, for_s: int) -> int:
    """When a limit that lasts so long resets: from the first request on that it refuses."""
    file = folder / "reset"
    if not file.exists():
        file.write_text(str(int(time.time()) + for_s))
    return int(file.read_text())


def _limit(form: str, reset: int) -> Fault:
    left = max(1, int(reset - time.time()))
    if form == "messages":
        headers = {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-reset": str(reset),
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-5h-status": "rejected",
            "anthropic-ratelimit-unified-5h-reset": str(reset),
            "retry-after": str(left),
        }
        said = "This request would exceed your account's rate limit. Please try again later."
        return Fault("rate_limit", message=said, headers=headers)
    if form == "responses":
        error = {"type": "usage_limit_reached", "message": "The usage limit has been reached"}
        plan = {"plan_type": "plus", "resets_at": reset, "resets_in_seconds": left}
        return Fault("rate_limit", status=429, body={"error": {**error, **plan}})
    if form == "google":
        return Fault("rate_limit", status=429, body=_google(429, "RESOURCE_EXHAUSTED", left))
    said = (
        "Sorry, you've hit a rate limit that restricts the number of model requests you can make within a"
        f" specific time period. Please try again in {left // 60} minutes {left % 60} seconds."
    )
    return Fault("rate_limit", message=said, headers={"retry-after": str(left)})


def _google(status: int, name: str, left: int = 0) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc."
    info = {"reason": "QUOTA_EXHAUSTED", "domain": "cloudcode-pa.googleapis.com"}
    details = [
        {"@type": f"{kind}ErrorInfo", **info, "metadata": {"model": "gemini-2.5-flash"}},
        {"@type": f"{kind}RetryInfo", "retryDelay": f"{left}s"},
    ]
    hours, minutes, seconds = left // 3_600, left // 60 % 60, left % 60
    words = "You have exhausted your capacity on this model."
    words += f" Your quota will reset after {hours}h{minutes}m{seconds}s."
    if not left:
        words, details = "The model is overloaded. Please try again later.", []
    return {"error": {"code": status, "message": words, "status": name, "details": details}}


def _overloaded(form: str) -> Fault:
    if form == "google":
        return Fault("overloaded", status=503, body=_google(503, "UNAVAILABLE"))
    return Fault("overloaded", status=529 if form == "messages" else 503)
