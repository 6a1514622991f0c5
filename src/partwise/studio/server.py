"""The server of the studio: its socket, its links, and connections that take too long."""

import os
import socket
import sys
import webbrowser
from asyncio import Transport
from pathlib import Path
from tempfile import mkdtemp
from typing import cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from partwise.config import ConfigError
from partwise.console import console
from partwise.files import working_folder, write_file
from partwise.studio.comparisons import Comparisons
from partwise.studio.pages import PUBLIC, Studio
from partwise.studio.processes import Processes
from partwise.studio.questions import Allowed
from partwise.web_guard import Guard

HOST = "127.0.0.1"
REQUEST_SECONDS = 10.0
"""How long a connection may take to send the head of a request."""
MAX_CONNECTIONS = 512


class ImpatientProtocol(H11Protocol):
    """HTTP on one connection, which is closed if the head of a request does not come in time."""

    waits = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        if not self.waits and (self.cycle is None or self.cycle.response_complete):
            self.waits = True
            self.loop.call_later(REQUEST_SECONDS, self._close_without_request, self.cycle)

    def _close_without_request(self, last: object) -> None:
        self.waits = False
        if self.cycle is not last:
            self._wait_for_request()
        elif not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server that prints its link once it answers."""

    def __init__(self, config: uvicorn.Config, guard: Guard, address: str, opens: bool) -> None:
        super().__init__(config)
        self.guard, self.address, self.opens = guard, address, opens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        link = self.print_link("studio")
        if self.opens:
            open_browser(link)

    def print_link(self, label: str) -> str:
        link = f"{self.address}/open#{self.guard.sessions.new_link()}"
        console.print(f"{label}: {link}", markup=False, soft_wrap=True)
        return link


def run_studio(port: int | None, allowed: Allowed, hosts: tuple[str, ...], prefix: str, opens: bool) -> None:
    """Serve the folder until Ctrl-C. Raises ConfigError if the port is in use."""
    folder = working_folder()
    processes = Processes(folder)
    studio = Studio(Comparisons(folder, processes), processes, allowed, prefix)
    listener = bind(port)
    number = listener.getsockname()[1]
    guard = Guard(studio.application(), f"partwise-{number}", hosts, prefix, PUBLIC)
    config = uvicorn.Config(
        guard,
        http=ImpatientProtocol,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16 * 1024,
    )
    server = Server(config, guard, f"http://{HOST}:{number}{prefix}", opens)
    guard.on_exchange = lambda: cast(None, server.print_link("for another browser"))
    console.print("Ctrl-C ends the studio; comparisons keep running", markup=False)
    server.run(sockets=[listener])


DEFAULT_PORT = 8765


def bind(port: int | None) -> socket.socket:
    """A socket of this machine alone. Without `port`, the default one or, if that is in use, a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":  # where it would let two servers share a port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for each in (DEFAULT_PORT, 0) if port is None else (port,):
        try:
            listener.bind((HOST, each))
            return listener
        except (OSError, OverflowError) as error:
            if each == DEFAULT_PORT and port is None:
                console.print(f"port {each} is in use, perhaps by another studio: this one takes a free port")
                continue
            listener.close()
            reason = getattr(error, "strerror", None) or "expected a number up to 65535"
            raise ConfigError(f"--port {each}: {reason}: choose another one, or leave out --port") from None
    raise AssertionError("a free port was bound")


def open_browser(link: str) -> None:
    """Open a browser without its command line, which other users can read, having the token: by a file of this user."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    page = Path(mkdtemp(prefix="partwise-studio-")) / "open.html"  # a folder that only this user can read
    write_file(page, f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">'.encode())
    webbrowser.open(page.as_uri())
