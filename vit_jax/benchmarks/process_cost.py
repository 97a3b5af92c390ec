"""Runs a program, without its output, and prints its exit code, time, CPU time and peak memory.

A small process of its own: Linux counts the memory of the process that starts a program, from
before the exec, as the program's. It needs only the standard library.
"""

import json
import os
import sys
import time

if __name__ == "__main__":
    began = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent)
    # Of this child alone, where RUSAGE_CHILDREN has the maximum of all.
    _, status, used = os.wait4(process, 0)
    answer = {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.perf_counter() - began,
        "cpu": used.ru_utime + used.ru_stime,
        "peak": 1024 * used.ru_maxrss,
    }
    sys.stdout.write(json.dumps(answer))
