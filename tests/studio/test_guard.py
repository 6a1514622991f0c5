"""The guard: hosts, origins, tokens, forms and sizes; each attack is answered by a refusal before the application sees it."""

import asyncio
import json
from typing import Any

import pytest

from partwise.web_guard import HEADER, MAX_BODY, MAX_SESSIONS, Guard, Message, Receive, Refusal, Scope, Send, Sessions

CHANGE = {"content-type": "application/json", HEADER: "1"}


class Server:
    """A guard before an application that counts what reaches it."""

    def __init__(self, **options: Any) -> None:
        self.reached: list[tuple[str, str, bytes]] = []
        self.guard = Guard(self.answer, "partwise-1", public=("/open",), **options)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"") if scope["method"] == "POST" else b""
        self.reached.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"secret"})

    def __call__(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"", chunks: int = 1
    ) -> tuple[int, dict[str, str], bytes]:
        given = {"host": "127.0.0.1:8765"} | (headers or {})
        scope: Scope = {"type": "http", "method": method, "path": path}
        scope["headers"] = [(key.encode(), value.encode()) for key, value in given.items()]
        received: list[Message] = [
            {"type": "http.request", "body": body, "more_body": index < chunks - 1} for index in range(chunks)
        ]
        sent: list[Message] = []

        async def receive() -> Message:
            return received.pop(0) if received else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        asyncio.run(self.guard(scope, receive, send))
        found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(message["body"] for message in sent[1:])

    def exchange(self, token: str) -> tuple[int, dict[str, str], bytes]:
        return self("POST", "/session", CHANGE, json.dumps({"token": token}).encode())

    def open(self) -> dict[str, str]:
        """The headers of a browser that has opened a link."""
        status, headers, _ = self.exchange(self.guard.sessions.new_link())
        assert status == 200
        return {"cookie": headers["set-cookie"].partition(";")[0]}


def test_a_link_is_exchanged_once_for_a_cookie_that_no_script_and_no_other_site_sends() -> None:
    server = Server()
    token = server.guard.sessions.new_link()
    assert len(token) >= 43  # 256 bits
    status, headers, _ = server.exchange(token)
    name, *words = headers["set-cookie"].split("; ")
    assert status == 200 and words == ["HttpOnly", "SameSite=Strict", "Path=/"]
    assert name.startswith("partwise-1=") and token not in name
    assert server.exchange(token)[0] == 403
    assert server.exchange("guess")[0] == 403
    assert server("GET", "/ask", {"cookie": name})[0] == 200


def test_nothing_is_answered_without_the_cookie() -> None:
    server = Server()
    for headers in ({}, {"cookie": "partwise-1=guess"}, {"cookie": "partwise-2=x"}, {"cookie": 'partwise-1="\\'}):
        for method, path in (("GET", "/ask"), ("GET", "/api/shelf"), ("POST", "/api/comparisons")):
            status, _, body = server(method, path, {**CHANGE, **headers}, b"{}")
            assert status == 401 and b"secret" not in body
    token = server.guard.sessions.new_link()
    assert server("GET", f"/ask?token={token}")[0] == 401  # no address takes a token
    assert server("GET", "/session", CHANGE)[0] == 405
    assert server.reached == []
    assert server("GET", "/open")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),  # a name that was rebound to this machine
        ({"host": "evil.example:8765"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "0.0.0.0:8765"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),  # of a sandboxed frame, or of a file
        ({"origin": "http://127.0.0.1:9999"}, 403),  # another server of this machine
        ({"origin": "http://localhost:8765"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_of_other_pages_are_refused(method: str, headers: dict[str, str], status: int) -> None:
    server = Server()
    own = server.open()
    assert server(method, "/api/comparisons", {**CHANGE, **own, **headers}, b"{}")[0] == status
    assert server.reached == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost:8765", "localhost", "[::1]:8765", "LOCALHOST:80", "proxy.lan"]
)
def test_a_tunnel_and_a_proxy_have_names_and_ports_of_their_own(host: str) -> None:
    server = Server(hosts=("proxy.lan",), prefix="/partwise")
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin", **server.open()}
    assert server("POST", "/partwise/api/comparisons", {**CHANGE, **headers}, b"{}")[0] == 200
    assert server.reached == [("POST", "/api/comparisons", b"{}")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({HEADER: None}, 403),  # a form, or a fetch of another page without permission
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": None}, 415),
        ({"content-length": str(MAX_BODY + 1)}, 413),
        ({"content-length": "-1"}, 413),
    ],
)
def test_changes_need_json_a_header_and_a_bounded_body(headers: dict[str, str | None], status: int) -> None:
    server = Server()
    given = {key: value for key, value in {**CHANGE, **server.open(), **headers}.items() if value is not None}
    assert server("POST", "/api/comparisons", given, b"{}")[0] == status
    assert server.reached == []


def test_a_body_that_is_longer_than_it_says_is_refused() -> None:
    server = Server()
    assert server("POST", "/x", {**CHANGE, **server.open()}, b"x" * 1024, chunks=65)[0] == 413
    assert server.reached == []


@pytest.mark.parametrize("path", ["/files/../x", "/files/..\\x", "/files/\0", "/" + "x" * 3000, "/files/.."])
def test_paths_that_leave_a_folder_are_refused(path: str) -> None:
    server = Server()
    assert server("GET", path, server.open())[0] == 400
    assert server.reached == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_only_get_and_post_are_served(method: str) -> None:
    server = Server()
    status, headers, _ = server(method, "/api/comparisons", {**CHANGE, **server.open()})
    assert status == 405 and not any(name.startswith("access-control") for name in headers)


def test_every_answer_forbids_frames_other_sources_and_storing() -> None:
    server = Server()
    for _, headers, _ in (server("GET", "/open"), server("GET", "/ask"), server("GET", "/x", {"host": "evil.example"})):
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY" and headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_header_that_is_given_twice_is_refused() -> None:
    server = Server()
    own = server.open()["cookie"].encode()
    scope: Scope = {"type": "http", "method": "GET", "path": "/ask"}
    scope["headers"] = [(b"host", b"127.0.0.1"), (b"host", b"evil.example"), (b"cookie", own)]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    asyncio.run(server.guard(scope, receive, send))
    assert sent[0]["status"] == 400 and server.reached == []


def test_links_grow_old_and_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    first = sessions.exchange(sessions.new_link())
    for _ in range(MAX_SESSIONS):
        last = sessions.exchange(sessions.new_link())
    assert not sessions.knows(first) and sessions.knows(last)
    old = sessions.new_link()
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    with pytest.raises(Refusal):
        sessions.exchange(old)
