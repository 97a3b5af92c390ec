"""A server that answers in a thread."""

import contextlib
import threading


@contextlib.contextmanager
def running(server):
    """Answers requests until the `with` statement ends."""
    with server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
