"""Processes that work for this one: they leave signals to it, and end when it ends."""

import multiprocessing
import os
import signal
import threading


def begin(*signals: signal.Signals) -> None:
    """Makes this process, which another one started, ignore `signals` and end with the other.

    A kill of the first process tells the others nothing; that it is gone is seen by its sentinel.
    """
    for each in signals:
        signal.signal(each, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
