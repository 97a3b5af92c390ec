"""The command line: parses it, runs one command, and reports a mistake in one line.

Each command is a module of this package with `HELP`, `EPILOG`, `TAKES_CONFIG`,
`add_arguments(parser)` and `run(args, overrides) -> exit code`. It imports what it needs inside
`run`, so that help and mistakes cost no import of jax.
"""

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from vit_jax import __version__, config
from vit_jax.cli.arguments import Parser
from vit_jax.config import components
from vit_jax.runtime import backend, signals
from vit_jax.utils import messages

COMMANDS = (
    "train",
    "transfer",
    "evaluate",
    "predict",
    "embed",
    "search",
    "inspect",
    "segment",
    "reproduce",
    "report",
    "convert",
    "push",
    "average",
    "export",
    "list",
    "show",
    "preflight",
    "prepare",
    "doctor",
    "bench",
    "selftest",
)
WITHOUT_A_LOG = ("report", "push", "list", "show", "bench")  # they only print an answer
FAILED = 70  # worth a retry, once there is room on the disk
OUT_OF_MEMORY = 78  # would fail again
# Errors of a path that the user gave and nothing has checked yet.
PATH_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EROFS)

DESCRIPTION = """\
Train Vision Transformers in JAX, by config name.

  vit_jax train digits                          a whole run on embedded images, two minutes
  vit_jax doctor DIR --fix-list=fix.csv         copies, leaks, wrong labels, broken files: a page
  vit_jax train image_folder --config.data.root=DIR --workdir=runs/mine
  vit_jax train --workdir=runs/mine             resume it
  vit_jax evaluate --checkpoint=runs/mine       top-1, top-5 and loss on the whole split
  vit_jax predict --checkpoint=runs/mine cat.jpg photos/
  vit_jax report runs/mine                      an HTML page: curves, mistakes, settings
  vit_jax list --table=table3                   the paper's pre-training runs, by name
  vit_jax reproduce table5 --dry-run            the runs of a table, their cost, what is done
  vit_jax preflight pretrain/ViT-L_16-i21k-90ep --topology=v5e-256 --fit
"""

EXITS = """\
exit codes: 0 done, 2 wrong usage or input, 70 failed but worth a retry (loss not finite, disk
full), 71 a device computed different results from the same inputs, 72 another process has taken
over the run directory, 75 stopped by a signal and saved (resume with the same command), 78 will
fail again (out of memory, no usable checkpoint), 130 interrupted by Ctrl-C, 143 by SIGTERM, 129 as
the terminal was closed
"""

OVERRIDES = """\
Any option of the config can be set: --config.optimizer.lr=3e-4
--config.train.duration='10 epochs' --config.data.image_size=32x48 --config.train.clip_norm=none.
`vit_jax show NAME --all` prints them all.
--plugins=my_project[,other] imports modules that register components.
"""


def entry(command: ModuleType | None = None) -> None:
    """Runs the command of this process, then exits; `command` is as in `main`."""
    signals.listen()
    # Children get these: `os._exit` below leaves semaphores to the one that clears up.
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    # File names may hold characters that standard output cannot encode.
    if isinstance(sys.stdout, io.TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(errors="backslashreplace")
    code = signals.finish(main(command=command))
    if not _flush():  # Python would flush again at exit, and change the exit code
        if not code:
            messages.print_error("standard output: cannot be written")
        os._exit(code or FAILED)
    if code:
        from vit_jax.data import prefetch  # not needed at startup

        if (
            signals.unwound() or prefetch.stuck()
        ):  # exiting normally would wait for the loader's threads
            os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None, command: ModuleType | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
      argv: the arguments; None: those of the process.
      command: a command of another program, such as `python -m research.findings`, whose name is
        its `PROG`; None: the first argument names one of ours.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments, overrides, plugins = split_options(arguments)
        # Only for a command: plug-ins may take seconds, and help or a misspelled name needs none.
        if plugins and (command or (arguments and arguments[0] in COMMANDS)):
            components.load_plugins(plugins)
        args = create_parser(command).parse_all(arguments) if command else parse_command(arguments)
        # After parsing, which reports a misspelled command or flag first.
        if overrides and not args.command.TAKES_CONFIG:
            raise config.ConfigError(
                f"--config.{next(iter(overrides))}: {args.name_of_command} takes no config options"
            )
        if "seed" in overrides and "seed" in args:
            given = overrides["seed"]
            raise config.ConfigError(f"--config.seed={given}: is not read; --seed={given} draws")
        backend.choose_platform(
            opens=args.name_of_command.split()[0] not in signals.WITHOUT_DEVICES
        )
        # Removed before jax is imported, which would obey it.
        if os.environ.pop("JAX_ENABLE_X64", "0").lower() not in ("", "0", "f", "false", "n", "no"):
            messages.print_line("JAX_ENABLE_X64: not used here, where every array has its own type")
        from vit_jax.runtime import logs  # not needed for help and mistakes

        if args.name_of_command not in WITHOUT_A_LOG:
            logs.setup()
        with logs.assumptions_logged():
            return args.command.run(args, overrides)
    except config.UserError as error:
        # The error is the answer, also where a signal came meanwhile.
        signals.answered()
        messages.print_error(str(error))
        return error.exit_code
    except MemoryError as error:
        messages.print_error(f"out of memory: {error}" if str(error) else "out of memory")
        return OUT_OF_MEMORY
    except KeyboardInterrupt:
        return _stopped()
    # Before OSError, of which it is one: whoever reads wants no more, as `head`.
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno in PATH_ERRORS:
            messages.print_error(f"{error.filename}: {error.strerror}")
            return config.UserError.exit_code
        if "temporary directory" in str(error.strerror):  # tempfile's, of a disk without any room
            messages.print_error(str(error.strerror))
            return FAILED
        if error.errno not in config.NO_ROOM:
            if signals.interrupted():
                return _stopped()
            raise
        # A file without its own handler, or standard output redirected to a full disk.
        messages.print_error(
            f"{error.filename or 'standard output, or a file'}: cannot be written: {error.strerror}"
        )
        return FAILED
    except Exception as error:
        if signals.interrupted():  # a library has made an error of its own of it
            return _stopped()
        if line := backend.problem(error):
            messages.print_error(line)
            return config.UserError.exit_code
        if line := backend.out_of_memory(error):
            messages.print_error(line)
            return OUT_OF_MEMORY
        raise


def _stopped() -> int:
    line, code = signals.last_line(), signals.stopped()
    messages.print_error(line)
    return code


def command_parser(name: str) -> Parser:
    """The parser of one of our commands."""
    return create_parser(_module(name), f"vit_jax {name}")


def create_parser(command: ModuleType, prog: str = "") -> Parser:
    """The parser of a command; `prog` is how it is called, by default its `PROG`."""
    prog = prog or command.PROG
    epilog = (command.EPILOG + "\n" if command.EPILOG else "") + (
        OVERRIDES if command.TAKES_CONFIG else ""
    )
    parser = Parser(
        prog=prog, description=command.HELP[0].upper() + command.HELP[1:] + ".", epilog=epilog
    )
    command.add_arguments(parser)
    parser.set_defaults(command=command, name_of_command=prog.removeprefix("vit_jax "))
    return parser


def _module(name: str) -> ModuleType:
    # A module called `list` would hide the built-in in this package.
    return importlib.import_module(f"vit_jax.cli.{'list_' if name == 'list' else name}")


def parse_command(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments by the parser of the command they begin with."""
    if arguments and arguments[0] in COMMANDS:
        return command_parser(arguments[0]).parse_all(arguments[1:])
    width = max(map(len, COMMANDS)) + 2
    listed = "".join(f"  {name:{width}}{_module(name).HELP}\n" for name in COMMANDS)
    top = Parser(
        prog="vit_jax",
        usage="vit_jax COMMAND ...",
        description=f"{DESCRIPTION}\ncommands:\n{listed}",
        epilog=EXITS,
    )
    top.add_argument("--version", action="version", version=f"vit_jax {__version__}")
    # Prints and exits for --help and --version.
    _, rest = top.parse_known_args(arguments)
    if not rest:
        top.error(f"name a command: {', '.join(COMMANDS)}")
    top.error(f"{rest[0]}: no such command{config.suggest(rest[0], COMMANDS)}")


def _flush() -> bool:
    """Whether everything printed could be written."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        return True
    except OSError:
        return False
    return True


def split_options(
    arguments: Sequence[str],
) -> tuple[list[str], Mapping[str, str], list[str]]:
    """Takes options out of the arguments of any command: the rest, overrides, and plug-ins.

    They are `--config.KEY=VALUE` and `--plugins=MODULE,...`, both also without the `=`.
    """
    rest, overrides, plugins = [], {}, []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--plugins" and not flag.startswith("--config."):
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        # The next word may be a flag, where the value was forgotten.
        missing = not value or value.startswith("--")
        if flag == "--plugins":
            if missing:
                raise config.ConfigError("--plugins: needs modules, as in --plugins=my_project")
            plugins += [name for name in value.split(",") if name]
            continue
        if missing and not equals:
            raise config.ConfigError(f"{flag}: needs a value, as in {flag}=VALUE")
        overrides[flag.removeprefix("--config.")] = value
    return rest, overrides, plugins
