"""Set-up of worker processes, which ignore signals and end with their parent."""

import multiprocessing
import os
import signal
import threading


def begin(*signals: signal.Signals) -> None:
    """Makes this child process ignore `signals` and end with its parent.

    A killed parent cannot notify its children, so they watch its sentinel.
    """
    for each in signals:
        signal.signal(each, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
