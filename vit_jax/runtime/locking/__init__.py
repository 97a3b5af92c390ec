"""An exclusive lock on a run directory, so that two processes do not destroy each other's saves.

On a disk the lock is a file under `flock`, which the kernel frees as soon as the holder ends, for
any reason. In a bucket it is a lease object. In both cases the holder renews it every `RENEW`
seconds. A waiting process takes over a lock that it has not seen renewed for `LEASE` seconds: a
machine that vanished releases neither a lease nor, on NFS 3, a file lock.

Only commands that write runs take the lock; `evaluate`, `predict`, `report` and the like do not.
"""

from vit_jax.runtime.locking.lock import LEASE, NAME, RENEW, InUse, attempt, clear, exclusive

__all__ = ["LEASE", "NAME", "RENEW", "InUse", "attempt", "clear", "exclusive"]
