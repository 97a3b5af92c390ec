"""Errors that a user can act on."""

import errno
from collections.abc import Sequence

from vit_jax.utils import messages

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk


class UserError(Exception):
    """A mistake or a condition the user can act on: one line, no traceback, an exit code.

    Attributes:
      from_state: whether the training state may be the cause, so that a retry fails again.
    """

    exit_code = 2
    from_state = False

    def __str__(self) -> str:
        """The message as one line of bounded length, whatever values it quotes."""
        return messages.one_line(super().__str__())


class AssumptionWarning(UserWarning):
    """An assumption about what a weights file, or the data of a head, leaves open.

    `reference` is the file or option, as the user names it.
    """

    def __init__(self, reference: str, lines: Sequence[str]) -> None:
        super().__init__(f"{reference}: {'; '.join(lines)}")
        self.reference = reference
        self.lines = tuple(lines)


class NotWritten(UserError):
    """A file could not be written for lack of room; a retry succeeds once there is some."""

    exit_code = 70


class LeaseLost(UserError):
    """Another process has taken over the run directory; a restart would only find it in use."""

    exit_code = 72


class ConfigError(UserError):
    """An unknown option, a wrong type, or a value out of bounds."""


class CheckpointError(UserError):
    """A checkpoint that does not exist, cannot be read, or does not fit its use."""


# No UserError, which would end the run: a restore goes on with the checkpoint before.
class DamagedCheckpoint(Exception):
    """A checkpoint that differs from its commit record; the message names the difference."""
