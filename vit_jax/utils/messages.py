"""Message text: one line of bounded length that is safe in any terminal, file or format."""

import contextlib
import os
import re
import sys
import unicodedata
from collections.abc import Sequence

LIMIT = 500  # characters per line on standard error, including the prefix
PREFIX = "vit_jax: "
TEXT = LIMIT - len(PREFIX)

# Control characters, lone surrogates, and the separators of lines and paragraphs.
UNSAFE = frozenset(("Cc", "Cs", "Zl", "Zp"))
# Bidirectional controls, which make a terminal display text out of order.
DIRECTIONS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


# What precedes a secret: an address's password, a token's kind, or the name of a value.
NAMES = ("TOKEN", "API_KEY", "ACCESS_KEY", "SECRET", "PASSWORD")
SECRET = re.compile(
    r"(://)[^/@\s*]+(?=@)|\b(hf_(?=[A-Za-z0-9]{16})|ghp_|github_pat_|ya29\.|AIza)[\w.\-]{8,}"
    r"|([?&][\w.\-]*(?i:token|secret|password|key|signature|credential)=)[^*&\s\"']+"
    rf"|((?:{'|'.join(NAMES)})=[\"']?)[^*&\s\"']+"
)
SHORTEST = 8  # characters of the value of a variable that is a secret


def without_secrets(text: str) -> str:
    """Removes passwords, tokens and signatures, and the values of such variables."""
    for name, value in os.environ.items():
        # Shorter ones, such as 1 or true, occur in text that is no secret.
        if len(value) >= SHORTEST and value in text and name.endswith(NAMES):
            text = text.replace(value, "***")
    return SECRET.sub(lambda found: "".join(filter(None, found.groups())) + "***", text)


def printable(text: str) -> str:
    r"""Text as valid Unicode on one line: everything else becomes an escape.

    Python reads a non-UTF-8 byte in a file name or argument as a lone surrogate; that byte becomes
    `\xe9`; a newline becomes `\n`.
    """
    if text.isprintable():
        return text
    # Other lone surrogates come from JSON, and are escaped below.
    with contextlib.suppress(UnicodeEncodeError):
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(_escaped(character) for character in text)


def is_utf8(name: str) -> bool:
    """Whether a name is valid UTF-8, so that C++ libraries can open the file."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str, *, limit: int = TEXT, encoding: str = "utf-8") -> str:
    """`printable` text of at most `limit` characters; the middle of longer text is cut.

    Characters outside `encoding` become escapes, which count toward the limit.
    """
    # Before the cuts, as a part of a secret fits no pattern.
    text = without_secrets(text)
    if len(text) > 2 * limit:  # a value may contain millions of characters
        text = text[:limit] + text[-limit:]
    shown = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    if len(shown) <= limit:
        return shown
    cut = "\u2026" if _has(encoding, "\u2026") else "..."
    # Both ends stay: a message begins with the option and its value, and ends with the remedy.
    start = limit * 3 // 5
    return shown[:start] + cut + shown[start + len(cut) - limit :]


def size_text(number: int) -> str:
    """A number of bytes as text, such as `80.9 kB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= scale:
            return f"{number / scale:,.1f} {unit}"
    return f"{number / 1e3:,.1f} kB"


def rounded(value: float, least: float = 10.0) -> str:
    """A whole number, or two significant digits of one below `least`, so that none becomes 0."""
    return f"{value:,.0f}" if value >= least else f"{value:.2g}"


def memory_text(number: float | None) -> str:
    """A number of bytes in binary units, such as `2.75 GiB`; `not known` for None."""
    if number is None:
        return "not known"
    for unit, bits in zip("EPTGMK", range(60, 0, -10), strict=True):
        if number >= 999.5 * 2 ** (bits - 10):  # from here on, three digits need the larger unit
            return f"{number / 2**bits:.3g} {unit}iB"
    return f"{number:.3g} B"


def more(found: Sequence[object]) -> str:
    """` (and N more)` for a message that names only the first; empty for none."""
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""


def print_error(text: str) -> None:
    """Prints a line to standard error, ignoring failures: the exit code still signals the error."""
    print_line(PREFIX + text)


def print_line(text: str) -> None:
    """Prints a line to standard error without the program name as prefix."""
    if sys.stderr is None:  # closed before Python started
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):
        sys.stderr.write(one_line(text, limit=LIMIT, encoding=encoding) + "\n")
        sys.stderr.flush()


def _escaped(character: str) -> str:
    if character in DIRECTIONS or unicodedata.category(character) in UNSAFE:
        return character.encode("unicode_escape").decode()
    return character


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
