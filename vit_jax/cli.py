"""The command line: one command, its exit code, and a line for each mistake."""

import errno
import io
import os
import sys
from collections.abc import Sequence

from vit_jax import config, messages, verbs
from vit_jax.runtime import backend

FAILED = 70  # worth a retry, once there is room
OF_A_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EROFS)
OUT_OF_MEMORY = 78  # it would fail again


def entry() -> None:
    """Runs the command of this process, and ends it."""
    # Names of files may have characters that standard output has not, or be no text at all.
    if isinstance(sys.stdout, io.TextIOWrapper):  # it is None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")
    code = main()
    if not _flush():  # the end of Python would try again, and take another exit code
        if not code:
            messages.print_error("standard output: cannot be written")
        os._exit(code or FAILED)
    if code:
        from vit_jax.data import prefetch  # a start does not wait for it

        if prefetch.stuck():  # the end of this process would wait for theirs
            os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments, overrides = _split_overrides(arguments)
        options = verbs.parser().parse_args(arguments)
        backend.choose()
        return options.do(options, overrides)
    except config.UserError as error:
        messages.print_error(str(error))
        return error.exit_code
    except MemoryError as error:
        messages.print_error(f"out of memory: {error}" if str(error) else "out of memory")
        return OUT_OF_MEMORY
    except KeyboardInterrupt:
        messages.print_error("interrupted")
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno in OF_A_PATH:  # that was given, and that nobody has looked at before
            messages.print_error(f"{error.filename}: {error.strerror}")
            return config.UserError.exit_code
        if error.errno not in config.NO_ROOM:
            raise
        # Of a file that nobody thought of, or of what is printed, into a file on that disk.
        messages.print_error(
            f"{error.filename or 'standard output, or a file'}: cannot be written: {error.strerror}"
        )
        return FAILED


def _flush() -> bool:
    """Returns whether all that was printed could be written."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # of who has read enough
        return True
    except OSError:
        return False
    return True


def _split_overrides(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Takes `--config.KEY=VALUE` and `--config.KEY VALUE` out of the arguments."""
    rest, overrides = [], {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--config."):
            rest.append(word)
            continue
        key, equals, value = word.removeprefix("--config.").partition("=")
        if not equals:
            value = next(words, "")
            if not value or value.startswith("--"):
                raise config.ConfigError(
                    f"--config.{key}: needs a value, as in --config.{key}=VALUE"
                )
        overrides[key] = value
    return rest, overrides
