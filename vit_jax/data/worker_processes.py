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


def kill_loaders() -> None:
    """Kills all loaders, because abandoning one means that the run ends."""
    for process in multiprocessing.active_children():
        if process.name.startswith("grain-"):
            process.kill()


def death(workers: int, error: BaseException) -> str:
    """Returns what to tell of a loader process that ended, from Grain's error."""
    code = str(error).partition("exit code ")[2].partition(".")[0]
    causes = {"-9": "killed, perhaps for lack of memory", "-7": "no room in /dev/shm"}
    cause = causes.get(code, 'a script must start under if __name__ == "__main__"')
    return (
        f"data.workers={workers}: a loader process ended with exit code {code} ({cause}); try "
        f"again, with fewer data.workers or a smaller data.prefetch"
    )
