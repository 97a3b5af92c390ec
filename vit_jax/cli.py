"""The command line: one command, its exit code, and a line for each mistake."""

import os
import sys
from collections.abc import Sequence

from vit_jax import backend, config, verbs


def entry() -> None:
    """Runs the command of this process, and ends it."""
    code = main()
    if code:
        from vit_jax.data import feed  # a start does not wait for it

        if feed.stuck():  # the end of this process would wait for theirs
            sys.stdout.flush()
            sys.stderr.flush()
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
        print("vit_jax: " + " ".join(str(error).split("\n")), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("vit_jax: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


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
