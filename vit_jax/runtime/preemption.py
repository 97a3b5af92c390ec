"""Notices of a Google Cloud machine that it is going to be stopped: to the run, a SIGTERM."""

import contextlib
import http.client
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

import jax

log = logging.getLogger("vit_jax")

# cloud.google.com/compute/docs/metadata/getting-live-migration-notice
KEY = "/computeMetadata/v1/instance/maintenance-event"
WAIT = 60  # seconds until the server answers without news
PAUSE = 10.0  # seconds after a question that failed


@contextlib.contextmanager
def watch_maintenance() -> Iterator[None]:
    """Watches for maintenance of this host where it is a Cloud TPU VM, and does nothing elsewhere.

    One host's notice stops all of them at the same step, as a SIGTERM to one does.
    """
    if jax.default_backend() != "tpu":
        yield
        return
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    done = start(host, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        done.set()


def start(server: str, notify: Callable[[], object]) -> threading.Event:
    """Asks a metadata server in a thread, until it announces maintenance or the event is set."""
    done = threading.Event()
    threading.Thread(target=_ask, args=(server, notify, done), name="notices", daemon=True).start()
    return done


def _ask(server: str, notify: Callable[[], object], done: threading.Event) -> None:
    query = ""  # the first answer is what holds now
    while not done.is_set():
        try:
            connection = http.client.HTTPConnection(server, timeout=WAIT + 30)
            with contextlib.closing(connection):
                connection.request("GET", KEY + query, headers={"Metadata-Flavor": "Google"})
                answer = connection.getresponse()
                text, tag = answer.read().decode(), answer.headers.get("ETag", "0")
        except (OSError, http.client.HTTPException):
            done.wait(PAUSE)
            continue
        if text.startswith("TERMINATE") and not done.is_set():
            log.warning("this host is announced to be stopped for maintenance")
            notify()
            return
        query = f"?wait_for_change=true&timeout_sec={WAIT}&last_etag={tag}"
