"""Requests to stop: signals, and maintenance of a Cloud TPU host, handled as a SIGTERM."""

import contextlib
import http.client
import os
import signal
import threading
from collections.abc import Callable, Iterator

import jax

from vit_jax import config
from vit_jax.runtime import logs, signals

# cloud.google.com/compute/docs/metadata/getting-live-migration-notice
KEY = "/computeMetadata/v1/instance/maintenance-event"
WAIT = 60  # seconds until the server answers without news
PAUSE = 10.0  # seconds after a failed request


class Preempted(config.UserError):
    """The run was asked to stop, has saved its state, and can be resumed."""

    exit_code = 75


class Stop(signals.StopSignal):
    """Asks a run to stop, in all its processes at the same step."""

    def noted(self, number: int) -> None:
        """Tells the other processes."""
        # Not jax.process_count(): it may be waiting for the devices, and hold a lock.
        if number != signal.SIGTERM and jax.distributed.is_initialized():
            os.kill(os.getpid(), signal.SIGTERM)  # the one that jax passes on to all processes

    def __call__(self, step: int | None = None) -> bool:
        """Whether to stop; with several processes all learn it at the same `step`."""
        if jax.process_count() == 1:
            return self.signal is not None
        if step is None:
            return False  # between steps the processes cannot agree without a barrier
        from jax.experimental import multihost_utils

        # jax agrees on a later step, which every process still has before it.
        return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def watch_maintenance() -> Iterator[None]:
    """Watches for maintenance of this host where it is a Cloud TPU VM, and does nothing elsewhere.

    One host's notice stops all of them at the same step, as a SIGTERM to one does.
    """
    if jax.default_backend() != "tpu":
        yield
        return
    # The variable that Google's own libraries read.
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    done = start_watching(host, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        done.set()


def start_watching(server: str, notify: Callable[[], object]) -> threading.Event:
    """Polls a metadata server in a thread, until it announces maintenance or the event is set."""
    done = threading.Event()
    threading.Thread(target=_ask, args=(server, notify, done), name="notices", daemon=True).start()
    return done


def _ask(server: str, notify: Callable[[], object], done: threading.Event) -> None:
    query = ""  # the first answer is what holds now
    while not done.is_set():
        try:
            # Without news the server answers after `WAIT` seconds: no failure until well past that.
            connection = http.client.HTTPConnection(server, timeout=WAIT + 30)
            with contextlib.closing(connection):
                connection.request("GET", KEY + query, headers={"Metadata-Flavor": "Google"})
                answer = connection.getresponse()
                # An error comes at once: asked for again without a pause, in a busy loop.
                if answer.status != http.HTTPStatus.OK:
                    raise http.client.HTTPException(answer.reason)
                text, tag = answer.read().decode(), answer.headers.get("ETag", "0")
        except (OSError, http.client.HTTPException):
            done.wait(PAUSE)
            continue
        # A host that is only migrated, MIGRATE_ON_HOST_MAINTENANCE, goes on.
        if text.startswith("TERMINATE") and not done.is_set():
            logs.log.warning("this host is announced to be stopped for maintenance")
            notify()
            return
        query = f"?wait_for_change=true&timeout_sec={WAIT}&last_etag={tag}"
