"""Errors of providers: their class, whether a retry helps, and what the user can do.

Rules
* Errors are classified by the provider's data, never by a search in our own messages. pydantic-ai sorts
  status codes, error codes and transport errors into categories.
* `again` is for temporary errors: too many requests, overload, a broken connection. `terminal` is for errors
  that apply to every request to this provider; it opens the circuit.
* The message has the provider's own text, shortened. The hint has the next action for the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from fanfold.kernel.events import Failure

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelResponse

MAX_MESSAGE_CHARS = 500
MAX_PAGE_BYTES = 20_000
MAX_ERROR_BYTES = 1_000_000
MAX_RESPONSE_BYTES = 256_000_000
"""More than the longest output of any model, with one event for each token."""
MAX_RESET_S = 40 * 86_400
"""A server that wants a longer wait names no usable time."""
_FILTERS = frozenset({"content_filter", "content_policy_violation", "moderation_blocked"})
_FILTERED = re.compile(r"content.filter", re.IGNORECASE)
"""Matches the message of a provider that has no code for content filters."""
_PASSING_STATUS = frozenset({408, 409, 425})
_FIELDS = (b"data", b"event", b"id", b"retry", b":")
"""The prefixes of lines in an event stream."""
_ENDED = re.compile(rb'"finish_reason":\s{0,4}"|data:\s{0,4}\[DONE\]')
"""The marks of the end of a chat completion; some servers omit one of them."""
MAX_SIGN_BYTES = 32
_ODD_VALUE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip
E = TypeVar("E", bound=BaseException)
_KEY_HINT = "check {variable}: the provider does not accept it, or not for this model"


class Problem(Struct, frozen=True, kw_only=True):
    """A classified error."""

    failure: Failure
    again: bool = False
    wait_s: float | None = None
    """The wait that the provider requested."""
    terminal: bool = False
    too_long: bool = False
    """Whether the conversation no longer fits the model."""


def understand(error: Exception, model: str, variable: str) -> Problem | None:
    """Return the problem behind an error of a request to `model`; None if it is no error of a provider.

    `variable` is the environment variable with the key.
    """
    from pydantic_ai import exceptions

    if (wrong := _in_chain(error, WrongResponse)) is not None:
        if wrong.passes:
            return _passing("transport", wrong.code, model, str(wrong))
        hint = "is the base URL right? An API is often below /v1, and must stream; then resume the run"
        return Problem(failure=_failure("permission", wrong.code, model, str(wrong), hint), terminal=True)
    if isinstance(error, exceptions.ModelAPIError):
        return _of_provider(error, model, variable)
    if isinstance(error, exceptions.ContentFilterError):
        return _filtered(model, error.message)
    if isinstance(error, exceptions.UnexpectedModelBehavior):
        return _passing("transport", "model.garbled", model, error.message)
    if isinstance(error, exceptions.UserError):
        failure = _failure("agent", "model.unusable", model, error.message, "choose another model")
        return Problem(failure=failure)
    # The problem for an unclassified error of the connection, such as a broken stream.
    import httpx2

    reason = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        return _passing("timeout", "model.timeout", model, _silence(error))
    if isinstance(error, httpx2.TransportError | httpx2.StreamError | ConnectionError):
        return _passing("transport", "model.broken_off", model, reason)
    return None


class WrongResponse(Exception):
    """The response of a server is neither an event stream nor an error."""

    def __init__(self, reason: str, code: str = "model.not_an_api", *, passes: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.passes = passes
        """Whether the same request may succeed later."""


@contextmanager
def decoding() -> Iterator[None]:
    """Turn the error of a library that met a value of a wrong type in a response into `WrongResponse`."""
    try:
        yield
    except _ODD_VALUE as error:
        reason = f"the response has an invalid value ({type(error).__name__}: {error})"
        raise WrongResponse(reason, "model.garbled", passes=True) from error


async def check_response(response: httpx2.Response) -> None:
    """Raise `WrongResponse` for web pages, redirects and anything but a stream; a hook of the HTTP client."""
    address, kind = _address(response.request), response.headers.get("content-type", "").lower()
    if response.is_redirect:  # never followed: the key must not reach another server
        target = response.headers.get("location", "")
        raise WrongResponse(f"{address} redirects to {target[:MAX_MESSAGE_CHARS]}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":  # it may have any length
        raise WrongResponse(f"{address} sent a compressed response, which was not requested")
    if not response.is_success or kind.startswith("text/html"):
        filter_stream(response, _shortened)
        if kind.startswith("text/html"):
            raise _page(address, response.status_code, await response.aread())
    else:
        is_chat = response.url.path.endswith("/chat/completions")
        filter_stream(response, partial(_checked, address=address, kind=kind, is_chat=is_chat))


def filter_stream(
    response: httpx2.Response, read: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]
) -> None:
    """Have the body of a response pass through `read`; what it leaves unread passes unchanged."""
    import httpx2

    class BodyFilter(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream
            self._is_read = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = self._stream.__aiter__()
            if not self._is_read:
                chunks = read(chunks)
            self._is_read = True  # SDKs read the remaining bytes after the last event
            async for chunk in chunks:
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = BodyFilter(response.stream)


async def _shortened(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The start of the body of an error, which may have no end."""
    size = 0
    async for chunk in chunks:
        yield chunk[: MAX_ERROR_BYTES - size]
        size += len(chunk)
        if size >= MAX_ERROR_BYTES:
            return


async def _checked(
    chunks: AsyncIterator[bytes], address: str, kind: str, is_chat: bool
) -> AsyncIterator[bytes]:
    begun = b""
    is_stream = None
    async for chunk in chunks:
        begun += chunk
        if (is_stream := _begins_stream(begun)) is not None:
            break
    if not begun.strip():
        raise WrongResponse(f"{address} sent an empty response", "model.broken_off", passes=True)
    if not is_stream:
        async for more in chunks:
            begun += more
            if len(begun) > MAX_PAGE_BYTES:
                break
        raise _no_stream(address, kind, begun)
    yield begun
    is_whole, last, size = not is_chat or bool(_ENDED.search(begun)), begun, len(begun)
    async for more in chunks:
        size += len(more)
        if size > MAX_RESPONSE_BYTES:
            raise WrongResponse(f"{address} sent more than {MAX_RESPONSE_BYTES:,} bytes in one response")
        last = last[-MAX_SIGN_BYTES:] + more
        is_whole = is_whole or bool(_ENDED.search(last))
        yield more
    if not is_whole:
        raise WrongResponse(f"{address}: the response ended in the middle", "model.broken_off", passes=True)


def _begins_stream(begun: bytes) -> bool | None:
    """Return whether bytes are the start of an event stream; None if there are too few to decide."""
    text = begun.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(_FIELDS):
        return True
    return None if any(field.startswith(text) for field in _FIELDS) else False


def _no_stream(address: str, kind: str, body: bytes) -> WrongResponse:
    """Return the error for a response with a success status that is not a stream."""
    if body.lstrip()[:1] == b"<":
        return _page(address, 200, body)
    try:
        value = json.loads(body)
    except ValueError:
        text = " ".join(body[:MAX_MESSAGE_CHARS].decode("utf-8", "replace").split())[:200]
        reason = f"{address} answered with {kind or 'no content type'} instead of a stream of events: {text}"
        return WrongResponse(reason, "model.garbled", passes=True)
    if isinstance(value, dict) and (error := value.get("error")):
        reason = str(error.get("message") if isinstance(error, dict) else error)
        return WrongResponse(f"{address} answered with an error: {reason}", "model.unavailable", passes=True)
    return WrongResponse(f"{address} answered with one JSON document instead of a stream of events")


def _page(address: str, status: int, body: bytes) -> WrongResponse:
    text = body[:MAX_PAGE_BYTES].decode("utf-8", "replace")
    title = re.search(r"<title[^>]*>\s*(.{1,100}?)\s*</title>", text, re.IGNORECASE | re.DOTALL)
    named = f", {' '.join(title[1].split())}" if title else ""
    reason = f"{address} answered with an HTML page (status {status}{named})"
    if status >= 500:  # from a proxy in front of the provider
        return WrongResponse(reason, "model.unavailable", passes=True)
    return WrongResponse(reason)


def _address(request: httpx2.Request) -> str:
    url = request.url
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{url.path}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes; SDKs treat an error from a hook as an error of the connection."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _in_chain(error: BaseException, kind: type[E]) -> E | None:
    return next((cause for cause in _chain(error) if isinstance(cause, kind)), None)


def _of_provider(error: Exception, model: str, variable: str) -> Problem:
    import httpx2
    from pydantic_ai import exceptions as e

    assert isinstance(error, e.ModelAPIError)
    reason, wait_s = _reason(error), error.retry_after
    if wait_s is not None and not 0 <= wait_s <= MAX_RESET_S:
        wait_s = None
    passing = partial(_passing, model=model, wait_s=wait_s)
    match error:
        case e.ModelRateLimitError():
            return passing("rate_limit", "model.rate_limit", reason=reason)
        case e.ModelConnectionError() if getattr(error, "phase", None) in ("connect", "pool") or (
            _in_chain(error, httpx2.ConnectError) is not None  # no connection was made
        ):
            return passing("transport", "model.unreachable", reason=_connection(error))
        case e.ModelTimeoutError() | e.ModelRequestTimeout():
            return passing("timeout", "model.timeout", reason=_silence(error))
        case e.ModelConnectionError():
            broke = _connection(error, "closed the connection")
            return passing("transport", "model.broken_off", reason=broke)
        case e.ModelUnavailableError() | e.ModelServerError():
            return passing("transport", "model.unavailable", reason=reason)
        case e.ModelHTTPError(status_code=status) if status in _PASSING_STATUS:
            return passing("transport", "model.unavailable", reason=reason)
        case e.ModelQuotaExceededError() | e.ModelRequestRejectedError() | e.ModelHTTPError():
            return _of_refusal(error, model, variable, reason)
        case _:
            return passing("transport", "model.garbled", reason=reason)


def _of_refusal(error: Exception, model: str, variable: str, reason: str) -> Problem:
    """Return the problem for a request that the provider refuses; a retry does not help."""
    from pydantic_ai import exceptions as e

    assert isinstance(error, e.ModelAPIError)
    match error:
        case e.ModelQuotaExceededError():
            hint = "top up the account or raise its limit, then resume the run"
            return Problem(failure=_failure("quota", "model.quota", model, reason, hint), terminal=True)
        case e.ModelAuthenticationError():
            hint = _KEY_HINT.format(variable=variable)
            failure = _failure("permission", "model.key_refused", model, reason, hint)
            return Problem(failure=failure, terminal=True)
        case e.ModelNotFoundError():
            near = error.suggested_model_id if isinstance(error, e.ModelHTTPError) else None
            hint = (
                f'did you mean "{near}"? choose another one with --model and retry'
                if near
                else "check the model's name, and the base URL if you set one; a retry takes --model"
            )
            return Problem(failure=_failure("agent", "model.unknown", model, reason, hint))
        case e.ModelContextWindowExceededError() | e.ModelHTTPError(status_code=413):
            hint = "shorten the prompt, or choose a model with a larger context"
            failure = _failure("agent", "model.context_overflow", model, reason, hint)
            return Problem(failure=failure, too_long=True)
        case _ if error.provider_error_code in _FILTERS or _FILTERED.search(reason):
            return _filtered(model, reason)
        case _:
            hint = "the provider refuses the request itself: check the base URL and what the model supports"
            return Problem(failure=_failure("agent", "model.rejected", model, reason, hint))


def fault_of(response: ModelResponse, model: str) -> Problem | None:
    """Return the problem of a response that arrived without an error; None if it is usable."""
    if response.finish_reason == "content_filter":
        refusal = response.text or (response.provider_details or {}).get("refusal")
        return _filtered(model, str(refusal or "the response was withheld, without a reason"))
    if response.state == "complete" and response.finish_reason is not None:
        return None
    what = "ended in the middle" if response.parts else "is empty"
    return broken_off(model, f"the response {what}")


def broken_off(model: str, reason: str) -> Problem:
    """Return the problem for an incomplete response."""
    return _passing("transport", "model.broken_off", model, reason)


def stopped(model: str) -> Problem:
    """Return the problem for a response that the session no longer waits for."""
    message = f"{model}: the request was stopped before its response was complete"
    return Problem(failure=Failure("cancelled", "model.stopped", message, "", False))


def _passing(kind: str, code: str, model: str, reason: str, wait_s: float | None = None) -> Problem:
    hints = {
        "rate_limit": "lower the concurrency, or ask the provider for a higher limit",
        "timeout": "the provider did not answer in time; models.silence_s sets how long to wait",
        "transport": "check the network and the provider's status, then try again: completed steps are kept",
    }
    failure = _failure(kind, code, model, reason, hints[kind], retryable=True)
    return Problem(failure=failure, again=True, wait_s=wait_s)


def _filtered(model: str, reason: str) -> Problem:
    hint = "the provider's content filter refused; rephrase the task or use another model"
    return Problem(failure=_failure("agent", "model.content_filter", model, reason, hint))


def _failure(kind: str, code: str, model: str, reason: str, hint: str, retryable: bool = False) -> Failure:
    return Failure(kind, code, f"{model}: {reason[:MAX_MESSAGE_CHARS]}", hint, retryable)


def _connection(error: BaseException, what: str = "cannot be reached") -> str:
    """Return server, problem and the reason from the innermost error; the others only say that it failed."""
    why = [str(cause) for cause in _chain(error) if str(cause)]
    return f"{_server(error) or 'the provider'} {what}: {why[-1].rstrip('.') if why else ''}"


def _silence(error: BaseException) -> str:
    """Return which server sent nothing, and for how long."""
    request = _request(error)
    limit = (request.extensions.get("timeout") or {}).get("read") if request is not None else None
    return f"{_server(error) or 'the provider'} sent nothing" + (f" for {limit:g} s" if limit else "")


def _request(error: BaseException) -> httpx2.Request | None:
    requests = (
        getattr(cause, "_request", None) or getattr(cause, "request", None) for cause in _chain(error)
    )
    return next((request for request in requests if hasattr(request, "url")), None)


def _server(error: BaseException) -> str:
    request = _request(error)
    return "" if request is None else _address(request).removesuffix(request.url.path)


def _reason(error: Exception) -> str:
    """Return the provider's own message without the wrapping."""
    body = whole = getattr(error, "body", None)
    for _ in range(3):
        if isinstance(body, dict) and isinstance(body.get("message"), str):
            return str(body["message"])
        body = body.get("error") if isinstance(body, dict) else body
    if (status := getattr(error, "status_code", None)) is None:
        return str(error)
    text = body if isinstance(body, str) else json.dumps(whole, default=str) if whole else ""
    return f"status {status}: {' '.join(text.split()) or 'an empty response'}"
