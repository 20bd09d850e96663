"""Adversarial reviews: which claims a phase makes, how reviewers voted on each, and what survives.

Rules
* A claim is an element of a list of objects in a task's output (a finding), else the whole output of a task,
  or of one item of it. Claims have names that follow from where they stand: `scan[0].findings[2]`, `apply`.
* Reviewers vote on their own, once on each claim; who says both has no vote. A vote counts when all evidence
  it quotes is there; one against a claim also needs some.
* A claim survives when more than half of the votes that count say that it holds. Without any such vote it is
  unreviewed.
* A finding that is refuted leaves the phase's result. A whole result that does not survive makes the round
  false: the phase iterates, or fails. A finding that nobody reviewed stays, and is listed as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.plan import JSON
from fanfold.text.json_value import as_text

MAX_CLAIMS = 200
"""Reviewed at most in one round; the others are unreviewed."""
Fate: TypeAlias = Literal["survived", "refuted", "unreviewed"]


class ReviewClaim(Struct, frozen=True):
    """Something that a phase says and that reviewers try to refute."""

    name: str
    text: str
    whole: bool
    """It is all that a task, or an item of it, gave."""


class Vote(Struct, frozen=True):
    """What one reviewer said about a claim."""

    reviewer: str
    holds: bool
    reason: str
    evidence: list[JSON] = []
    void: str = ""
    """Why it does not count."""


class ReviewedClaim(Struct, frozen=True):
    name: str
    text: str
    whole: bool
    fate: Fate
    votes: list[Vote]


class Review(Struct, frozen=True):
    """What came of the review of one round."""

    holds: bool
    """Every result that stands as a whole survived."""
    claims: list[ReviewedClaim]


def claims_of(tasks: Mapping[str, JSON], mapped: frozenset[str]) -> list[ReviewClaim]:
    """The claims in the outputs of a phase's tasks; `mapped` are those that have one output per item."""
    found: list[ReviewClaim] = []
    for task, output in tasks.items():
        if task in mapped and isinstance(output, list):
            for index, item in enumerate(output):
                found += _claims_in(f"{task}[{index}]", item)
        else:
            found += _claims_in(task, output)
    return found


def _claims_in(name: str, output: JSON) -> list[ReviewClaim]:
    if output is None or (isinstance(output, dict) and set(output) == {"error"}):
        return []
    lists = _lists_of(output)
    if not lists:
        return [ReviewClaim(name, as_text(output), whole=True)]
    return [
        ReviewClaim(f"{name}.{key}[{index}]", as_text(one), whole=False)
        for key, values in lists.items()
        for index, one in enumerate(values)
    ]


def _lists_of(output: JSON) -> dict[str, list[JSON]]:
    """The fields of an output that are lists of objects; an empty one makes no claim."""
    if not isinstance(output, dict):
        return {}
    lists = {key: value for key, value in output.items() if isinstance(value, list)}
    return {key: values for key, values in lists.items() if all(isinstance(one, dict) for one in values)}


def tally(claims: Sequence[ReviewClaim], reviews: Mapping[str, JSON]) -> Review:
    """Count the votes; `reviews` are the answers by reviewer, their evidence looked up."""
    votes: dict[str, list[Vote]] = {claim.name: [] for claim in claims}
    for reviewer, answer in reviews.items():
        given = answer.get("verdicts") if isinstance(answer, dict) else None
        heard: dict[str, Vote] = {}
        for verdict in given if isinstance(given, list) else ():
            name = verdict.get("claim") if isinstance(verdict, dict) else None
            if name not in votes:
                continue
            vote = _vote(reviewer, verdict)
            before = heard.setdefault(name, vote)
            if before.holds != vote.holds:
                heard[name] = replace(before, void="it says both that it holds and that it does not")
        for name, vote in heard.items():
            votes[name].append(vote)
    found = [
        ReviewedClaim(one.name, one.text, one.whole, _fate(votes[one.name]), votes[one.name])
        for one in claims
    ]
    return Review(all(one.fate == "survived" for one in found if one.whole), found)


def _vote(reviewer: str, verdict: dict[str, JSON]) -> Vote:
    evidence = [one for one in verdict.get("evidence") or [] if isinstance(one, dict)]
    holds = bool(verdict.get("holds"))
    missing = [f"{one.get('file')}:{one.get('line')}" for one in evidence if not one.get("found")]
    void = ""
    if missing:
        void = f"it quotes what is not there: {', '.join(missing[:3])}"
    elif not holds and not evidence:
        void = "it refutes without evidence"
    return Vote(reviewer, holds, str(verdict.get("reason") or ""), evidence, void)


def _fate(votes: Sequence[Vote]) -> Fate:
    counted = [vote.holds for vote in votes if not vote.void]
    if not counted:
        return "unreviewed"
    return "survived" if sum(counted) * 2 > len(counted) else "refuted"


def surviving(tasks: Mapping[str, JSON], mapped: frozenset[str], review: Review) -> dict[str, JSON]:
    """The outputs without the findings that were refuted."""
    gone = {one.name for one in review.claims if one.fate == "refuted" and not one.whole}
    if not gone:
        return dict(tasks)
    kept: dict[str, JSON] = {}
    for task, output in tasks.items():
        if task in mapped and isinstance(output, list):
            kept[task] = [_without(f"{task}[{index}]", item, gone) for index, item in enumerate(output)]
        else:
            kept[task] = _without(task, output, gone)
    return kept


def _without(name: str, output: JSON, gone: set[str]) -> JSON:
    lists = _lists_of(output)
    if not lists or not isinstance(output, dict):
        return output
    return {
        key: [one for index, one in enumerate(value) if f"{name}.{key}[{index}]" not in gone]
        if key in lists
        else value
        for key, value in output.items()
    }


def objections(review: Review) -> str:
    """What has to be answered in the next round, with who said it."""
    lines = []
    for claim in review.claims:
        if claim.fate != "refuted" or not claim.whole:
            continue
        lines.append(f"Review of {claim.name}: {claim.fate}.")
        lines += [
            f"- {vote.reviewer}: {vote.reason}{_places(vote)}"
            for vote in claim.votes
            if not vote.holds and not vote.void
        ]
    if unseen := unreviewed(review):
        names = ", ".join(unseen[:5]) + (f" and {len(unseen) - 5} more" if len(unseen) > 5 else "")
        lines.append(f"No vote that counts was given on {names}, which does not pass.")
        if len(review.claims) > MAX_CLAIMS:
            lines.append(f"Of {len(review.claims)} claims {MAX_CLAIMS} are reviewed in one round.")
    return "\n".join(lines)


def unreviewed(review: Review) -> list[str]:
    """The whole results on which there is no vote that counts."""
    return [claim.name for claim in review.claims if claim.whole and claim.fate == "unreviewed"]


def against(review: Review) -> str:
    """Why a round did not survive its review, in a few words; empty where it did."""
    refuted = any(claim.whole and claim.fate == "refuted" for claim in review.claims)
    without = len(unreviewed(review))
    told = ["refuted by its reviewers"] if refuted else []
    told += [f"no vote that counts on {without} result{'s' if without > 1 else ''}"] if without else []
    return ", ".join(told)


def told(review: Review) -> str:
    """How the votes went, in a line for each claim that did not simply survive, and a count of the others."""
    fates = [claim.fate for claim in review.claims]
    lines = [f"{fates.count('survived')} of {len(fates)} claims survived the review."]
    for claim in review.claims:
        if claim.fate != "survived":
            said = "; ".join(f"{vote.reviewer}: {vote.reason}" for vote in claim.votes if not vote.holds)
            lines.append(f"{claim.name} {claim.fate}. {said}".rstrip())
    return "\n".join(lines)


def _places(vote: Vote) -> str:
    places = [f"{one.get('file')}:{one.get('line')}" for one in vote.evidence if isinstance(one, dict)]
    return f" ({', '.join(places[:5])})" if places else ""


def to_value(review: Review) -> JSON:
    return msgspec.to_builtins(review)
