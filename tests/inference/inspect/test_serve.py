"""The page on this machine: who is answered, what is taken, and that nothing is kept."""

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
import types

import cv2
import numpy as np
import pytest

import browsing
import serving
from vit_jax import config
from vit_jax.inference.inspect import serve, view
from vit_jax.runtime import logs

KIND = {"Content-Type": serve.KIND}


def png(side=20):
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


@pytest.fixture(scope="module")
def viewer():
    return view.Viewer(browsing.create())


def running(viewer, page):
    return serving.running(serve.Server(viewer, page, 0))


@pytest.fixture(scope="module")
def server(viewer):
    with running(viewer, view.page(viewer, (), live=True)) as server:
        yield server


def ask(server, method="GET", path="/", body=None, **headers):
    """The status, headers and content of an answer."""
    connection = http.client.HTTPConnection(serve.ADDRESS, server.server_port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_is_there_and_may_load_nothing_else(server):
    status, headers, content = ask(server)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy == f"{view.policy()}; frame-ancestors 'none'"
    assert "script-src 'sha256-" in policy
    assert policy.count("unsafe") == 1  # style-src: attributes of elements
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b'"live":true' in content
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_page_may_name_a_file_whose_name_is_no_text():
    with serve.Server(None, "caf\udce9.png", 0) as server:
        assert server.page == b"caf\\udce9.png"


def test_an_image_is_looked_at_and_nothing_is_written(server, viewer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, headers, content = ask(server, "POST", "/look", png(), **KIND)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    found, same = json.loads(content), json.loads(json.dumps(viewer.show(("x", png(), None))))
    assert found | {"name": "x"} == same
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, 200),
    ],
)
def test_only_pages_of_its_own_are_answered(server, headers, status):
    own = {name: value.format(port=server.server_port) for name, value in headers.items()}
    assert ask(server, "POST", "/look", png(), **KIND, **own)[0] == status
    assert ask(server, **own)[0] == status


@pytest.mark.parametrize(("port", "bare"), [(80, True), (8080, False)])
def test_the_port_of_http_may_be_left_out(port, bare):
    """As browsers do, in Host and in Origin."""
    hosts = serve.Server.hosts.fget(types.SimpleNamespace(server_port=port))
    assert hosts[:2] == (f"127.0.0.1:{port}", f"localhost:{port}")
    assert hosts[2:] == (("127.0.0.1", "localhost") if bare else ())


def header_of_a_bomb():
    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    end = struct.pack(">I", 0) + b"IEND" + bytes(4)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + size + bytes(4) + end


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (png(), {"Content-Type": "text/plain"}, 415, "send an image as"),
        (png()[:100], KIND, 400, "truncated or damaged PNG"),
        (b"<svg/>", KIND, 400, "is not a JPEG, PNG"),
        (b"", KIND, 400, "is empty"),
        (header_of_a_bomb(), KIND, 400, "60000 x 60000 pixels, more than"),
        (None, {**KIND, "Content-Length": "20000001"}, 413, "too large: at most 20 MB"),
        (None, {**KIND, "Content-Length": "9" * 5000}, 413, "too large: at most 20 MB"),
        (None, {**KIND, "Content-Length": "-1"}, 411, "Content-Length is missing"),
        (None, {**KIND, "Transfer-Encoding": "chunked"}, 411, "Content-Length is missing"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(server, body, headers, status, message):
    connection = http.client.HTTPConnection(serve.ADDRESS, server.server_port, timeout=20)
    connection.putrequest("POST", "/look")
    lengths = {} if body is None else {"Content-Length": str(len(body))}
    for name, value in {**headers, **lengths}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    assert answer.status == status
    error = json.loads(answer.read())["error"]
    assert message in error
    assert "\n" not in error
    connection.close()


def test_a_file_that_is_too_large_is_refused_in_words(server):
    body = bytes(serve.MOST_BYTES + 1)  # sent whole before the answer is read
    status, _, content = ask(server, "POST", "/look", body, **KIND)
    assert (status, "too large: at most 20 MB" in content.decode()) == (413, True)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"PUT /look HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET / / / HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
    ],
)
def test_every_refusal_has_the_security_headers(server, request_, status):
    with socket.create_connection((serve.ADDRESS, server.server_port), timeout=20) as client:
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as file:
            answer = b"".join(iter(lambda: file.read(1000), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first.split()[1] == str(status)
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers.items() >= serve.HEADERS.items()
    assert (headers["Content-Type"], b"<" in content) == ("application/json", False)
    if not request_.startswith(b"HEAD"):
        assert len(json.loads(content)["error"].split()) > 1  # a reason in words


@pytest.mark.parametrize("begun", ["", "GET / HTTP/1.1\r\nHost: x\r\n", "POST"])
def test_a_client_that_drips_is_cut_off(server, monkeypatch, begun):
    monkeypatch.setattr(serve.Handler, "timeout", 0.5)
    post = (
        f"POST /look HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
        f"Content-Type: {serve.KIND}\r\nContent-Length: 1000\r\n\r\n"
    )
    with socket.create_connection((serve.ADDRESS, server.server_port), timeout=20) as slow:
        slow.sendall((post if begun == "POST" else begun).encode())
        began = time.monotonic()
        with contextlib.suppress(OSError):  # reset, or a broken pipe
            while time.monotonic() - began < 20:
                slow.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() - began < 10


def test_few_images_are_in_memory_at_once(viewer, monkeypatch):
    held, most, free = [], [], threading.Event()
    read = serve.Handler.read_body

    def body(self, length):
        held.append(1)
        most.append(len(held))
        return read(self, length)

    def look(self, picture):
        free.wait(20)
        held.pop()
        return {}

    monkeypatch.setattr(serve.Handler, "read_body", body)
    monkeypatch.setattr(type(viewer), "show", look)
    found = []
    with running(viewer, "") as server:
        send = lambda: found.append(ask(server, "POST", "/look", bytes(9), **KIND)[0])  # noqa: E731
        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        free.set()
        for thread in threads:
            thread.join()
    assert found == [200] * 8
    assert max(most) == serve.AT_ONCE


def test_connections_are_counted(viewer, monkeypatch):
    monkeypatch.setattr(serve, "CONNECTIONS", 2)
    with running(viewer, "page") as server:
        address = (serve.ADDRESS, server.server_port)
        with socket.create_connection(address), socket.create_connection(address):
            time.sleep(0.1)
            began = time.monotonic()
            with pytest.raises((http.client.HTTPException, OSError)):
                ask(server)
            assert time.monotonic() - began < 10  # it is refused at once
        time.sleep(0.1)
        assert ask(server)[0] == 200


def test_connections_wait_until_they_are_accepted(viewer):
    with serve.Server(viewer, "page", 0) as server, contextlib.ExitStack() as clients:
        for _ in range(40):
            address = (serve.ADDRESS, server.server_port)
            clients.enter_context(socket.create_connection(address, timeout=2))


def leave(server, request):
    """Sends a request, and closes the connection so that the next write to it fails."""
    with socket.create_connection((serve.ADDRESS, server.server_port), timeout=20) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(request)


def test_a_client_that_leaves_early_costs_no_line(viewer, capfd):
    head = "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    post = (
        "POST /look HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: "
        f"{serve.KIND}\r\nContent-Length: 9000\r\n\r\npart"
    )
    with running(viewer, "x" * 10**7) as server:  # more than a socket takes at once
        for request in (head, post, "GET / HT", ""):
            for _ in range(5):
                leave(server, request.format(port=server.server_port).encode())
        assert ask(server)[0] == 200
    assert capfd.readouterr().err == ""


def test_what_fails_in_a_request_is_one_line(viewer, monkeypatch, capfd):
    def fail(picture):
        raise RuntimeError("of the\nmodel")

    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logs.log, name, getattr(logs.log, name))
    logs.setup()
    with running(viewer, "") as server:
        monkeypatch.setattr(type(viewer), "show", lambda self, picture: fail(picture))
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server, "POST", "/look", png(), **KIND)
    assert capfd.readouterr().err == "a request failed: RuntimeError: of the\\nmodel\n"


def test_a_port_that_is_taken_is_said(server, viewer):
    with pytest.raises(config.ConfigError, match=f"--serve={server.server_port}: .*in use"):
        serve.Server(viewer, "", server.server_port)


@pytest.mark.slow
@pytest.mark.skipif(browsing.BROWSER is None, reason="no chromium here: apt-get install chromium")
def test_a_browser_sends_images_and_shows_them(viewer, tmp_path, monkeypatch):
    script = """
      seen.push($("live").hidden, document.querySelector(".look").hidden);
      const canvas = new OffscreenCanvas(30, 20), files = new DataTransfer();
      canvas.getContext("2d").fillRect(3, 4, 10, 10);
      const blob = await canvas.convertToBlob();
      files.items.add(new File([blob], "mine.png"));
      $("file").files = files.files;
      $("file").dispatchEvent(new Event("change"));
      await until(() => $("message").textContent === "mine.png");
      seen.push($("images").children.length, document.querySelector(".look").hidden);
      const bad = new DataTransfer();
      bad.items.add(new File(["no image"], "bad.txt"));
      $("file").files = bad.files;
      $("file").dispatchEvent(new Event("change"));
      await until(() => $("message").classList.contains("wrong"));
      seen.push($("message").textContent.slice(0, 37), $("images").children.length);
    """
    page = browsing.probed(view.page(viewer, (), live=True), script)
    own = serve.HEADERS["Content-Security-Policy"]
    probe = browsing.probe_of(script)
    monkeypatch.setitem(serve.HEADERS, "Content-Security-Policy", browsing.allowing(own, probe))
    with running(viewer, page) as server:
        seen = browsing.browse(tmp_path, server.url)
    assert seen == [False, True, 1, False, "bad.txt: the file is not a JPEG, PNG,", 1]
