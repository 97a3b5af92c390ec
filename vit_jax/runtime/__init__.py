"""Around a run: processes, devices, preemption, watchdog and goodput."""
