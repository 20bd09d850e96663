"""Schemas of tools, fitted to a provider once.

Before each request the library of providers rewrites the schema of every tool for the provider that is asked,
and copies all of it to do so: a tenth of the CPU time of a call. The tools of a session are the same in
every request, and most of them in every session, so what came of it is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

KEPT = 512


def fit_once(model: Model) -> Model:
    """Have a model keep how tools are fitted to it."""
    fitted = _FittedTools(model)
    model.customize_request_parameters = fitted.customize  # type: ignore[method-assign]  # the hook for it
    return model


class _FittedTools:
    """The fitted form of each schema, by which object it is; that is held, so no other takes its place."""

    def __init__(self, model: Model) -> None:
        self._fit = model.customize_request_parameters
        self._known: OrderedDict[tuple[int, bool | None], tuple[Any, ToolDefinition]] = OrderedDict()

    def customize(self, model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
        tools = model_request_parameters.function_tools
        unknown = [tool for tool in tools if _key(tool) not in self._known]
        rest = self._fit(replace(model_request_parameters, function_tools=unknown))
        for tool, fitted in zip(unknown, rest.function_tools, strict=True):
            self._known[_key(tool)] = (tool.parameters_json_schema, fitted)
        made = [self._made(tool) for tool in tools]
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return replace(rest, function_tools=made)

    def _made(self, tool: ToolDefinition) -> ToolDefinition:
        self._known.move_to_end(_key(tool))
        _, fitted = self._known[_key(tool)]
        return replace(tool, parameters_json_schema=fitted.parameters_json_schema, strict=fitted.strict)


def _key(tool: ToolDefinition) -> tuple[int, bool | None]:
    return id(tool.parameters_json_schema), tool.strict
