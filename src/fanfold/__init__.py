"""Fan a job out to a team of AI agents and fold one answer back.

    result = fanfold.run_sync("research-and-brief", topic="solid-state batteries")
    result.status, result.output, result.steps["gather"].output

    async with fanfold.open(".") as ff:
        run = await ff.start("audit.yaml", packages=["a", "b"])
        async for event in run.events(): ...

Public names are loaded at their first use: `fanfold --help` and every script that imports the package
would otherwise pay for all of it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; importing it from typing would cost 10 ms
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import TypeVar, overload

    T = TypeVar("T")

    from fanfold.api.client import Client, SyncClient, SyncRun
    from fanfold.api.display import RunRow
    from fanfold.api.result import Result, TypedResult
    from fanfold.api.run_documents import StepResult
    from fanfold.api.run_handle import RunHandle
    from fanfold.api.run_options import Options
    from fanfold.api.subagents import Subagent
    from fanfold.api.transcripts import Transcript, TranscriptEntry
    from fanfold.errors import AuthorError, FanfoldError, NotFoundError, WorldError
    from fanfold.kernel.events import Envelope
    from fanfold.kernel.plan import JSON
    from fanfold.language.builder import Recipe
    from fanfold.language.diagnostics import FileRefused
    from fanfold.steps.function_calls import function

else:

    def overload(_function):  # for type checkers alone
        return None


__version__ = "0.1.0"
__all__ = [
    "AuthorError",
    "Client",
    "Envelope",
    "FanfoldError",
    "FileRefused",
    "NotFoundError",
    "Options",
    "Recipe",
    "Result",
    "RunHandle",
    "RunRow",
    "StepResult",
    "Subagent",
    "SyncClient",
    "SyncRun",
    "Transcript",
    "TranscriptEntry",
    "TypedResult",
    "WorldError",
    "__version__",
    "function",
    "open",
    "open_sync",
    "run",
    "run_sync",
]

_HOMES = {
    "AuthorError": "fanfold.errors",
    "Client": "fanfold.api.client",
    "Envelope": "fanfold.kernel.events",
    "FanfoldError": "fanfold.errors",
    "FileRefused": "fanfold.language.diagnostics",
    "NotFoundError": "fanfold.errors",
    "Options": "fanfold.api.run_options",
    "Recipe": "fanfold.language.builder",
    "Result": "fanfold.api.result",
    "RunHandle": "fanfold.api.run_handle",
    "RunRow": "fanfold.api.display",
    "StepResult": "fanfold.api.run_documents",
    "Subagent": "fanfold.api.subagents",
    "SyncClient": "fanfold.api.client",
    "SyncRun": "fanfold.api.client",
    "Transcript": "fanfold.api.transcripts",
    "TranscriptEntry": "fanfold.api.transcripts",
    "TypedResult": "fanfold.api.result",
    "WorldError": "fanfold.errors",
    "function": "fanfold.steps.function_calls",
}


def open(path: str | os.PathLike[str] = ".") -> Client:
    """A project, to be used in `async with`; leaving it pauses what still runs."""
    from fanfold.api.client import Client
    from fanfold.wiring import wire
    from fanfold.workspace.layout import project_folder

    return Client(wire(project_folder(path).absolute()))  # wherever the program goes from here


def open_sync(path: str | os.PathLike[str] = ".") -> SyncClient:
    """The same for code that is not async, to be used in `with`."""
    from fanfold.api.client import SyncClient

    return SyncClient(lambda: open(path))


@overload
async def run(
    recipe: str | os.PathLike[str] | Recipe,
    /,
    *,
    output: None = None,
    project: str | os.PathLike[str] = ".",
    inputs: Mapping[str, JSON] | None = None,
    options: Options | None = None,
    **named: JSON,
) -> Result: ...
@overload
async def run(  # noqa: F811  # overloads, which only type checkers see
    recipe: str | os.PathLike[str] | Recipe,
    /,
    *,
    output: type[T],
    project: str | os.PathLike[str] = ".",
    inputs: Mapping[str, JSON] | None = None,
    options: Options | None = None,
    **named: JSON,
) -> TypedResult[T]: ...
async def run(  # noqa: F811  # overloads, which only type checkers see
    recipe: str | os.PathLike[str] | Recipe,
    /,
    *,
    output: type[T] | None = None,
    project: str | os.PathLike[str] = ".",
    inputs: Mapping[str, JSON] | None = None,
    options: Options | None = None,
    **named: JSON,
) -> Result | TypedResult[T]:
    """Run a recipe until it ends, pauses, or only people can go on.

    `recipe` is a name, a file or a `Recipe`; inputs are given by name, or as a map where a name is taken.
    With `output`, a struct, dataclass or pydantic model, the output of the result is a value of that type.
    """
    async with open(project) as client:
        if output is None:
            return await client.run(recipe, inputs=inputs, options=options, **named)
        return await client.run(recipe, output=output, inputs=inputs, options=options, **named)


@overload
def run_sync(
    recipe: str | os.PathLike[str] | Recipe,
    /,
    *,
    output: None = None,
    project: str | os.PathLike[str] = ".",
    inputs: Mapping[str, JSON] | None = None,
    options: Options | None = None,
    **named: JSON,
) -> Result: ...
@overload
def run_sync(  # noqa: F811  # overloads, which only type checkers see
    recipe: str | os.PathLike[str] | Recipe,
    /,
    *,
    output: type[T],
    project: str | os.PathLike[str] = ".",
    inputs: Mapping[str, JSON] | None = None,
    options: Options | None = None,
    **named: JSON,
) -> TypedResult[T]: ...
def run_sync(  # noqa: F811  # overloads, which only type checkers see
    recipe: str | os.PathLike[str] | Recipe,
    /,
    *,
    output: type[T] | None = None,
    project: str | os.PathLike[str] = ".",
    inputs: Mapping[str, JSON] | None = None,
    options: Options | None = None,
    **named: JSON,
) -> Result | TypedResult[T]:
    """`run` for code that is not async. In a notebook, where a loop runs already, it uses a thread."""
    import asyncio

    if _in_a_loop():  # asked first, so that no error of the run is told as one during another
        with open_sync(project) as client:  # an interrupt pauses the run, as it does below
            if output is None:
                return client.run(recipe, inputs=inputs, options=options, **named)
            return client.run(recipe, output=output, inputs=inputs, options=options, **named)
    if output is None:
        return asyncio.run(run(recipe, project=project, inputs=inputs, options=options, **named))
    return asyncio.run(run(recipe, output=output, project=project, inputs=inputs, options=options, **named))


def _in_a_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
