"""A gate that asks an agent for a verdict, with evidence that is looked up before it counts."""

from __future__ import annotations

from fanfold.kernel.plan import Step
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.roles import NamedRole
from fanfold.recipe.gates.gate import VERIFY, Gate, Judged, read_role
from fanfold.recipe.gates.verdicts import CRITIC, VERDICT_SCHEMA
from fanfold.recipe.types.agent import AgentBody
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key


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
            prompt=phase.question(CRITIC),
            model=phase.defaults.model,
            purpose="critic",
        )
        return phase.step(VERIFY, body, output_schema=VERDICT_SCHEMA)
