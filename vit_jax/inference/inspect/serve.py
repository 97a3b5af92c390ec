"""Serves the page of `view` on 127.0.0.1 for images from the user, without storing them."""

import contextlib
import http.server
import io
import json
import socket
import sys
import threading
import time
from http import HTTPStatus

from vit_jax import config
from vit_jax.data import decoding
from vit_jax.inference.inspect import view
from vit_jax.runtime import logs

ADDRESS = "127.0.0.1"
MOST_BYTES = 20_000_000  # of an uploaded image
MOST_DIGITS = 20  # of a byte count; Python rejects numbers with thousands of digits
SECONDS = 30  # for a request to arrive, and again for its image; a wait for the others is free
AT_ONCE = 2  # images in memory: one arrives while another is looked at
CONNECTIONS = 64  # more are closed at once
HTTP_PORT = 80
KIND = "application/octet-stream"  # other origins cannot send this type without a preflight request
HEADERS = {
    "Content-Security-Policy": f"{view.policy()}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RejectedError(Exception):
    """A rejected request: the status and a one-line reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Server(http.server.ThreadingHTTPServer):
    """Answers `GET /` with a page and `POST /look` with the viewer's result for an image."""

    # Ctrl-C ends the server without waiting for open connections.
    daemon_threads = True
    request_queue_size = CONNECTIONS  # Linux resets what it cannot queue until it is accepted

    def __init__(self, viewer: view.Viewer, page: str, port: int) -> None:
        """Binds a port, 0 for any that is free; raises ConfigError."""
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise config.ConfigError(f"--serve={port}: {error.strerror}; try another") from error
        self.viewer, self.page = viewer, page.encode(errors="backslashreplace")
        self.one_at_a_time = threading.Lock()
        self.images = threading.BoundedSemaphore(AT_ONCE)
        self._connections = threading.BoundedSemaphore(CONNECTIONS)

    def process_request(self, request: socket.socket, client_address: object) -> None:
        """Answers a connection in a thread of its own; their number is limited."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:
        """Answers a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: socket.socket, client_address: object) -> None:
        """Ignores clients that disconnected; logs other errors in one line."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            logs.log.error("a request failed: %s: %s", type(error).__name__, error)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Allowed values of the Host header."""
        names = ADDRESS, "localhost"
        full = tuple(f"{name}:{self.server_port}" for name in names)
        # Browsers leave out the port of the scheme.
        return (*full, *names) if self.server_port == HTTP_PORT else full

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{self.hosts[0]}/"


class _Arriving(io.RawIOBase):
    """The bytes that a client sends before a deadline; reading after it raises TimeoutError.

    A timeout of the socket alone begins again with every byte.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.deadline = connection, 0.0

    def readable(self) -> bool:
        """Whether this can be read: yes."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Reads the bytes at hand, or waits for the next ones."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Handler(http.server.BaseHTTPRequestHandler):
    """One request; http.server defines the method names."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "vit_jax", ""
    timeout = SECONDS

    def setup(self) -> None:
        """Starts the deadline for the request."""
        super().setup()
        self._arriving = _Arriving(self.connection)
        self._arriving.deadline = time.monotonic() + (self.timeout or SECONDS)
        # http.server reads request line and headers from it, so the deadline covers them.
        self.rfile = io.BufferedReader(self._arriving)

    def do_GET(self) -> None:
        """Sends the page."""
        try:
            self._check_sender()
            if self.path != "/":
                raise RejectedError(HTTPStatus.NOT_FOUND, "the page is at /")
        except RejectedError as error:
            self._send_error(error)
        else:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        """Sends the model's result for an image as JSON."""
        try:
            self._check_sender()
            if self.path != "/look":
                raise RejectedError(HTTPStatus.NOT_FOUND, "images go to /look")
            length = self._length()
            try:
                # Before the body is read: 40 images of 15 MB that arrive at once took 450 MB more
                # than two (measured).
                with self.server.images:
                    encoded = self.read_body(length)
                    with self.server.one_at_a_time:
                        fields = self.server.viewer.show(("your image", encoded, None))
            except decoding.BadImage as error:
                raise RejectedError(HTTPStatus.BAD_REQUEST, f"the file {error}") from error
        except RejectedError as error:
            self._send_error(error)
        except TimeoutError:
            self.close_connection = True
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(fields).encode())

    def _check_sender(self) -> None:
        """Rejects requests from other origins, and foreign host names (DNS rebinding)."""
        if self.headers.get("Host") not in self.server.hosts:
            raise RejectedError(HTTPStatus.FORBIDDEN, f"this is {self.server.url}")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.server.hosts}:
            raise RejectedError(HTTPStatus.FORBIDDEN, "pages of other origins are not answered")

    def _length(self) -> int:
        if self.headers.get("Content-Type") != KIND:
            raise RejectedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send an image as {KIND}")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RejectedError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        if len(length) > MOST_DIGITS or int(length) > MOST_BYTES:
            limit = f"at most {MOST_BYTES // 10**6} MB"
            raise RejectedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the file is too large: {limit}"
            )
        return int(length)

    def read_body(self, length: int) -> bytes:
        """The body of a request; raises RejectedError if it comes only in part."""
        self._arriving.deadline = time.monotonic() + (self.timeout or SECONDS)
        body = self.rfile.read(length)
        if len(body) < length:
            raise RejectedError(HTTPStatus.BAD_REQUEST, "the upload was cut off")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers errors of http.server itself in the same form as all others."""
        status = HTTPStatus(code)
        self._send_error(RejectedError(status, message or status.phrase))

    def _send_error(self, error: RejectedError) -> None:
        self.close_connection = True  # the rest of the request was not read
        content = json.dumps({"error": str(error)}).encode()
        self._send(error.status, "application/json", content)
        # To close while more arrives would reset the connection, and the client lose the answer.
        self.connection.shutdown(socket.SHUT_WR)
        self._arriving.deadline = time.monotonic() + (self.timeout or SECONDS)
        with contextlib.suppress(OSError):
            while self.rfile.read1(2**16):
                pass

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.connection.settimeout(self.timeout)
        self.request_version = self.protocol_version  # of a broken request: none, so no headers
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the page shows errors."""
