"""Check what each step says: names, templates, expressions, sets, schemas, role, handler.

Every field is checked on its own, so that one mistake hides no other. What passes is kept in the draft's
`facts` in the form the plan wants; `assembly` only puts it together.
"""

from __future__ import annotations

from fanfold.kernel.plan import USUAL_RETRY, Retry
from fanfold.recipe.checks.commands import read_arguments, read_environment
from fanfold.recipe.checks.output_schemas import read_schema
from fanfold.recipe.checks.references import Place, References, hint_to_owner
from fanfold.recipe.checks.sets import read_set
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.checks.values import read_output, read_values
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.roles import find_role
from fanfold.recipe.language.keys import RETRY
from fanfold.text.entries import Entries, read_entries
from fanfold.text.notes import Notes, quoted
from fanfold.text.parse import Mapping, Node, Scalar
from fanfold.text.template import Hole, TemplateError, parse_template

COMMAND_OUTPUTS = ("exit_code", "stdout", "stderr")


def check_step(draft: Draft, unit: Unit) -> None:
    """Check one step and keep what the plan needs of it; inner steps are checked by themselves."""
    references = unit.references
    place = Place(draft, draft.scope, draft.names())
    check_edges(draft, unit.notes, references)
    check_conditions(draft, references)
    _check_loop(draft, references)
    _check_contract(draft, unit, place)
    match draft.type:
        case "agent":
            _check_agent(draft, unit, place)
        case "function":
            _check_function(draft, unit)
        case "command":
            _check_command(draft, references, place)
        case "approval":
            _check_approval(draft, references, place)
        case "group":
            _check_group_output(draft, references)
        case "workflow" | None:
            pass


def check_edges(draft: Draft, notes: Notes, references: References) -> None:
    """`depends_on` names steps of the same scope."""
    for step_id, node in draft.written.items():
        target = draft.scope.by_id.get(step_id)
        if target is not None:
            target.used = True
            continue
        hidden = references.elsewhere.get(step_id)
        outer = draft.scope.outer.find(step_id) if draft.scope.outer is not None else None
        owner = draft.scope.owner
        if outer is not None and owner is not None:
            hint = f"it is outside; put the edge on {quoted(owner.id)}, or refer to its output"
        elif hidden is not None and hidden.scope.owner is not None:
            hint = hint_to_owner(hidden, hidden.scope.owner)
        else:
            hint = notes.did_you_mean(step_id, draft.scope.by_id)
        what = "phase" if draft.phase else "step"
        message = f"{what} {quoted(draft.id)} depends on {quoted(step_id)}, which does not exist"
        notes.error("recipe.unknown_step", message if outer is None else message + " here", node, hint)


def check_conditions(draft: Draft, references: References) -> None:
    """`when` and `for_each`, of a step or a phase."""
    entries = draft.entries
    around = draft.scope.names
    when = entries.nodes.get("when")
    if isinstance(when, Scalar):
        # Judged per item in a map; before the first iteration of a loop, so it knows no iteration. A
        # phase hands its items to its tasks and is judged once.
        items = {draft.item_name, "index"} if draft.item_name is not None and not draft.phase else set()
        place = Place(draft, draft.scope, around | frozenset(name for name in items if name))
        draft.facts.when = references.expression(when, place, "bool")
    for_each = entries.nodes.get("for_each")
    if isinstance(for_each, Scalar):
        place = Place(draft, draft.scope, around)
        draft.facts.for_each = references.expression(for_each, place, "list")


def _check_loop(draft: Draft, references: References) -> None:
    until = draft.repeat.nodes.get("until") if draft.repeat is not None else None
    if isinstance(until, Scalar):
        place = Place(draft, draft.inner or draft.scope, draft.names() | {"output"})
        draft.facts.until = references.expression(until, place, "bool")


def _check_contract(draft: Draft, unit: Unit, place: Place) -> None:
    """What goes in and out: inputs, sets, schema, output names, retry."""
    entries = draft.entries
    references = unit.references
    if "inputs" in entries.nodes:
        giving = Place(draft, draft.scope, place.names, placing=True)
        draft.facts.inputs = read_values(entries.nodes["inputs"], references, giving)
    facts = draft.facts
    if "read_set" in entries.nodes:
        facts.read_set, facts.templated_sets = read_set("read_set", draft, references)
    if "write_set" in entries.nodes:
        facts.write_set, templated = read_set("write_set", draft, references)
        facts.templated_sets |= templated
    if "output_schema" in entries.nodes:
        draft.facts.output_schema = read_schema(entries.nodes["output_schema"], unit.notes)
    if "retry" in entries.nodes:
        draft.facts.retry = read_retry(entries.nodes["retry"], unit.notes)
    _check_output_names(draft, unit.notes)


def _check_output_names(draft: Draft, notes: Notes) -> None:
    seen: set[str] = set()
    for item in draft.entries.scalars("outputs"):
        if item.text in seen:
            notes.error("recipe.bad_value", f"output {quoted(item.text)} is named twice", item)
        seen.add(item.text)
        plain_command = draft.type == "command" and not draft.entries.has("output_schema")
        if plain_command and item.text not in COMMAND_OUTPUTS:
            hint = (
                notes.did_you_mean(item.text, COMMAND_OUTPUTS)
                or "a command gives exit_code, stdout and stderr"
            )
            notes.error("recipe.bad_value", f"a command has no output {quoted(item.text)}", item, hint)


def read_retry(node: Node, notes: Notes) -> Retry:
    """A `retry` object; what was not said keeps its default."""
    entries = read_entries(node, RETRY, notes)
    if entries is None:
        return USUAL_RETRY
    said: dict[str, object] = {
        "attempts": entries.integer("attempts"),
        "backoff_ms": entries.milliseconds("backoff"),
        "max_backoff_ms": entries.milliseconds("max_backoff"),
        "on": tuple(item.text for item in entries.scalars("on")) if "on" in entries.nodes else None,
    }
    return Retry(**{name: value for name, value in said.items() if value is not None})  # type: ignore[arg-type]  # checked words


def _check_agent(draft: Draft, unit: Unit, place: Place) -> None:
    entries = draft.entries
    node = entries.nodes.get("agent")
    if isinstance(node, Scalar):
        role = find_role(node.text, node, unit.around, unit.notes)
    else:
        role = find_role(unit.defaults.agent or "default", None, unit.around, unit.notes)
    draft.facts.role = role
    prompt = entries.nodes.get("prompt")
    if isinstance(prompt, Scalar):
        giving = Place(draft, draft.scope, place.names, placing=True)
        draft.facts.prompt = unit.references.template(prompt, giving)
        if not prompt.text.strip():
            unit.notes.error("recipe.bad_value", "the prompt is empty", prompt)
    elif entries.lacks("prompt") and role.facts.prompt_template:
        _check_prompt_template(draft, role.name, role.facts.prompt_template, unit.notes)
    elif entries.lacks("prompt") and entries.lacks("inputs") and role.known:
        message = f"step {quoted(draft.id)} has neither {quoted('prompt')} nor {quoted('inputs')}"
        hint = f"role {quoted(role.name)} has no prompt template of its own"
        unit.notes.error("recipe.missing_key", message, entries.head(), hint)
    _check_tools(entries, role.facts.tools, unit.notes)


def _check_prompt_template(draft: Draft, role: str, text: str, notes: Notes) -> None:
    """What a role's own template asks for must be among the inputs of the step."""
    given = draft.entries.nodes.get("inputs")
    known = [key.text for key, _ in given.entries] if isinstance(given, Mapping) else []
    whose = f"the prompt template of role {quoted(role)}"
    try:
        paths = [part.path for part in parse_template(text) if isinstance(part, Hole)]
    except TemplateError as error:
        notes.error("recipe.bad_template", f"{whose} cannot be used: {error.message}", draft.entries.head())
        return
    for path in paths:
        if path.root != "inputs":
            message = f"{whose} asks for {quoted(path.text)}, and may ask for inputs alone"
            notes.error("recipe.bad_template", message, draft.entries.head())
        elif path.parts[0] not in known:
            message = f"{whose} asks for {quoted(path.text)}, which step {quoted(draft.id)} does not give"
            hint = notes.did_you_mean(str(path.parts[0]), known) or "write it in the step's inputs"
            notes.error("recipe.bad_template", message, draft.entries.head(), hint)


def _check_tools(entries: Entries, allowed: tuple[str, ...] | None, notes: Notes) -> None:
    for item in entries.scalars("tools"):
        if allowed is not None and item.text not in allowed:
            hint = notes.did_you_mean(item.text, allowed) or "a step may only narrow the tools of its role"
            notes.error("recipe.bad_value", f"the role has no tool {quoted(item.text)}", item, hint)


def _check_function(draft: Draft, unit: Unit) -> None:
    node = draft.entries.nodes.get("handler")
    if isinstance(node, Scalar) and not unit.around.is_handler(node.text):
        hint = unit.notes.did_you_mean(node.text, list(unit.around.handler_names()))
        message = f"there is no handler {quoted(node.text)}"
        hint = hint or "register it with @fanfold.function, or name it package.module:callable"
        unit.notes.error("recipe.unknown_handler", message, node, hint)


def _check_command(draft: Draft, references: References, place: Place) -> None:
    if "run" in draft.entries.nodes:
        draft.facts.run = read_arguments(draft.entries, references, place)
    draft.facts.env = read_environment(draft.entries, references, place)


def _check_approval(draft: Draft, references: References, place: Place) -> None:
    entries = draft.entries
    question = entries.nodes.get("approve")
    if isinstance(question, Scalar):
        draft.facts.approve = references.template(question, place)
    shown = entries.nodes.get("show")
    if isinstance(shown, Scalar):
        draft.facts.show = references.template(shown, place)
    choices = [item.text for item in entries.scalars("choices")]
    if "choices" in entries.nodes and (not choices or len(set(choices)) < len(choices) or "" in choices):
        message = "choices must be different from each other, and at least one"
        references.notes.error("recipe.bad_value", message, entries.nodes["choices"])
    default = entries.nodes.get("default")
    allowed = tuple(choices) or ("approve", "reject")
    readable = "choices" in entries.nodes or not entries.has("choices")
    if isinstance(default, Scalar) and default.text not in allowed and readable:
        hint = references.notes.did_you_mean(default.text, allowed) or "use one of " + ", ".join(allowed)
        references.notes.error("recipe.bad_value", f"{quoted(default.text)} is no choice", default, hint)


def _check_group_output(draft: Draft, references: References) -> None:
    if "output" in draft.entries.nodes and draft.inner is not None:
        place = Place(draft, draft.inner, draft.inner.names)
        draft.facts.output = read_output(draft.entries.nodes["output"], references, place)
