"""An exclusive lock on a run directory, so that two processes do not destroy each other's saves.

On a disk the lock is a file that the kernel locks (`flock`): it is free again the moment its holder
ends, however that ended. In a bucket it is a lease object. In both its holder shows every `RENEW`
seconds that it is alive. What has not been renewed for `LEASE` seconds, as watched by the one who
waits, is taken over: a machine that vanished releases neither a lease nor, on NFS 3, a file lock.

Only commands that write runs take the lock; `evaluate`, `predict`, `report` and the like do not.
"""

from vit_jax.locking.lock import LEASE, NAME, RENEW, InUse, attempt, clear, exclusive

__all__ = ["LEASE", "NAME", "RENEW", "InUse", "attempt", "clear", "exclusive"]
