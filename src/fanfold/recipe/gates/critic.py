"""A gate that asks an agent for a verdict."""

from __future__ import annotations

from fanfold.kernel.plan import Step
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.roles import NamedRole
from fanfold.recipe.gates.gate import VERIFY, Gate, Judged, read_role
from fanfold.recipe.types.agent import AgentBody
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key

VERDICT_SCHEMA = {
    "type": "object",
    "properties": {"pass": {"type": "boolean"}, "feedback": {"type": "string"}},
    "required": ["pass", "feedback"],
    "additionalProperties": False,
}
_INSTRUCTION = (
    "Judge whether the result below reaches the goal. Answer with `pass`, and in `feedback` what "
    "has to change; check it against the files before you let it pass."
)


class CriticGate(Gate[NamedRole]):
    name = "critic"
    keys = (Key("agent", "text", "Role of a `critic` gate.", default="critic"),)
    until = "steps.verify.output.pass"

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> NamedRole:
        del draft
        return read_role(verify, unit)

    def step(self, kept: NamedRole, phase: Judged) -> Step:
        body = AgentBody(
            agent=kept.name,
            agent_version=kept.version,
            prompt=phase.results(_INSTRUCTION),
            model=phase.defaults.model,
            purpose="critic",
        )
        return phase.step(VERIFY, body, output_schema=VERDICT_SCHEMA)
