"""The work of the GitHub Action (`action.yml`): run a recipe, set outputs, post one comment.

The settings come as environment variables, never as text inside a script, so a pull request's title cannot
become a command. The token of the forge is used here alone: Fanfold and its agents do not get it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

MAX_COMMENT_CHARS = 60_000
TIMEOUT_S = 30


def main() -> int:
    """Run the recipe; the exit status is Fanfold's."""
    report = option("report") or "fanfold-report.html"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ACTION_") and name not in ("GITHUB_TOKEN", "GH_TOKEN")
    }
    # A runner obeys lines like `::set-output name=status::completed`, also in an agent's text, until it reads
    # the token, which no agent has. Both are in the stream of the text, so their order is certain.
    token = secrets.token_hex(16)
    sys.stderr.write(f"::stop-commands::{token}\n")
    sys.stderr.flush()
    done = subprocess.run(command(report), env=environment, stdout=subprocess.PIPE, check=False)
    sys.stderr.write(f"\n::{token}::\n")
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        document = {}
    status = document.get("status") or "refused"
    set_outputs({"status": status, "run-id": document.get("run_id") or "", "report": report})
    sys.stdout.write(f"fanfold: {status} (exit status {done.returncode})\n")
    if error := document.get("error"):
        words = " ".join(f"{error.get('message', '')} {error.get('hint', '')}".split())
        sys.stdout.write(f"::error::fanfold: {error.get('code', 'failed')}: {as_data(words)}\n")
    if option("comment") == "true":
        try:
            post_comment(comment_text(document, status))
        except (OSError, ValueError, KeyError) as error:
            sys.stdout.write(f"::error::fanfold: the comment was not posted: {reason(error)}\n")
            return done.returncode or 1
    return done.returncode


def as_data(text: str) -> str:
    """A text of an agent in a command of the runner, which finds no command and no escape in it."""
    return text.replace("%", "%25").replace("::", ":\u200b:").replace("##[", "#\u200b#[")


def option(name: str) -> str:
    """An input of the action."""
    return os.environ.get(f"ACTION_{name.upper().replace('-', '_')}", "").strip()


def lines(name: str) -> list[str]:
    return [line.strip() for line in option(name).splitlines() if line.strip()]


def command(report: str) -> list[str]:
    """The command line of the run."""
    words = ["fanfold", "run", option("recipe"), "--json", "--quiet", "--summary", "--report", report]
    for name in ("model", "budget-usd", "budget-tokens", "permission"):
        words += [f"--{name}", option(name)] if option(name) else []
    for pair in lines("inputs"):
        words += ["-i", pair]
    return words + lines("args")


def set_outputs(values: dict[str, str]) -> None:
    if target := os.environ.get("GITHUB_OUTPUT"):
        with open(target, "a", encoding="utf-8") as opened:
            opened.writelines(f"{name}={value}\n" for name, value in values.items())


def marker() -> str:
    """What finds the comment of this recipe again."""
    return f"<!-- fanfold: {option('recipe').replace('--', '')} -->"


def comment_text(document: dict[str, Any], status: str) -> str:
    """The comment. An agent's text mentions no user: it may quote a stranger's diff."""
    output, error = document.get("output"), document.get("error") or {}
    text = output if isinstance(output, str) else json.dumps(output, indent=1) if output else ""
    text = text or error.get("message") or "There is no output."
    text = text.replace("@", "@\u200b").replace("<!--", "&lt;!--")[:MAX_COMMENT_CHARS]
    usage = document.get("usage") or {}
    cost = usage.get("cost_usd")
    facts = [f"`{option('recipe')}` {status}", f"run `{document.get('run_id', '')}`"]
    facts += [f"${cost:.2f}"] if isinstance(cost, int | float) else []
    return f"{marker()}\n{text}\n\n<sub>Fanfold: {', '.join(facts)}</sub>\n"


def post_comment(text: str) -> None:
    """Change the comment of an earlier run of this recipe on the pull request, or add the first one."""
    number = pull_request()
    if number is None:
        sys.stdout.write("fanfold: this job belongs to no pull request, so there is no comment\n")
        return
    base = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    login = own_login()
    for earlier in comments(f"{base}/{number}/comments"):
        author = earlier.get("user") or {}
        # A report in another user's comment would be theirs to edit.
        is_ours = author.get("login") == login if login else author.get("type") == "Bot"
        if is_ours and str(earlier.get("body", "")).startswith(marker()):
            request("PATCH", f"{base}/comments/{earlier['id']}", {"body": text})
            return
    request("POST", f"{base}/{number}/comments", {"body": text})


def own_login() -> str:
    """The user of the token; empty for the token of a job, which belongs to a bot."""
    try:
        return str(request("GET", "/user", None).get("login", ""))
    except urllib.error.HTTPError as error:
        if error.code not in (403, 404):
            raise
        return ""


def reason(error: Exception) -> str:
    """Why the forge did not take the comment, in one line, with what to do."""
    text = " ".join(str(error).split())
    denied = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404)
    return f"{text}. The job needs `permissions: {{pull-requests: write}}`" if denied else text


def pull_request() -> int | None:
    """The number of the pull request of this job."""
    with open(os.environ["GITHUB_EVENT_PATH"], encoding="utf-8") as opened:
        event = json.load(opened)
    found = (event.get("pull_request") or event.get("issue") or {}).get("number")
    return found if isinstance(found, int) else None


def comments(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for page in range(1, 31):
        some = request("GET", f"{path}?per_page=100&page={page}", None)
        found += some
        if len(some) < 100:
            break
    return found


def request(method: str, path: str, body: dict[str, str] | None) -> Any:
    """One request to the forge's API."""
    asked = urllib.request.Request(  # noqa: S310 - the runner names the address
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        None if body is None else json.dumps(body).encode(),
        {
            "accept": "application/vnd.github+json",
            "authorization": f"Bearer {os.environ['ACTION_TOKEN']}",
            "content-type": "application/json",
            "user-agent": "fanfold-action",
        },
        method=method,
    )
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as reply:  # noqa: S310 - as above
        return json.load(reply)


if __name__ == "__main__":
    sys.exit(main())
