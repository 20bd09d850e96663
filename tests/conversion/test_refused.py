"""What a conversion cannot say is refused by `check`, never a step that runs and is paid for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold.cli.main import main


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(file: str, text: str) -> Any:
        (tmp_path / file).write_text(text)
        main(["convert", file, "--json"])
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize(
    "call",
    [
        "await agent(lens.prompt)",
        "await agent(`Look at ${lens.prompt}`)",
        "for (const one of args.list) { await agent('Look again') }",
        "if (args.deep) await agent('Look deeper')",
        "const more = args.deep ? await agent('Look deeper') : null",
        "async function look() { await agent('Look') }",
    ],
)
def test_an_agent_whose_prompt_or_condition_is_javascript_is_to_be_written(convert: Any, call: str) -> None:
    made = convert("w.js", f"await agent('First')\n{call}\n")
    assert not made["ok"]
    assert [one["code"] for one in made["diagnostics"]] == ["recipe.unknown_key"]
    assert made["text"].count("prompt:") == 1
    assert made["text"].count("to_be_written:") == 1


def test_constants_are_written_out_and_lists_of_them_become_maps(convert: Any) -> None:
    script = """\
const ROOT = 'src'
const STYLE = `Be short. Look in ${ROOT}.`
const LENSES = [{ key: 'bugs', prompt: 'Find bugs. ' + STYLE }, { key: 'docs', prompt: `Read ${ROOT}/docs` }]
const found = await parallel(LENSES.map(l => () => agent(l.prompt, { label: 'look' })))
const fixed = await pipeline(LENSES, l => agent(`Fix ${l.key} in ${ROOT}`), r => agent(`Check ${r}`))
return await agent(`Sum up ${JSON.stringify(found)} and ${JSON.stringify(fixed)}. ${STYLE}`)
"""
    made = convert("w.js", script)
    assert (made["ok"], made["lost"]) == (True, [])
    for text in ("Find bugs. Be short. Look in src.", "Fix {{item.key}} in src", "Be short. Look in src."):
        assert text in made["text"]
    assert made["text"].count("for_each:") == 2


def test_a_statement_that_is_lost_is_listed_once(convert: Any) -> None:
    lost = "const all = list.filter(\n  (one) => one.good,\n).map((one) => {\n  return one\n})\n"
    script = f"await agent('A')\n{lost}"
    made = convert("w.js", script)
    assert [one["line"] for one in made["lost"]] == [2]


def test_losses_around_a_call_are_shown_without_the_call(convert: Any) -> None:
    script = "const all = await pipeline(args.list,\n  (one) => agent(ask(one), {\n    model: 'haiku' }),\n"
    made = convert("w.js", script + "  (found) => vote(found),\n)\nconst { deep } = read(args)\n")
    assert [(one["line"], one["what"]) for one in made["lost"]] == [
        (1, "const all = await pipeline(args.list, (one) => agent(ask(one),"),
        (4, "(found) => vote(found), )"),
        (6, "const { deep } = read(args)"),
    ]


ARCHON = """\
name: parts
nodes:
  - {id: child, workflow: other, input: "$ARGUMENTS"}
  - {id: block, include: shared, with: {focus: the fix, base: "$child.output"}}
  - id: each
    workflow: probe
    fan_out: {items: '["a", "b"]', max_parallel: 2, join: all_done}
  - {id: self, depends_on: [each], prompt: "Say more than $self.output in $BASE_BRANCH"}
  - id: rounds
    depends_on: [self]
    loop_group:
      max_iterations: 3
      nodes:
        - {id: work, prompt: Work}
        - {id: judge, depends_on: [work], prompt: "Judge $work.output"}
      until: DONE
  - {id: build, bash: "make BRANCH=$BASE_BRANCH"}
"""


def test_parts_of_an_archon_workflow_become_sub_workflows_maps_and_loops(
    convert: Any, tmp_path: Path
) -> None:
    for name, inputs in (("other", "arguments"), ("probe", "arguments")):
        text = f"name: {name}\ninputs: {{{inputs}: {{}}}}\nsteps: [{{id: a, prompt: x}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    shared = "name: shared\ninputs: {focus: {}, base: {}}\nsteps: [{id: a, prompt: x}]\n"
    (tmp_path / "shared.yaml").write_text(shared)
    made = convert("parts.archon.yaml", ARCHON)
    assert made["diagnostics"] == [], made["text"]
    for part in (
        "workflow: ./other.yaml",
        "arguments: '{{inputs.arguments}}'",
        "base: '{{steps.child.output}}'",
        'for_each: \'["a", "b"]\'',
        "arguments: item",
        "Say more than $self.output in {{inputs.base_branch}}",
        "max_iterations: 3",
        "BASE_BRANCH: inputs.base_branch",
    ):
        assert part in made["text"], part


def test_inputs_of_an_included_workflow_are_inputs_in_prompts_and_scripts(convert: Any) -> None:
    nodes = "  - {id: a, bash: 'git diff \"$INPUTS.base\"'}\n  - {id: b, prompt: Look for $INPUTS.focus}\n"
    made = convert("w.yaml", f"name: w\nnodes:\n{nodes}")
    assert made["ok"], made["text"]
    assert "INPUTS_base: inputs.base" in made["text"]
    assert "Look for {{inputs.focus}}" in made["text"]


def test_a_command_that_is_not_there_is_to_be_written(convert: Any) -> None:
    made = convert("w.yaml", "name: w\nnodes:\n  - {id: a, command: nowhere}\n")
    assert not made["ok"]
    assert "to_be_written: the prompt of the command nowhere" in made["text"]


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ("- {{ one }}", []),
        ("{{ loop.index }}. {{ one }}", []),
        ("{{ one.name }}", [4]),
        ("see {{ one }}", [4]),
    ],
)
def test_a_loop_over_a_list_in_a_prompt_becomes_the_list(convert: Any, body: str, lost: list[int]) -> None:
    prompt = f"Known: {{% for one in find.output.items %}}{body}{{% endfor %}}"
    text = (
        "workflow: {name: w, entry_point: find}\nagents:\n"
        "  - {name: find, prompt: Find, output: {items: {type: array}}, routes: [{to: use}]}\n"
        f"  - {{name: use, prompt: '{prompt}'}}\n"
    )
    made = convert("w.yaml", text)
    assert (made["ok"], [one["line"] for one in made["lost"]]) == (True, lost)
    assert "Known: {{steps.find.output.items}}" in made["text"]


def test_a_logic_of_templates_is_listed_once_where_it_opens(convert: Any) -> None:
    text = (
        "workflow: {name: w, entry_point: find}\nagents:\n"
        "  - {name: find, prompt: Find, output: {items: {type: array}}, routes: [{to: use}]}\n"
        "  - name: use\n    prompt: |\n      {% for one in find.output.items %}- {{ one }}{% endfor %}\n"
        "      {% if find.output.items %}some{% else %}none{% endif %}\n"
        "      {% for a, b in find.output.items %}x{% endfor %}\n"
    )
    made = convert("w.yaml", text)
    assert [one["line"] for one in made["lost"]] == [7, 8]


def test_settings_for_all_agents_of_a_workflow_are_written_to_each(convert: Any) -> None:
    text = (
        "workflow:\n  name: w\n  entry_point: a\n"
        "  runtime: {default_reasoning_effort: medium, max_agent_iterations: 20}\n"
        "agents:\n  - {name: a, prompt: A, routes: [{to: b}]}\n"
        "  - {name: b, prompt: B, reasoning: {effort: high}, max_agent_iterations: 5}\n"
    )
    made = convert("w.yaml", text)
    assert (made["ok"], made["lost"]) == (True, [])
    steps = yaml.safe_load(made["text"])["steps"]
    assert [(one["reasoning_effort"], one["max_turns"]) for one in steps] == [("medium", 20), ("high", 5)]


def test_a_recipe_of_protoagent_keeps_failures_as_outputs(convert: Any) -> None:
    made = convert("w.yaml", "name: w\nsteps: [{id: a, subagent: researcher, prompt: x}]\n")
    assert made["ok"]
    assert made["text"].endswith("\non_failure: inline\n")


def test_a_program_may_change_files_and_use_the_network_as_it_could(convert: Any) -> None:
    nodes = "  - {id: a, bash: 'gh issue list > issues.txt'}\n  - {id: b, bash: git commit -m x}\n"
    made = convert("w.yaml", f"name: w\nnodes:\n{nodes}")
    assert "shell: gh issue list > issues.txt\n  write_set:\n  - '**/*'\n  network: true" in made["text"]
    assert "commits and branches of git" in made["text"]
    assert [one["line"] for one in made["lost"] if one["what"] == "node b: git commit"] == [4]


@pytest.mark.parametrize("command", ["gh pr checkout 12", "git fetch origin main", "git -C . add -A"])
def test_a_program_that_writes_into_the_folder_of_git_is_refused(convert: Any, command: str) -> None:
    made = convert("w.yaml", f"name: w\nnodes:\n  - {{id: a, bash: '{command}'}}\n")
    assert not made["ok"]
    assert made["text"].count("to_be_written:") == 1
    assert [one["line"] for one in made["lost"] if one["what"].startswith("node a: g")][-1:] == [3]
    assert convert("w.yaml", "name: w\nnodes:\n  - {id: a, bash: git status && git diff HEAD}\n")["ok"]


def test_a_file_that_one_step_leaves_for_another_outside_the_project_is_listed(convert: Any) -> None:
    nodes = (
        "  - {id: a, bash: 'echo 1 > /tmp/state.txt'}\n  - {id: b, bash: 'cat /tmp/state.txt ~/.x $HOME/y'}\n"
    )
    made = convert("w.yaml", f"name: w\nnodes:\n{nodes}")
    assert [(one["line"], one["what"]) for one in made["lost"]] == [
        (3, "node a: /tmp/state.txt"),
        *((4, f"node b: {path}") for path in ("$HOME/y", "/tmp/state.txt", "~/.x")),
    ]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("runtime: {skills: [s]}", "runtime: skills"),
        ("runtime: {plugins: [{source: p}]}", "runtime: plugins"),
        ("runtime: {working_dir: sub}", "runtime: working_dir"),
        ("instructions: [Answer in English.]", "workflow: instructions"),
    ],
)
def test_values_for_all_agents_of_a_workflow_are_refused_in_each(
    convert: Any, place: str, words: str
) -> None:
    agents = "agents:\n  - {name: a, prompt: A, routes: [{to: b}]}\n  - {name: b, prompt: B, skills: []}\n"
    made = convert("w.yaml", f"workflow:\n  entry_point: a\n  {place}\n{agents}")
    assert [one["what"] for one in made["lost"]] == [words]
    assert made["text"].count("to_be_written:") == (1 if "skills" in words else 2)


@pytest.mark.parametrize(
    ("key", "value"), [("stdin", "words"), ("working_dir", "sub"), ("dialog", "{}"), ("session_key", "k")]
)
def test_a_key_that_changes_what_an_agent_does_is_refused_not_dropped(
    convert: Any, key: str, value: str
) -> None:
    agent = f"{{name: a, prompt: Do it, {key}: {value}}}"
    made = convert("w.yaml", f"workflow: {{name: w, entry_point: a}}\nagents:\n  - {agent}\n")
    assert not made["ok"]
    assert [one["line"] for one in made["lost"]] == [3]


CONDITIONAL = """\
export const meta = {{ name: 'w', description: 'x' }}
const found = await agent('Find')
{statement}
const told = await agent('Tell')
return told
"""


@pytest.mark.parametrize(
    "statement",
    [
        "if (!found) return { error: 'none' }",
        "if (found.bad) throw new Error('bad')",
        "if (found.bad) {\n  log('bad')\n  return null\n}",
        "for (const one of found.all) { if (one) return one }",
        "try { check(found) } catch (e) { return null }",
    ],
)
def test_steps_after_a_possible_end_of_the_script_are_to_be_written(convert: Any, statement: str) -> None:
    made = convert("w.js", CONDITIONAL.format(statement=statement))
    steps = yaml.safe_load(made["text"])["steps"]
    assert not made["ok"]
    assert ["to_be_written" in step for step in steps] == [False, True]
    assert made["lost"]


@pytest.mark.parametrize(
    "statement",
    ["const help = (x) => { if (!x) return null; return x }", "function help(x) { if (!x) throw x }"],
)
def test_the_end_of_a_function_does_not_end_the_script(convert: Any, statement: str) -> None:
    assert convert("w.js", CONDITIONAL.format(statement=statement))["ok"]


@pytest.mark.parametrize(
    "guard",
    [
        "if (!args.path) throw new Error('which path?')",
        "if (!args || !args.path) {\n  log('which path?')\n  return { error: 'no path' }\n}",
    ],
)
def test_a_script_that_ends_without_an_argument_requires_it(convert: Any, guard: str) -> None:
    made = convert("w.js", f"{guard}\nconst a = await agent(`Look at ${{args.path}}`)\nreturn a\n")
    assert (made["ok"], made["lost"]) == (True, [])
    assert yaml.safe_load(made["text"])["inputs"] == {"path": {"required": True}}


def test_a_part_of_a_parallel_call_that_is_not_understood_is_to_be_written(convert: Any) -> None:
    made = convert("w.js", "const all = await parallel([() => agent('One'), () => help(2)])\nreturn all\n")
    steps = yaml.safe_load(made["text"])["steps"]
    assert (made["ok"], steps[1]["to_be_written"]) == (False, "() => help(2)")


def test_a_call_of_another_workflow_in_a_script_is_to_be_written(convert: Any) -> None:
    made = convert(
        "w.js", "const a = await agent('One')\nconst b = await workflow('deep', { a })\nreturn a\n"
    )
    steps = yaml.safe_load(made["text"])["steps"]
    assert [step["id"] for step in steps] == ["a", "b"]
    assert (made["ok"], steps[1]["to_be_written"]) == (False, "workflow('deep', { a })")
    assert [one["line"] for one in made["lost"]] == [2]


def test_an_agent_whose_schema_is_not_understood_is_to_be_written(convert: Any) -> None:
    made = convert("w.js", "const a = await agent('One', { schema: made(1) })\nreturn a\n")
    assert not made["ok"]
    assert yaml.safe_load(made["text"])["steps"][0]["to_be_written"] == "One"


def test_agents_of_parallel_calls_may_fail_as_in_the_script(convert: Any) -> None:
    text = (
        "const LIST = ['a', 'b']\nconst one = await parallel(LIST.map((x) => () => agent(`Do ${x}`)))\n"
        "const two = await parallel([() => agent('One'), () => agent('Two')])\n"
        "const three = await pipeline(LIST, (x) => agent(`First ${x}`))\nreturn { one, two, three }\n"
    )
    made = convert("w.js", text)
    steps = yaml.safe_load(made["text"])["steps"]
    assert made["ok"]
    assert [step["id"] for step in steps if step.get("on_failure") == "inline"] == [
        "one", "two1", "two2", "three"
    ]  # fmt: skip


def test_an_object_is_one_statement_among_the_losses(convert: Any) -> None:
    made = convert(
        "w.js",
        "const a = await agent('One')\nconst all = {\n  a: f(1),\n  b: 2,\n}\nreturn {\n  x: g(a),\n}\n",
    )
    assert [one["line"] for one in made["lost"]] == [2, 6]


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("w.yaml", "name: w\nnodes:\n  - {id: a, prompt: 'Then git commit it and gh pr create it'}\n", 3),
        (
            "w.yaml",
            "workflow: {entry_point: a}\nagents: [{name: a, prompt: 'git commit it, gh pr create it'}]\n",
            2,
        ),
        ("w.js", "const a = await agent('Then git commit it and gh pr create it')\nreturn a\n", 1),
    ],
)
def test_a_prompt_that_asks_for_commits_and_the_network_is_listed_and_to_be_written(
    convert: Any, file: str, text: str, line: int
) -> None:
    made = convert(file, text)
    assert (made["ok"], "to_be_written: " in made["text"]) == (False, True)
    assert [(one["line"], one["what"].rpartition(": ")[2]) for one in made["lost"]] == [
        (line, "gh"),
        (line, "git commit"),
    ]


def test_a_prompt_that_forbids_commits_is_kept(convert: Any) -> None:
    assert convert("w.yaml", "name: w\nnodes:\n  - {id: a, prompt: 'Do not git commit anything'}\n")["ok"]


def test_a_question_shows_the_output_of_the_node_before_it(convert: Any) -> None:
    asks = "{id: b, depends_on: [a], approval: {message: Answer the questions above, capture_response: true}}"
    made = convert("w.yaml", f"name: w\nnodes:\n  - {{id: a, prompt: Ask}}\n  - {asks}\n")
    assert (made["ok"], made["lost"]) == (True, [])
    assert yaml.safe_load(made["text"])["steps"][1]["show"] == "{{steps.a.output}}"


def test_a_model_that_only_archon_knows_is_listed(convert: Any) -> None:
    nodes = "  - {id: a, prompt: A, model: small}\n  - {id: b, prompt: B, model: opus}\n"
    text = f"name: w\nmodel: '@mini'\nnodes:\n{nodes}"
    made = convert("w.yaml", text)
    assert sorted(one["line"] for one in made["lost"]) == [2, 4]
    assert [one.get("model") for one in yaml.safe_load(made["text"])["steps"]] == [None, "opus"]


def test_a_command_that_needs_a_login_is_listed(convert: Any) -> None:
    made = convert("w.yaml", "name: w\nnodes:\n  - {id: a, bash: 'gh pr list'}\n")
    assert (made["ok"], [one["what"] for one in made["lost"]]) == (True, ["node a: gh"])


TASKS = (
    "find: {description: 'Find {what}', expected_output: x}\ntell: {description: Tell, expected_output: x}\n"
)
AGENTS = "finder: {role: a finder, goal: g, backstory: s}\nteller: {role: a teller, goal: g, backstory: s}\n"
CREW = """\
@CrewBase
class Birds:
    @agent
    def seeker(self) -> Agent:
        return Agent(config=self.agents_config["finder"], tools=[Search()])
    @agent
    def teller(self) -> Agent:
        return Agent(config=self.agents_config["teller"])
    @task
    def find(self) -> Task:
        return Task(config=self.tasks_config["find"], agent=self.seeker())
    @task
    def tell(self) -> Task:
        return Task(config=self.tasks_config["tell"], agent=self.teller(), context=[self.find()])
    @crew
    def crew(self) -> Crew:
        return Crew(agents=self.agents, tasks=self.tasks, process=Process.{process})
"""


def _crew(folder: Path, process: str = "") -> None:
    (folder / "birds" / "config").mkdir(parents=True)
    (folder / "birds" / "config" / "agents.yaml").write_text(AGENTS)
    if process:
        (folder / "birds" / "crew.py").write_text(CREW.format(process=process))


def test_the_program_of_a_crew_says_who_does_a_task(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path, "sequential")
    made = convert("birds/config/tasks.yaml", TASKS)
    assert [(one["line"], one["what"]) for one in made["lost"]] == [(5, "seeker: tools")]
    first, second = yaml.safe_load(made["text"])["steps"]
    assert first["prompt"].startswith("You are a finder.")
    assert second["prompt"].startswith("You are a teller.")
    assert second["depends_on"] == ["find"]
    assert ("to_be_written" in first, "to_be_written" in second) == (True, False)


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("agent=self.teller(), human_input=True", []),
        ("agent=self.teller(), guardrail=check", [(14, "tell: guardrail")]),
        ("agent=self.teller(), odd=1", [(14, "tell: odd")]),
    ],
)
def test_settings_in_the_program_of_a_crew_are_converted_or_listed(
    convert: Any, tmp_path: Path, line: str, lost: list[tuple[int, str]]
) -> None:
    _crew(tmp_path, "sequential")
    program = tmp_path / "birds" / "crew.py"
    text = program.read_text().replace("agent=self.teller()", line).replace("Search()", "")
    program.write_text(text.replace("    @crew", "    @before_kickoff\n    def look(self): ...\n    @crew"))
    made = convert("birds/config/tasks.yaml", TASKS)
    assert [(one["line"], one["what"]) for one in made["lost"]] == [*lost, (15, "look: @before_kickoff")]
    gates = [step for step in yaml.safe_load(made["text"])["steps"] if "approve" in step]
    assert len(gates) == ("human_input" in line)


def test_settings_that_the_program_of_a_crew_computes_are_listed(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path, "sequential")
    program = tmp_path / "birds" / "crew.py"
    text = program.read_text().replace("agent=self.teller()", "agent=self.teller(), human_input=self.asks")
    text = text.replace("process=Process.sequential", "**self.more").replace("Search()", "")
    program.write_text(text)
    made = convert("birds/config/tasks.yaml", TASKS)
    assert [one["what"] for one in made["lost"]] == ["tell: human_input", "crew: **self.more"]
    assert all("to_be_written" in step for step in yaml.safe_load(made["text"])["steps"])


def test_a_program_that_runs_several_crews_is_refused(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path, "sequential")
    program = tmp_path / "birds" / "crew.py"
    text = program.read_text().replace("Search()", "")
    program.write_text(f"{text}\n    @crew\n    def other(self):\n        return Crew(tasks=self.tasks)\n")
    made = convert("birds/config/tasks.yaml", TASKS)
    assert [one["what"] for one in made["lost"]] == ["other: Crew 2"]
    assert all("to_be_written" in step for step in yaml.safe_load(made["text"])["steps"])


def test_a_program_of_another_name_is_read_and_a_missing_one_is_listed(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path, "sequential")
    program = (tmp_path / "birds" / "crew.py").rename(tmp_path / "birds" / "bird_crew.py")
    assert [one["what"] for one in convert("birds/config/tasks.yaml", TASKS)["lost"]] == ["seeker: tools"]
    program.unlink()
    lost = convert("birds/config/tasks.yaml", TASKS)["lost"]
    assert "the program of the crew" in [one["what"] for one in lost]


def test_a_task_that_only_the_file_or_only_the_program_has_is_listed(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path, "sequential")
    made = convert("birds/config/tasks.yaml", TASKS.replace("tell:", "sing:"))
    assert {"task tell", "task sing"} <= {one["what"] for one in made["lost"]}
    assert not made["ok"]


AGENT = "workflow: {name: w, entry_point: a%s}\nagents: [{name: a, prompt: Go%s}]\n"
NODE = "name: w\nnodes: [{id: a, %s}]\n"


def test_a_model_that_an_input_chooses_is_to_be_written(convert: Any) -> None:
    given = ", model: '{{ workflow.input.m }}', reasoning: {effort: '{{ workflow.input.e }}'}"
    made = convert("w.yaml", AGENT % (", input: {m: {type: string}, e: {type: string}}", given))
    (step,) = yaml.safe_load(made["text"])["steps"]
    assert step["to_be_written"] == "Go"
    lost = ["agent a: model: {{inputs.m}}", "agent a: reasoning_effort: {{ workflow.input.e }}"]
    assert [one["what"] for one in made["lost"]] == lost


def test_a_file_of_descriptions_is_no_crew(convert: Any) -> None:
    made = convert("schema.yaml", "score: {type: number, description: How good it is}\n")
    assert made["error"]["code"] == "convert.unknown"


@pytest.mark.parametrize(
    "text",
    [
        AGENT % ("", ", tools: [web_search]"),
        AGENT % (", runtime: {mcp_servers: {web: {command: x}}}", ""),
        NODE % "prompt: Go, mcp: servers.json",
        NODE % "prompt: Go, skills: [birds]",
        NODE % "prompt: Go, agent: general",
        NODE % "prompt: Go, systemPrompt: Be brief",
        NODE % "prompt: Go, hooks: {PreToolUse: [{matcher: Bash, decision: deny}]}",
        NODE % """runtime: bun, script: "read('$ARTIFACTS_DIR/x')" """,
    ],
)
def test_an_agent_without_its_tools_or_limits_is_to_be_written(convert: Any, text: str) -> None:
    made = convert("w.yaml", text)
    assert not made["ok"]
    assert "to_be_written" in made["text"]
    assert made["lost"]


SCRIPT = """\
const dir = process.env['ARTIFACTS_DIR']
const said = process.env.ARGUMENTS
spawn('gh', ['pr', 'list'])
"""


def test_a_script_of_archon_gets_the_variables_and_rights_that_its_file_needs(
    convert: Any, tmp_path: Path
) -> None:
    for folder in ("x/scripts", "x/workflows"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "x/scripts/list.ts").write_text(SCRIPT)
    made = convert("x/workflows/w.yaml", NODE % "script: list, runtime: bun")
    (step,) = yaml.safe_load(made["text"])["steps"]
    assert step["run"][:4] == ["sh", "-c", 'ARTIFACTS_DIR="$FANFOLD_ARTIFACTS" exec "$@"', "sh"]
    assert step["env"] == {"ARGUMENTS": "{{inputs.arguments}}"}
    assert step["network"] is True
    assert [one["what"] for one in made["lost"]] == ["node a: gh in x/scripts/list.ts"]


def test_a_shell_script_of_archon_gets_the_variables_that_its_programs_read(convert: Any) -> None:
    made = convert("w.yaml", NODE % """bash: "python3 -c 'print(os.environ[`ARTIFACTS_DIR`])'" """)
    (step,) = yaml.safe_load(made["text"])["steps"]
    assert step["shell"].startswith('export ARTIFACTS_DIR="$FANFOLD_ARTIFACTS"\n')


@pytest.mark.parametrize("process", ["", "hierarchical"])
def test_a_task_of_which_it_is_not_known_who_does_it_is_to_be_written(
    convert: Any, tmp_path: Path, process: str
) -> None:
    _crew(tmp_path, process)
    made = convert("birds/config/tasks.yaml", TASKS)
    assert not made["ok"]
    assert all("to_be_written" in step for step in yaml.safe_load(made["text"])["steps"])
    assert made["lost"]


def test_a_call_after_agents_side_by_side_waits_for_all_of_them(convert: Any) -> None:
    both = "await parallel([() => agent('A', {label: 'a'}), () => agent('B', {label: 'b'})])"
    made = convert("w.js", f"{both}\nawait agent('C', {{label: 'c'}})\n")
    assert yaml.safe_load(made["text"])["steps"][-1]["depends_on"] == ["a", "b"]
    assert made["ok"]


def test_a_list_of_texts_that_is_joined_is_a_constant(convert: Any) -> None:
    made = convert("w.js", "const RULES = ['One', 'Two'].join('\\n')\nawait agent(`Follow:\n${RULES}`)\n")
    assert yaml.safe_load(made["text"])["steps"][0]["prompt"] == "Follow:\nOne\nTwo"
    assert (made["ok"], made["lost"]) == (True, [])


def test_arguments_in_brackets_are_inputs(convert: Any) -> None:
    given = "const A = (typeof args === 'string' ? JSON.parse(args) : (args || {}))"
    made = convert(
        "w.js",
        f"{given}\nconst doc = A.doc\nif (!doc) throw new Error('doc')\nawait agent(`Read ${{doc}}`)\n",
    )
    recipe = yaml.safe_load(made["text"])
    assert (recipe["inputs"], recipe["steps"][0]["prompt"]) == (
        {"doc": {"required": True}},
        "Read {{inputs.doc}}",
    )
    assert (made["ok"], made["lost"]) == (True, [])


@pytest.mark.parametrize(
    ("prompt", "refused"),
    [
        ("Fix it with the smallest change, then commit.", True),
        ("Open a draft pull request.", True),
        ("Never commit the lock file.", False),
        ("Say whether it is ready to open as a PR.", False),
    ],
)
def test_a_prompt_that_requests_a_commit_in_prose_is_to_be_written(
    convert: Any, prompt: str, refused: bool
) -> None:
    made = convert("w.yaml", NODE % f"prompt: {prompt!r}")
    assert (not made["ok"], bool(made["lost"])) == (refused, refused)


ITEMS = "{ schema: { type: 'object', properties: { items: { type: 'array' } } } }"


@pytest.mark.parametrize(
    "script",
    [
        f"const a = await agent('A', {ITEMS}).then(r => r.items)\nawait agent(`Use ${{JSON.stringify(a)}}`)",
        "let a = await agent('A')\na = a.trim()\nawait agent(`Use ${a}`)",
        "let a = args.list\na.push('x')\nawait agent('A')\nawait agent(`Use ${a}`)",
        "const L = ['a']\nL.push('b')\nawait agent('A')\nawait agent(`Use ${L.join(' ')}`)",
        "const a = await agent('A')\nawait agent('Use', { model: args.cheap ? 'small' : 'large' })",
        f"const OPTIONS = {ITEMS}\nawait agent('A')\nawait agent('Use', OPTIONS)",
        "const MORE = { effort: 'low' }\nawait agent('A')\nawait agent('Use', { ...MORE, label: 'b' })",
        "await pipeline(['q'], x => agent(`A ${x}`).then(r => r.y), r => agent(`Use ${r}`))",
    ],
)
def test_values_that_javascript_changed_are_not_used_unchanged(convert: Any, script: str) -> None:
    made = convert("w.js", script)
    assert not made["ok"]
    assert (made["text"].count("prompt: A"), made["text"].count("to_be_written: Use")) == (1, 1)
    assert made["lost"]


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ("return a", "{{steps.a.output}}"),
        ("return { a }", {"a": "steps.a.output"}),
        ("return { n: a.length }", "{{to_be_written}}"),
        ("return", None),
    ],
)
def test_a_result_that_javascript_computes_is_to_be_written(convert: Any, given: str, output: Any) -> None:
    script = f"export default async function main() {{\nconst a = await agent('A')\n{given}\n}}\n"
    made = convert("w.js", script)
    assert yaml.safe_load(made["text"]).get("output") == output
    assert made["ok"] == ("to_be_written" not in str(output))


@pytest.mark.parametrize(
    ("prompt", "refused"),
    [
        ("Run gh issue list and sort them.", True),
        ("Search the web for news.", True),
        ("Use WebFetch on each page.", True),
        ("Do not run gh issue create.", False),
        ("Run npm test.", False),
    ],
)
def test_a_prompt_that_requests_the_network_is_to_be_written(
    convert: Any, prompt: str, refused: bool
) -> None:
    made = convert("w.yaml", NODE % f"prompt: {prompt!r}")
    assert ("to_be_written" in made["text"]) == refused
    assert made["lost"] or not refused


def test_a_loop_with_a_command_keeps_the_settings_of_its_agent(convert: Any) -> None:
    node = (
        "allowed_tools: [Read], model: opus, idle_timeout: 5000, loop: {prompt: %s, until_bash: 'test -f x'}"
    )
    made = convert("w.yaml", NODE % (node % "Go"))
    (step,) = yaml.safe_load(made["text"])["steps"]
    work = step["steps"][0]
    assert (work["tools"], work["model"], work["idle_timeout_ms"]) == (["Read"], "opus", 5000)
    assert (made["ok"], made["lost"]) == (True, [])
    made = convert("w.yaml", NODE % (node % "Then git commit it"))
    assert not made["ok"]
    assert [one["what"] for one in made["lost"]] == ["node a: git commit"]


def test_a_step_after_failures_says_that_earlier_ones_end_the_run(convert: Any) -> None:
    last = ", {id: last, depends_on: [b], trigger_rule: all_done, bash: 'true'}"
    nodes = "{id: a, bash: 'true'}, {id: b, depends_on: [a], bash: 'true'}"
    made = convert("w.yaml", f"name: w\nnodes: [{nodes}{last}]\n")
    assert (made["ok"], [one["what"] for one in made["lost"]]) == (True, ["node last: trigger_rule"])


def test_a_program_that_prints_json_need_not_print_its_exit_code(convert: Any) -> None:
    text = """\
workflow: {name: w, entry_point: a, runtime: {max_session_seconds: 60}}
agents:
  - name: a
    type: script
    command: ./a
    routes: [{to: b, when: "{{ output.found }}"}, {to: $end, when: "{{ a.output.exit_code > 0 }}"}]
  - {name: b, prompt: Go}
"""
    a, b = yaml.safe_load(convert("w.yaml", text)["text"])["steps"]
    assert a["output_schema"]["required"] == ["found"]
    assert b["timeout_ms"] == 60_000


def test_a_text_in_another_file_is_part_of_the_prompt(convert: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "go.md").write_text('Say "{{ workflow.input.word }}".\nThen stop: now.\n')
    text = "workflow: {name: w, entry_point: a}\nagents:\n  - name: a\n    prompt: !file prompts/%s.md\n"
    made = convert("w.yaml", text % "go")
    (step,) = yaml.safe_load(made["text"])["steps"]
    assert step["prompt"] == 'Say "{{inputs.word}}".\nThen stop: now.\n'
    assert "w.yaml:4: !file prompts/none.md is not read" in str(convert("w.yaml", text % "none"))


def test_tasks_run_in_the_order_of_the_program_of_their_crew(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path, "sequential")
    program = tmp_path / "birds" / "crew.py"
    swapped = CREW.replace(", context=[self.find()]", "").replace(
        "tasks=self.tasks", "tasks=[self.tell(), self.find()]"
    )
    program.write_text(swapped.format(process="sequential").replace("Search()", ""))
    made = convert("birds/config/tasks.yaml", TASKS)
    first, second = yaml.safe_load(made["text"])["steps"]
    assert (first["id"], second["id"], second["depends_on"]) == ("tell", "find", ["tell"])
    assert (made["ok"], made["lost"]) == (True, [])


def test_a_task_writes_its_result_into_its_file(convert: Any) -> None:
    made = convert("tasks.yaml", "tell: {description: Tell, expected_output: x, output_file: out/a.md}\n")
    (step,) = yaml.safe_load(made["text"])["steps"]
    assert step["write_set"] == ["out/a.md"]
    assert step["prompt"].endswith("Also write the complete result to the file out/a.md.")
    assert (made["ok"], made["lost"]) == (True, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("agent=self.teller()", "agent=self.teller(), guardrail=check"),
        ("    @crew", "    @before_kickoff\n    def look(self): ...\n    @crew"),
        ('config=self.tasks_config["tell"]', 'config=dict(self.tasks_config["tell"], description="x")'),
        ("agent=self.teller()", 'agent=self.teller(), output_file=f"{day}.md"'),
        ("tasks=self.tasks", "tasks=self.tasks, memory=True"),
    ],
)
def test_a_task_that_python_changes_is_to_be_written(
    convert: Any, tmp_path: Path, before: str, after: str
) -> None:
    _crew(tmp_path, "sequential")
    program = tmp_path / "birds" / "crew.py"
    program.write_text(program.read_text().replace("Search()", "").replace(before, after))
    made = convert("birds/config/tasks.yaml", TASKS)
    assert "to_be_written" in yaml.safe_load(made["text"])["steps"][1]


def test_a_crew_whose_program_is_not_found_is_to_be_written(convert: Any, tmp_path: Path) -> None:
    _crew(tmp_path)
    made = convert("birds/config/tasks.yaml", TASKS.replace("x}", "x, agent: teller}"))
    assert all("to_be_written" in step for step in yaml.safe_load(made["text"])["steps"])


def test_a_loop_that_continues_its_conversation_gets_its_last_reply(convert: Any) -> None:
    for context, told in (("", True), (", fresh_context: true", False)):
        made = convert("w.yaml", NODE % f"loop: {{prompt: Go, until: DONE{context}}}")
        assert ("{{feedback}}" in made["text"]) == told
        assert made["ok"]


def test_a_process_in_the_background_is_to_be_written(convert: Any) -> None:
    for script, refused in (("serve &", True), ("serve & wait", False), ("a && b", False)):
        assert convert("w.yaml", NODE % f"bash: {script!r}")["ok"] != refused
