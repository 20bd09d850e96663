"""Forty plans made by a seed, with every kind of effect; each reports by itself what was executed.

Commands print the arguments and variables they got and whether they reach the network, functions return their
arguments, agents and programs write files: what a run did is read from its outputs and its changes, not from
anything that was predicted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPORT = """\
import json, os, socket, sys

def reaches():
    try:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", int(open("port").read()))) == 0
    except OSError:
        return False

own = {name: value for name, value in os.environ.items() if name[:2] == "V_"}
if "V_WRITES" in own:
    os.makedirs("made", exist_ok=True)
    open(own["V_WRITES"], "w").close()
print(json.dumps([sys.argv[1:], own, reaches()]))
"""
PROGRAM = ["python3", "report.py"]
SKILL = "---\nname: {}\ndescription: Helps\nallowed-tools: Bash(*)\nhooks: {{a: run.sh}}\n---\nRun run.sh.\n"
HANDLERS = "def report(**given):\n    return {'given': given}\n"
WORDS = (
    "plain",
    "two words",
    "quo'te",
    '"double"',
    "semi;colon",
    "$HOME",
    "`id`",
    "new\nline",
    "é—ü",
    "-rf",
    "{brace}",
    "*",
)


class PlanMaker:
    """One recipe, the recipes it calls and the script of its agents."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.name = f"plan-{seed}"
        self.files: dict[str, str] = {"handlers.py": HANDLERS, "report.py": REPORT}
        self.brought: dict[str, str] = {}
        self.writes: dict[str, Any] = {}
        self._steps: list[dict[str, Any]] = []
        makers = [
            self._command,
            self._shell,
            self._function,
            self._writer,
            self._mapped,
            self._called,
            self._set,
            self._grouped,
            self._looped,
            self._role,
            self._placed,
            self._saver,
            self._skilled,
        ]
        for number in range(self._dice.randint(2, 5)):
            self._dice.choice(makers)(f"s{number}")
        inputs = [{"name": "given", "default": self._word()}, {"name": "typed"}]
        self.files[f"{self.name}.yaml"] = json.dumps(
            {"name": self.name, "inputs": inputs, "steps": self._steps}
        )
        self.inputs = {"typed": self._word()}

    @property
    def script(self) -> str:
        return json.dumps({"default": "done", "steps": self.writes})

    def put(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(text)

    def bring(self, project: Path) -> None:
        """Write what a checkout brings besides recipes: roles and skills."""
        for name, text in self.brought.items():
            file = project / ".fanfold" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def _word(self) -> str:
        return self._dice.choice(WORDS)

    def _text(self, *more: str) -> str:
        holes = ("{{inputs.given}}", "{{inputs.typed}}", *more)
        return self._dice.choice(
            (self._word(), f"{self._word()} {self._dice.choice(holes)}", self._dice.choice(holes))
        )

    def _add(self, **step: Any) -> None:
        self._steps.append(step)

    def _command(self, name: str) -> None:
        run = [*PROGRAM, self._text(), self._text()]
        self._add(id=name, run=run, env={"V_A": self._text()}, network=self._dice.random() < 0.5)

    def _shell(self, name: str) -> None:
        line = 'exec python3 report.py "$V_B"'
        self._add(id=name, shell=line, inputs={"V_B": self._text()})

    def _function(self, name: str) -> None:
        given = {"a": self._text(), "b": self._dice.randint(0, 99), "c": [self._word(), {"d": None}]}
        self._add(id=name, handler="handlers:report", inputs=given)

    def _writer(self, name: str) -> None:
        self._add(id=name, agent="worker", prompt="write", write_set=[f"made/{name}.txt"])
        self.writes[name] = {"output": "ok", "writes": {f"made/{name}.txt": "x\n"}}

    def _mapped(self, name: str) -> None:
        items = [self._dice.choice(("a b", "c", "d'e", "f\ng")) for _ in range(3)]
        self._add(id=name, for_each=json.dumps(items), run=[*PROGRAM, "{{item}}", self._text("{{item}}")])

    def _called(self, name: str) -> None:
        inner = f"{self.name}-{name}"
        steps = [{"id": "in", "run": [*PROGRAM, "{{inputs.x}}", "{{inputs.y}}"]}]
        recipe = {
            "name": inner,
            "inputs": [{"name": "x"}, {"name": "y", "default": self._word()}],
            "steps": steps,
        }
        self.files[f"{inner}.yaml"] = json.dumps(recipe)
        self._add(id=name, workflow=f"./{inner}.yaml", inputs={"x": self._text()})

    def _set(self, name: str) -> None:
        word = json.dumps(self._word())
        self._add(id=name, set={"made": f"{word} + inputs.typed"})
        self._add(id=f"{name}u", depends_on=[name], run=[*PROGRAM, f"{{{{steps.{name}.output.made}}}}"])

    def _grouped(self, name: str) -> None:
        """A step of the group has the name of a step around it, and a value of its own."""
        inner = {"id": name, "when": "true", "set": {"made": json.dumps(self._word())}}
        used = {"id": "u", "depends_on": [name], "run": [*PROGRAM, f"{{{{steps.{name}.output.made}}}}"]}
        self._add(id=name, set={"made": "'around'"})
        self._add(id=f"{name}g", depends_on=[name], steps=[inner, used])

    def _looped(self, name: str) -> None:
        step = {"id": "in", "run": [*PROGRAM, self._text()], "env": {"V_A": self._word()}}
        self._add(id=name, repeat={"max_iterations": 2, "until": "iteration == 2"}, steps=[step])

    def _role(self, name: str) -> None:
        """A role with effects of its own. A script replaces its agent here, so they do not happen."""
        lines = [
            f'name = "{self.name}-{name}"',
            'description = "Reads"',
            'developer_instructions = "Read."',
            f"network = {json.dumps(self._dice.random() < 0.5)}",
            f'mcp_servers = {{own = {{command = "python3", args = {json.dumps(["-c", self._word()])}}}}}',
            f'pipeline = [{{tool = "run_command", args = {{argv = {json.dumps(["echo", self._word()])}}}}}]',
        ]
        self.brought[f"agents/{self.name}-{name}.toml"] = "\n".join(lines) + "\n"
        self._add(id=name, agent=f"{self.name}-{name}", prompt="p", posture="read_only")

    def _placed(self, name: str) -> None:
        """A step for the workers with a tag."""
        tag = self._dice.choice(("gpu", "big-disk"))
        self._add(id=name, run=[*PROGRAM, self._text()], runs_on=tag)

    def _saver(self, name: str) -> None:
        made = f"made/{name}.txt"
        self._add(id=name, run=[*PROGRAM, self._text()], env={"V_WRITES": made}, write_set=[made])

    def _skilled(self, name: str) -> None:
        """A skill with a script that nobody asked for: taking it along executes nothing."""
        skill = f"{self.name}-{name}"
        self.brought[f"skills/{skill}/SKILL.md"] = SKILL.format(skill)
        self.brought[f"skills/{skill}/run.sh"] = "touch made/executed\n"
        self._add(id=name, agent="explorer", prompt="p", skills=[skill])


def forty() -> Iterator[PlanMaker]:
    return (PlanMaker(seed) for seed in range(40))
