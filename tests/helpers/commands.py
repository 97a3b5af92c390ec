"""What a command printed, and the line of an error, for tests that run it in their own process."""

import pytest

from vit_jax import cli


def run(capsys, *words):
    """Runs a command; returns exit code, lines printed, lines on standard error."""
    capsys.readouterr()
    code = cli.main([*map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err.splitlines()


def printed(result):
    """The lines of a command that did what it was asked."""
    code, lines, errors = result
    assert (code, errors) == (0, [])
    return lines


def woe(result):
    """The one line of an error."""
    code, lines, errors = result
    assert (code, lines) == (2, [])
    (line,) = errors
    assert len(line) < 500
    return line.removeprefix("vit_jax: ")


def error_line(error, call, *args, **options):
    """The message, of one line, of the error that a call raises."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line
