"""What stands before a local web server: addresses, the token, limits. Every request passes here, and nothing else checks.

The token of the printed link is after its `#`, which browsers send to no server. The page of the link posts it once and gets
a cookie for it. Requests need that cookie, a Host of this machine and no foreign Origin; changes also need JSON and a header
that no form can send.
"""

import asyncio
import hmac
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 * 1024
"""Bytes of a request's body; no page of ours sends more."""
MAX_PATH = 2048
BODY_SECONDS = 10.0
LINK_SECONDS = 600.0
"""How long a printed link is valid."""
MAX_SESSIONS = 64
"""Browsers at a time; the one that came first has to open a new link then."""

HEADER = "x-partwise"
"""A header of ours: a page of another site cannot send it without the permission that no answer gives."""
SESSION_PATH = "/session"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer; an answer may have its own."""


@dataclass(frozen=True)
class Refusal(Exception):
    """Why a request is not answered."""

    status: int
    reason: str


@dataclass
class Sessions:
    """The links that were printed, each valid once, and the cookies that they were exchanged for."""

    links: dict[str, float] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)

    def new_link(self) -> str:
        """A token of 256 bits."""
        token = secrets.token_urlsafe(32)
        self.links[token] = time.monotonic() + LINK_SECONDS
        return token

    def exchange(self, token: str) -> str:
        """The cookie for a token, which is then used up. Raises Refusal."""
        found = [each for each in self.links if hmac.compare_digest(each.encode(), token.encode())]
        if not found or self.links.pop(found[0]) < time.monotonic():
            raise Refusal(403, "this link was used before, or is too old: open the newest one in the terminal")
        cookie = secrets.token_urlsafe(32)
        self.cookies = [*self.cookies[-MAX_SESSIONS + 1 :], cookie]
        return cookie

    def knows(self, cookie: str) -> bool:
        return any(hmac.compare_digest(each.encode(), cookie.encode()) for each in self.cookies)


@dataclass
class Guard:
    """An ASGI application before another one."""

    app: App
    cookie_name: str
    """One for each server: a browser shares cookies between the ports of a host."""
    hosts: tuple[str, ...] = ()
    """Names besides those of loopback, such as that of a proxy."""
    prefix: str = ""
    """The path of the proxy under which all paths are."""
    public: tuple[str, ...] = ()
    """Paths that need no cookie: what the page that exchanges the token consists of."""
    sessions: Sessions = field(default_factory=Sessions)
    on_exchange: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSocket is served
            raise RuntimeError("only HTTP is served")
        answer = with_safety(send)
        try:
            headers = read_headers(scope)
            path = self._path(scope)
            self._check_address(scope, headers, path)
            if path == SESSION_PATH:
                await self._exchange(scope, headers, receive, answer)
                return
            if scope["method"] not in ("GET", "HEAD"):
                self._check_session(headers)
                body = await self._read_change(scope, headers, receive)
                receive = replay(body, receive)
            elif path not in self.public:
                self._check_session(headers)
            await self.app({**scope, "path": path, "root_path": self.prefix}, receive, answer)
        except Refusal as refusal:
            await send_json(answer, refusal.status, {"error": refusal.reason})

    def _path(self, scope: Scope) -> str:
        path = str(scope["path"])
        if len(path) > MAX_PATH or "\\" in path or "\0" in path or ".." in path.split("/"):
            raise Refusal(400, "no such address")
        if self.prefix and (path == self.prefix or path.startswith(f"{self.prefix}/")):
            return path.removeprefix(self.prefix) or "/"
        return path

    def _check_address(self, scope: Scope, headers: dict[str, str], path: str) -> None:
        """Raise Refusal for a Host or an Origin that is not this server: rebound names, and pages of other servers."""
        host = headers.get("host", "")
        name = re.sub(r":\d+$", "", host).lower()
        if name not in (*LOOPBACK, *self.hosts):
            raise Refusal(421, f"the Host {host[:100]!r} is not this server")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise Refusal(403, "requests from other pages are not answered")
        # the page of a link may be opened from anywhere: it says nothing, and does nothing without the token after its #
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and path not in self.public:
            raise Refusal(403, "requests from other pages are not answered")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise Refusal(405, f"{scope['method']} is not served")

    def _check_session(self, headers: dict[str, str]) -> None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            morsel = None
        if morsel is None or not self.sessions.knows(morsel.value):
            raise Refusal(401, "open the link that the terminal shows")

    async def _read_change(self, scope: Scope, headers: dict[str, str], receive: Receive) -> bytes:
        """The body of a change. Raises Refusal for what a form or another page could send, and for a body too large."""
        if HEADER not in headers:
            raise Refusal(403, f"changes need the header {HEADER}")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refusal(415, "changes need JSON")
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")) > MAX_BODY:
            raise Refusal(413, f"a request has at most {MAX_BODY} bytes")
        return await read_body(receive)

    async def _exchange(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        """Answer a posted token with a cookie."""
        if scope["method"] != "POST":
            raise Refusal(405, "a token is exchanged by POST")
        body = await self._read_change(scope, headers, receive)
        try:
            token = json.loads(body)["token"]
        except (ValueError, KeyError, TypeError):
            raise Refusal(400, "expected a token") from None
        if not isinstance(token, str):
            raise Refusal(400, "expected a token")
        cookie = self.sessions.exchange(token)
        self.on_exchange()
        path = f"{self.prefix}/"
        words = f"{self.cookie_name}={cookie}; HttpOnly; SameSite=Strict; Path={path}"
        await send_json(send, 200, {"ok": True}, [(b"set-cookie", words.encode())])


def read_headers(scope: Scope) -> dict[str, str]:
    """Headers by name in lower case. Raises Refusal for a second Host, Origin or length, which two readers may take apart."""
    headers: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = key.decode("latin-1").lower()
        if name in headers and name in ("host", "origin", "content-length", "content-type"):
            raise Refusal(400, f"{name} is given twice")
        headers[name] = f"{headers[name]}; {value.decode('latin-1')}" if name in headers else value.decode("latin-1")
    return headers


async def read_body(receive: Receive) -> bytes:
    """A body of at most MAX_BODY bytes, within BODY_SECONDS. Raises Refusal."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the request ended early")
                body += message.get("body", b"")
                if len(body) > MAX_BODY:
                    raise Refusal(413, f"a request has at most {MAX_BODY} bytes")
                if not message.get("more_body"):
                    return body
    except TimeoutError:
        raise Refusal(408, "the request took too long") from None


def replay(body: bytes, rest: Receive) -> Receive:
    """A `receive` that begins with a body that was read already."""
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return await rest()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def with_safety(send: Send) -> Send:
    """A `send` that adds the headers of every answer."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {key.lower() for key, _ in message.get("headers", [])}
            added = [(key.encode(), value.encode()) for key, value in SAFETY.items() if key.encode() not in given]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return answer


async def send_json(send: Send, status: int, values: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = json.dumps(values).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
