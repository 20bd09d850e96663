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
    provider: other
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
        ("safety", "speed", "sum_up"), (7, 21)),
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
    "release": Workflow("release.yaml", """\
workflow:
  name: release
  entry_point: where
  runtime: {default_model: small}
  limits: {budget_usd: 2.5}
  input:
    team: {type: string}
    level: {type: string, default: urgent}
    branch: {type: string, required: false}
  metadata: {owner: docs}
agents:
  - name: where
    type: set
    value: "{{ workflow.input.team }}/notes"
    routes: [{to: facts}]
  - name: facts
    type: set
    values:
      loud: "{{ workflow.input.level in ['urgent', 'high'] }}"
      onto: "{{ workflow.input.branch or 'main' }}"
      kind: "{{ 'big' if workflow.input.level == 'urgent' else 'small' }}"
    routes: [{to: probe}]
  - name: probe
    type: script
    command: sh
    args: ["-c", "echo {{ facts.output.onto }} {{ where.output }}; exit 3"]
    env: {LEVEL: calm}
    timeout: 20
    routes:
      - {to: broken, when: "exit_code == 0"}
      - {to: rest, when: "{{ output.exit_code == 3 and facts.output.loud }}"}
  - name: rest
    type: wait
    duration: 1
    reason: Let it settle.
    routes: [{to: stop}]
  - name: stop
    type: terminate
    status: success
    reason: "It said {{ probe.output.stdout }}"
    output_template: {said: "{{ probe.output.stdout }}", kind: "{{ facts.output.kind }}"}
  - name: broken
    type: terminate
    status: failed
    reason: It cannot be.
""", {"team": "owls"}, {}, ("where", "facts", "probe", "rest", "stop")),
    "poll": Workflow("poll.yaml", """\
workflow: {name: poll, entry_point: check}
agents:
  - name: check
    type: script
    command: sh
    args: ["-c", "echo '{\\"state\\": \\"ready\\", \\"tries\\": 2}'"]
    routes:
      - {to: report, when: "state == 'ready'"}
      - {to: pause}
  - name: pause
    type: wait
    duration: 10ms
    routes: [{to: check}]
  - name: report
    prompt: "Ready after {{ check.output.tries }}"
    routes: [{to: $end}]
output: {text: "{{ report.output.result }}", tries: "{{ check.output.tries }}"}
""", {}, {}, ("check_loop#1/check", "check_loop#1/report", "check_loop")),
    "again": Workflow("again.yaml", """\
workflow: {name: again, entry_point: mend}
agents:
  - name: mend
    prompt: |
      Mend {{ workflow.input.what }}. The last try said: {{ mend.output.notes }}
      The judge said: {{ judge.output.why | tojson }}
    output:
      notes: {type: string, required: false, nullable: true, pattern: "^[a-z]*$"}
      parts: {type: array, items: {type: object, properties: {n: {type: number, required: false}}}}
    reasoning: {effort: high}
    retry: {max_attempts: 3, delay_seconds: 0.5}
    max_session_seconds: 90
    routes: [{to: judge}]
  - name: judge
    prompt: "Judge {{ mend.output.parts | json }}"
    output: {good: {type: boolean}, why: {type: string}}
    routes:
      - {to: mend, when: "{{ not judge.output.good }}"}
      - {to: $end}
output: {parts: "{{ mend.output.parts }}"}
""", {"what": "it"}, {
        "mend_loop#1/mend": {"output": {"parts": [{"n": 1}, {}], "notes": "small"}},
        "mend_loop#1/judge": {"output": {"good": False, "why": "too small"}},
        "mend_loop#2/mend": {"output": {"parts": [], "notes": None}},
        "mend_loop#2/judge": {"output": {"good": True, "why": "good"}},
    },
        ("mend_loop#1/judge", "mend_loop#2/judge", "mend_loop")),
    "others": Workflow("others.yaml", """\
workflow: {name: others, entry_point: go}
agents:
  - name: go
    prompt: "Go. Later: {{ last.output.result }}"
    routes:
      - {to: sub, when: "{{ go.output.again }}"}
      - {to: last}
  - name: sub
    type: workflow
    workflow: ./other.yaml
    input_mapping: {a: b}
    routes: [{to: last}]
  - name: last
    type: set
    values: {a: "{{ x | upper }}", b: "{{ go.output.again }}"}
""", {}, {"go": {"output": {"again": False}}}, ("go", "last"), (3, 10, 15)),
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
""", {}, {"work#1": "not yet", "work#2": "DONE"}, ("work#1", "work#2", "work", "report"), (9,)),
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
    depends_on: [look, stop]
    trigger_rule: none_failed_min_one_success
    prompt: Go on.
    retry: {max_attempts: 2}
""", {}, {}, ("look", "end")),
    "words": Workflow("words.yaml", """\
name: words
nodes:
  - id: tell-it
    bash: |
      echo '{"state": "a  b", "n": 2}'
  - id: said
    depends_on: [tell-it]
    when: "$tell-it.output.n == 2"
    bash: |
      # don't trip over this: $HOME
      plain=$tell-it.output.state
      test "$plain" = "a  b" || exit 1
      test 'x: $tell-it.output.state' = "x: a  b" || exit 2
      test "$tell-it.output.state" = "a  b" || exit 3
      set -- $tell-it.output.state; test $# = 1 || exit 4
      echo "$ARGUMENTS" > "$ARTIFACTS_DIR/said.txt"
  - id: more
    depends_on: [said]
    bash: |
      set -euo pipefail
      [[ "$(cat "$ARTIFACTS_DIR/said.txt")" == hello ]] || exit 5
      printf '%s' '{{name}}' | grep -q '^{{name}}$'
      test $tell-it.output.n = 2
  - id: read
    depends_on: [more]
    effort: high
    prompt: Read $ARTIFACTS_DIR/said.txt, write $tell-it.output.state.md of $tell-it.output, not $PR_URL
""", {"arguments": "hello"}, {}, ("tell-it", "said", "more", "read")),
    "scripts": Workflow("flows/scripts.yaml", """\
name: scripts
nodes:
  - id: word
    prompt: Say a word.
  - id: near
    script: count
    runtime: uv
    deps: [httpx]
    depends_on: [word]
    when: "$word.output == 'never'"
  - id: inline
    script: |
      console.log("$word.output")
    runtime: bun
    depends_on: [word]
    when: "$word.output == 'never'"
  - id: far
    script: nowhere
    runtime: bun
    depends_on: [word]
    when: "$word.output == 'never'"
  - id: child
    workflow: other
    input: $word.output
    fan_out: {items: $word.output}
    depends_on: [word]
    when: "$word.output == 'never'"
""", {}, {}, ("word",), (18, 19, 23), {"scripts/count.py": "print(1)"}),
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
    "tasks": Workflow("news/tasks.yaml", """\
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
""", {"topic": "owls"}, {}, ("research_task", "write_task"), (5,),
        {"news/agents.yaml": CREW}),
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
  markdown: true
d:
  description: Wait for what nobody says.
  context: [later]
""", {}, {}, ("a", "b", "c", "d"), (13, 16)),
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
    "chain": Workflow("c/tasks.yaml", """\
write_it: {description: Write code., expected_output: Code., agent: writer}
review_it: {description: Review the code you got., expected_output: Code., agent: reviewer}
say_it: {description: Say what came of it., expected_output: Words., agent: writer}
""", {}, {"write_it": "x = 1", "review_it": "x = 2"}, ("write_it", "review_it", "say_it"), (),
        {"c/agents.yaml": "reviewer: {role: reviewer}\nwriter: {role: writer}\n"}),
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
