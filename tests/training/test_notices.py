"""A metadata server announces maintenance: the run is told once, as by a signal."""

import contextlib
import http.server
import os
import signal
import threading
import time

from vit_jax.runtime import preemption


@contextlib.contextmanager
def metadata_server(answers):
    """Runs a server that gives these answers one after another, the last one for ever."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            status = 503 if answer is None else 200
            text = (answer or "").encode()
            self.send_response(status)
            self.send_header("ETag", f"tag{len(asked)}")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"localhost:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_announced_maintenance_stops_the_run_as_a_signal_does():
    answers = ["NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"]
    with metadata_server(answers) as (address, asked), preemption.Stop() as stop:
        preemption.start(address, lambda: os.kill(os.getpid(), signal.SIGTERM))
        until = time.monotonic() + 60
        while not stop() and time.monotonic() < until:
            time.sleep(0.01)
        assert stop.signal == signal.SIGTERM
    paths, flavours = zip(*asked, strict=True)
    assert set(flavours) == {"Google"}
    assert [path.partition("?")[0] for path in paths] == [preemption.KEY] * 3
    assert paths[0].partition("?")[2] == ""  # what holds now, then what changes
    assert paths[1].endswith("?wait_for_change=true&timeout_sec=60&last_etag=tag1")
    assert paths[2].endswith("&last_etag=tag2")


def test_a_server_that_fails_is_asked_again(monkeypatch):
    monkeypatch.setattr(preemption, "PAUSE", 0.01)
    told = threading.Event()
    with socketless_port() as nobody:
        done = preemption.start(nobody, told.set)
        time.sleep(0.05)
        done.set()
    with metadata_server([None, "", "TERMINATE_ON_HOST_MAINTENANCE"]) as (address, asked):
        preemption.start(address, told.set)
        assert told.wait(60)
    assert len(asked) == 3


@contextlib.contextmanager
def socketless_port():
    """Gives an address where nobody listens."""
    with metadata_server(["NONE"]) as (address, _):
        pass
    yield address


def test_elsewhere_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(preemption, "start", lambda *_: 1 / 0)
    with preemption.watch_maintenance():
        pass
