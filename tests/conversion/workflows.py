"""Workflows in the shapes of other systems, in words of our own, and what becomes of each."""

from __future__ import annotations

from tests.conversion.scripts import CLAUDE, Workflow

PROTOAGENT = {
    "brief": Workflow("brief.yaml", """\
name: brief
description: Look, then write
inputs:
  topic: {required: true}
max_concurrency: 2
steps:
  - {id: look, subagent: researcher, prompt: "Look for {{inputs.topic}}", timeout: 300}
  - {id: write, subagent: researcher, depends_on: look, prompt: "Write: {{steps.look.output}}"}
output: "{{steps.write.output}}"
""", {"topic": "owls"}, {}, ("look", "write")),
    "fan": Workflow("fan.yaml", """\
name: fan
inputs: [{name: a, default: x}]
steps:
  - {id: one, subagent: researcher, prompt: "{{inputs.a}} one"}
  - {id: two, subagent: researcher, prompt: "{{inputs.a}} two"}
  - id: both
    subagent: researcher
    depends_on: [one, two]
    prompt: "{{steps.one.output}} {{steps.two.output}}"
""", {}, {}, ("one", "two", "both")),
    "gate": Workflow("gate.yaml", """\
name: gate
steps:
  - {id: draft, subagent: researcher, prompt: Draft it.}
  - {id: ok, gate: human, prompt: Is the draft good?, depends_on: draft, timeout: 1ms, default: approve}
  - {id: done, subagent: researcher, depends_on: ok, prompt: Finish it.}
""", {}, {}, ("draft", "ok", "done")),
    "chain": Workflow("chain.yaml", """\
name: chain
steps:
  - {id: a, subagent: default, prompt: one}
  - {id: b, subagent: default, depends_on: a, prompt: "{{steps.a.output}}"}
  - {id: c, subagent: default, depends_on: b, prompt: "{{steps.a.output}} {{steps.b.output}}"}
""", {}, {}, ("a", "b", "c")),
}  # fmt: skip

CONDUCTOR = {
    "row": Workflow("row.yaml", """\
workflow:
  name: Row of two
  entry_point: finder
  limits: {max_iterations: 20, timeout_seconds: 600}
input:
  topic: {type: string, required: true}
agents:
  - name: finder
    prompt: "Find three facts about {{ workflow.input.topic }}."
    output:
      facts: {type: array, description: the facts}
    routes:
      - to: writer
  - name: writer
    prompt: "Write about {{ finder.output.facts }}"
    routes:
      - to: $end
output:
  text: "{{ writer.output }}"
""", {"topic": "owls"}, {"finder": {"output": {"facts": ["a"]}}}, ("finder", "writer")),
    "fork": Workflow("fork.yaml", """\
workflow: {name: fork, entry_point: judge}
agents:
  - name: judge
    prompt: Judge it.
    output: {score: {type: number}}
    routes:
      - to: praise
        when: "{{ judge.output.score >= 8 }}"
      - to: mend
  - name: praise
    prompt: Praise it.
    tools: [web_search]
  - name: mend
    prompt: Mend it.
""", {}, {"judge": {"output": {"score": 9}}}, ("judge", "praise"), (12,)),
    "together": Workflow("together.yaml", """\
workflow:
  name: together
  entry_point: all_checks
parallel:
  - name: all_checks
    agents: [safety, speed]
    failure_mode: continue_on_error
    routes:
      - to: sum_up
agents:
  - name: safety
    prompt: Is it safe?
    output: {found: {type: string}}
  - name: speed
    prompt: Is it fast?
    output: {found: {type: string}}
  - name: sum_up
    prompt: |
      Safety: {{ all_checks.outputs.safety.found }}
      Speed: {{ all_checks.outputs.speed.found }}
      {% if x %}never{% endif %}
""", {}, {"safety": {"output": {"found": "a"}}, "speed": {"output": {"found": "b"}}},
        ("safety", "speed", "sum_up"), (18, 18)),
    "each": Workflow("each.yaml", """\
workflow: {name: each, entry_point: finder}
agents:
  - name: finder
    prompt: Find files.
    output: {files: {type: array}}
    routes: [{to: readers}]
  - name: end
    prompt: "All: {{ readers.outputs }}"
for_each:
  - name: readers
    type: for_each
    source: finder.output.files
    as: file
    max_concurrent: 3
    agent:
      prompt: "Read {{ file }}, number {{ _index }}"
    routes: [{to: end}]
""", {}, {"finder": {"output": {"files": ["a", "b"]}}}, ("finder", "readers[0]", "readers[1]", "end")),
    "until-good": Workflow("until.yaml", """\
workflow:
  name: until-good
  entry_point: writer
  hooks: {on_start: "x"}
agents:
  - name: writer
    prompt: Write it.
    routes: [{to: critic}]
  - name: critic
    prompt: "Judge {{ writer.output }}"
    output: {good: {type: boolean}}
    routes:
      - to: writer
        when: "{{ critic.output.good == false }}"
      - to: done
  - name: done
    prompt: "Publish {{ writer.output }}"
""", {}, {
        "writer_loop#1/critic": {"output": {"good": False}},
        "writer_loop#2/critic": {"output": {"good": True}},
    },
        ("writer_loop", "done"), (4,)),
}  # fmt: skip

ARCHON = {
    "issue": Workflow("issue.yaml", """\
name: issue
description: Sort an issue, then handle it
provider: claude
nodes:
  - id: fetch
    bash: |
      echo "issue: $ARGUMENTS"
    timeout: 15000
  - id: sort
    prompt: |
      Sort this:
      $fetch.output
    depends_on: [fetch]
    model: haiku
    output_format:
      type: object
      properties: {kind: {type: string, enum: [bug, wish]}}
      required: [kind]
  - id: bug
    prompt: "A bug: $ARGUMENTS"
    depends_on: [sort]
    when: "$sort.output.kind == 'bug'"
    context: fresh
  - id: wish
    prompt: A wish.
    depends_on: [sort]
    when: "$sort.output.kind == 'wish'"
    idle_timeout: 600000
""", {"arguments": "it breaks"}, {"sort": {"output": {"kind": "bug"}}}, ("fetch", "sort", "bug"), (3,)),
    "loop": Workflow("loop.yaml", """\
name: loop
nodes:
  - id: work
    loop:
      prompt: Do the next piece. When all is done say DONE.
      until: DONE
      max_iterations: 4
      fresh_context: true
  - id: report
    depends_on: [work]
    prompt: "What happened: $work.output"
""", {}, {"work#1": "not yet", "work#2": "DONE"}, ("work#1", "work#2", "work", "report")),
    "command": Workflow("workflows/command.yaml", """\
name: command
nodes:
  - id: plan
    command: make-plan
  - id: build
    command: not-there
    depends_on: [plan]
""", {"arguments": "a bridge"}, {}, ("plan", "build"), (6,),
        {"commands/make-plan.md": "---\ndescription: x\n---\nPlan $ARGUMENTS well.\n"}),
    "ask": Workflow("ask.yaml", """\
name: ask
nodes:
  - id: look
    prompt: Look.
    allowed_tools: [Read]
  - id: stop
    depends_on: [look]
    when: "$look.output == 'bad'"
    cancel: It looks bad.
  - id: end
    depends_on: [stop]
    prompt: Go on.
    retry: {max_attempts: 2}
""", {}, {}, ("look", "end"), (5,)),
}  # fmt: skip

CREW = """\
researcher:
  role: a reader of {topic}
  goal: To find.
  backstory: Old.
  verbose: true
writer: {role: writer, goal: To write., backstory: New.}
"""

CREWAI = {
    "tasks": Workflow("config/tasks.yaml", """\
research_task:
  description: >
    Look for news about {topic}.
  expected_output: >
    A list.
  agent: researcher
write_task:
  description: Write an article about {topic}.
  expected_output: Markdown.
  agent: writer
  output_file: report.md
""", {"topic": "owls"}, {}, ("research_task", "write_task"), (11, 5),
        {"config/agents.yaml": CREW}),
    "context": Workflow("ctx/tasks.yaml", """\
a:
  description: One thing.
  expected_output: x
  async_execution: true
b:
  description: Another thing.
  expected_output: x
  async_execution: true
c:
  description: Put them together.
  expected_output: x
  context: [a, b]
  tools: [search]
""", {}, {}, ("a", "b", "c"), (13,)),
    "whole": Workflow("crew.yaml", """\
agents:
  editor:
    role: editor
    goal: Short texts
    backstory: None.
    llm: gpt-x
tasks:
  edit:
    description: Edit it.
    expected_output: Less.
    agent: editor
""", {}, {}, ("edit",), (6,)),
    "human": Workflow("h/tasks.yaml", """\
draft:
  description: Draft.
  expected_output: x
  agent: nobody
last:
  description: Finish.
  expected_output: x
  guardrail: check
""", {}, {}, ("draft", "last"), (4, 8)),
}  # fmt: skip

ALL = {
    f"{system}-{name}": (system, workflow)
    for system, workflows in (
        ("protoagent", PROTOAGENT),
        ("conductor", CONDUCTOR),
        ("archon", ARCHON),
        ("crewai", CREWAI),
        ("claude", CLAUDE),
    )
    for name, workflow in workflows.items()
}
