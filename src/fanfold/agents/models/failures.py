"""What an error of a provider means: its class, whether to try again, and what a person can do.

Rules
* Errors are told apart by what the provider said (pydantic-ai sorts status codes, error codes and transport
  errors into categories), never by searching messages of our own.
* `again` is for what passes by itself: too fast, overloaded, cut off. `terminal` is what no request to this
  provider can change: it opens the circuit.
* The message holds the provider's own words, shortened; the hint says what to do.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

from fanfold.kernel.events import Failure

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

MAX_MESSAGE_CHARS = 500
_FILTERS = frozenset({"content_filter", "content_policy_violation", "moderation_blocked"})
_KEY_HINT = "check {variable}: the provider does not accept it, or not for this model"


class Problem(Struct, frozen=True, kw_only=True):
    """An error, understood."""

    failure: Failure
    again: bool = False
    wait_s: float | None = None
    """How long the provider asked to wait."""
    terminal: bool = False
    too_long: bool = False
    """The conversation does not fit the model any more."""


def understand(error: Exception, model: str, variable: str) -> Problem | None:
    """What an error of a request to `model` means; None when it is no error of a provider.

    `variable` names where the key was read from.
    """
    from pydantic_ai import exceptions

    if isinstance(error, exceptions.ModelAPIError):
        return _of_provider(error, model, variable)
    if isinstance(error, exceptions.ContentFilterError):
        return _filtered(model, error.message)
    if isinstance(error, exceptions.UnexpectedModelBehavior):
        return _passing("transport", "model.garbled", model, error.message, None)
    if isinstance(error, exceptions.UserError):
        failure = _failure("agent", "model.unusable", model, error.message, "choose another model")
        return Problem(failure=failure)
    return _of_transport(error, model)


def _of_provider(error: Exception, model: str, variable: str) -> Problem:
    from pydantic_ai import exceptions as e

    assert isinstance(error, e.ModelAPIError)
    said, wait_s = _said(error), error.retry_after
    match error:
        case e.ModelRateLimitError():
            return _passing("rate_limit", "model.rate_limit", model, said, wait_s)
        case e.ModelQuotaExceededError():
            hint = "top the account up or raise its limit, then resume the run"
            failure = _failure("quota", "model.quota", model, said, hint)
            return Problem(failure=failure, terminal=True)
        case e.ModelTimeoutError() | e.ModelRequestTimeout():
            return _passing("timeout", "model.timeout", model, said, wait_s)
        case e.ModelConnectionError():
            return _passing("transport", "model.unreachable", model, _unreachable(error), wait_s)
        case e.ModelUnavailableError() | e.ModelServerError():
            return _passing("transport", "model.unavailable", model, said, wait_s)
        case e.ModelAuthenticationError():
            hint = _KEY_HINT.format(variable=variable)
            failure = _failure("permission", "model.key_refused", model, said, hint)
            return Problem(failure=failure, terminal=True)
        case e.ModelNotFoundError():
            near = error.suggested_model_id if isinstance(error, e.ModelHTTPError) else None
            hint = (
                f'did you mean "{near}"? a retry takes another one with --model'
                if near
                else "check the model's name, and the base URL if you set one; a retry takes --model"
            )
            return Problem(failure=_failure("agent", "model.unknown", model, said, hint))
        case e.ModelContextWindowExceededError():
            hint = "shorten the prompt, or choose a model with a larger context"
            failure = _failure("agent", "model.context_overflow", model, said, hint)
            return Problem(failure=failure, too_long=True)
        case _ if error.provider_error_code in _FILTERS:
            return _filtered(model, said)
        case e.ModelRequestRejectedError():
            hint = "the provider refuses the request itself: check what the model supports"
            return Problem(failure=_failure("agent", "model.rejected", model, said, hint))
        case _:
            return _passing("transport", "model.garbled", model, said, wait_s)


def _of_transport(error: Exception, model: str) -> Problem | None:
    """An error of the connection that nobody sorted: streams that break off surface as they are."""
    import httpx2

    said = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        return _passing("timeout", "model.timeout", model, said, None)
    if isinstance(error, httpx2.TransportError | httpx2.StreamError | ConnectionError):
        return _passing("transport", "model.broken_off", model, said, None)
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return _passing("transport", "model.garbled", model, said, None)
    return None


def fault_of(response: ModelResponse, model: str) -> Problem | None:
    """What is wrong with a response that came without an error; None when it can be worked with."""
    if response.finish_reason == "content_filter":
        return _filtered(model, "the response was withheld")
    if response.state == "complete" and response.finish_reason is not None:
        return None
    return _passing("transport", "model.broken_off", model, "the response ended in the middle", None)


def _passing(kind: str, code: str, model: str, said: str, wait_s: float | None) -> Problem:
    hints = {
        "rate_limit": "lower the concurrency, or ask the provider for a higher limit",
        "timeout": "the provider did not answer in time; try again later",
        "transport": "check the network and the provider's status, then try again; a fork keeps what is done",
    }
    failure = _failure(kind, code, model, said, hints[kind], retryable=True)
    return Problem(failure=failure, again=True, wait_s=wait_s)


def _filtered(model: str, said: str) -> Problem:
    hint = "the provider's content filter refused; rephrase the task or use another model"
    return Problem(failure=_failure("agent", "model.content_filter", model, said, hint))


def _failure(kind: str, code: str, model: str, said: str, hint: str, retryable: bool = False) -> Failure:
    return Failure(kind, code, f"{model}: {said[:MAX_MESSAGE_CHARS]}", hint, retryable)


def _unreachable(error: BaseException) -> str:
    """Where nobody was reached, and why, in the words of whoever tried: wrappers say only that it failed."""
    address, why, seen = "", str(error), error
    while seen.__cause__ is not None or seen.__context__ is not None:
        seen = seen.__cause__ or seen.__context__ or seen
        why = str(seen) or why
        url = getattr(getattr(seen, "_request", None) or getattr(seen, "request", None), "url", None)
        if url is not None and not address:
            address = f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}"
    return f"{address or 'the provider'} cannot be reached: {why}"


def _said(error: Exception) -> str:
    """The provider's own words, without the wrapping."""
    body = getattr(error, "body", None)
    for _ in range(3):
        if isinstance(body, dict) and isinstance(body.get("message"), str):
            return str(body["message"])
        body = body.get("error") if isinstance(body, dict) else None
    return str(error)
