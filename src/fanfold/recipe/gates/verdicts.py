"""What critics and reviewers answer: typed, and with evidence that can be looked up.

A piece of evidence is a place and what stands there. It is looked up after the answer (see
`runtime.steps.cited_evidence`): what is not there counts against whoever quoted it. `found` is filled in
then, whatever the agent wrote.
"""

from __future__ import annotations

from fanfold.kernel.plan import JSON

RESULT = "result"
"""As the file of a quote: what was judged, instead of a file of the project."""
MAX_QUOTES = 20
MAX_QUOTE_CHARS = 1_000
MAX_VERDICTS = 200

EVIDENCE_SCHEMA: dict[str, JSON] = {
    "type": "array",
    "maxItems": MAX_QUOTES,
    "items": {
        "type": "object",
        "required": ["file", "line", "quote"],
        "additionalProperties": False,
        "properties": {
            "file": {
                "type": "string",
                "description": f"Path in the project, or `{RESULT}` for what is judged",
            },
            "line": {"type": "integer", "minimum": 1},
            "quote": {"type": "string", "maxLength": MAX_QUOTE_CHARS, "description": "Word for word"},
            "found": {"type": "boolean", "description": "Left out: it is looked up"},
        },
    },
}
VERDICT_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "pass": {"type": "boolean"},
        "feedback": {"type": "string"},
        "evidence": EVIDENCE_SCHEMA,
    },
    "required": ["pass", "feedback", "evidence"],
    "additionalProperties": False,
}
REVIEW_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "maxItems": MAX_VERDICTS,
            "items": {
                "type": "object",
                "properties": {
                    "claim": {"type": "string", "description": "The claim's name, as it is given"},
                    "holds": {"type": "boolean"},
                    "reason": {"type": "string"},
                    "evidence": EVIDENCE_SCHEMA,
                },
                "required": ["claim", "holds", "reason", "evidence"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}

QUOTING = """\
Evidence is a file of the project with a line and the words that stand there, or `result` with words of what
you judge. Each piece is looked up: if one is not there, your verdict does not count."""
CRITIC = f"""\
Judge whether the result below reaches the goal. Answer with `pass`, in `feedback` what has to change, and in
`evidence` what shows it; check it against the files before you let it pass. Nothing passes without evidence.
{QUOTING}"""
REVIEWER = f"""\
Try to refute each of the claims below: look for what is wrong, missing or unproven, and check it against the
files. Give a verdict for every claim by its name: whether it holds after an honest attempt to refute it, why,
and the evidence. A refutation without evidence does not count.
{QUOTING}"""
