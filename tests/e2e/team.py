"""Three roles over one wire: an explorer reads, a worker edits and runs a program, a critic gives a verdict.

Where the conversation of each stands is read from the request alone, so the same script serves a process and
the one that takes its run over.
"""

from __future__ import annotations

from tests.e2e.world import Project
from tests.provider import Call, RecordedRequest, Reply, answer_with

RECIPE = """\
name: team
description: Look, change, judge
steps:
  - id: explore
    agent: explorer
    prompt: "EXPLORE greeting.py"
  - id: work
    agent: worker
    depends_on: [explore]
    write_set: ["greeting.py", "notes/**"]
    prompt: "WORK on what was found: {{steps.explore.output}}"
  - id: judge
    agent: critic
    depends_on: [work]
    prompt: "JUDGE what was done: {{steps.work.output}}"
    output_schema:
      type: object
      properties: {holds: {type: boolean}, objections: {type: array, items: {type: string}}}
      required: [holds, objections]
      additionalProperties: false
output: "{{steps.judge.output}}"
"""
GREETING = 'GREETING = "hello"\nprint(GREETING)\n'
PATCH = """\
--- a/greeting.py
+++ b/greeting.py
@@ -1,2 +1,2 @@
-GREETING = "good day"
+GREETING = "good evening"
 print(GREETING)
"""
PROGRAM = "echo ran >> notes/ran.txt; python3 greeting.py"
VERDICT = {"holds": True, "objections": []}
EXPLORED = "greeting.py says hello"
WORKED = "It says good evening now."
RESPONSES = 9
"""How many responses the whole job takes, one after the other."""


def set_up(project: Project) -> None:
    project.file("team.yaml").write_text(RECIPE)
    project.file("greeting.py").write_text(GREETING)


def role(asked: RecordedRequest) -> str:
    """Which of the three is asking."""
    return asked.prompt.partition(" ")[0]


def at(asked: RecordedRequest) -> tuple[str, int]:
    """Who is asking, and how many responses it has had."""
    return role(asked), asked.turns


def answer(asked: RecordedRequest) -> Reply:
    """What each of them says at each point."""
    match at(asked):
        case "EXPLORE", 0:
            return Reply(
                text="I will look.",
                calls=(
                    Call("read_file", {"path": "greeting.py"}),
                    Call("search_files", {"pattern": "hello"}),
                ),
            )
        case "EXPLORE", _:
            return Reply(text=EXPLORED)
        case "WORK", 0:
            edit = {"path": "greeting.py", "old": '"hello"', "new": '"good day"'}
            return Reply(calls=(Call("edit_file", edit), Call("read_file", {"path": "greeting.py"})))
        case "WORK", 1:
            return Reply(calls=(Call("write_file", {"path": "notes/plan.md", "content": "be polite\n"}),))
        case "WORK", 2:
            return Reply(calls=(Call("run_command", {"argv": ["sh", "-c", PROGRAM]}),))
        case "WORK", 3:
            return Reply(calls=(Call("apply_patch", {"patch": PATCH}),))
        case "WORK", _:
            return Reply(text=WORKED)
        case "JUDGE", 0:
            return Reply(calls=(Call("read_file", {"path": "greeting.py"}),))
        case _:
            return answer_with(VERDICT, asked)


def check_files(project: Project) -> None:
    """The work is there, done once."""
    assert project.file("greeting.py").read_text() == GREETING.replace("hello", "good evening")
    assert project.file("notes/plan.md").read_text() == "be polite\n"
    assert project.file("notes/ran.txt").read_text() == "ran\n"
