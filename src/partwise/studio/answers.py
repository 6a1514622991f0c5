"""Answers that routes have in common: errors that say what is wrong, and streams of events."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from partwise.config import ConfigError
from partwise.messages import print_message

Handler = Callable[[Request], Awaitable[Response]]

REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'self'"
)
"""A report has scripts and styles of its own: it runs in an origin of its own, without the cookie and without a network."""
REPORT_HEADERS = {"content-security-policy": REPORT_POLICY, "x-frame-options": "SAMEORIGIN"}


async def fields(request: Request) -> dict[str, Any]:
    """The JSON object of a change. Raises ConfigError."""
    try:
        values = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ConfigError("expected JSON") from None
    if not isinstance(values, dict):
        raise ConfigError("expected a JSON object")
    return values


async def fail(request: Request, error: Exception) -> Response:
    """The answer to what should not happen, which the terminal shows too."""
    said = f"{type(error).__name__}: {error}"
    print_message(f"{request.url.path}: {said}")
    return JSONResponse({"error": said}, 500)


def told(handle: Handler) -> Handler:
    """A handler whose ConfigErrors are answers that say what is wrong."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except ConfigError as error:
            return JSONResponse({"error": str(error)}, 400)

    return answer


def event(values: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(values)}\n\n"


class Events(StreamingResponse):
    """Server-sent events, whose generator is closed at once when the page that reads them is."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.events.aclose()
