"""Patterns of parameters: `head`, `*/bias`, `encoder[:8]/attention`.

A pattern is the path of a parameter or of a part of the network that contains it. `*` stands for
any text and `?` for one character. The encoder's layers are stacked in one array; a slice after
their part's name, as in Python, takes some of them: `encoder[:8]`, `encoder[-1]/mlp`.
"""

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterable, Mapping

from vit_jax.utils.errors import ConfigError

# Bounded, as int() refuses texts of thousands of digits with another error.
_NUMBER = r"-?\d{1,6}"
_PATTERN = re.compile(
    # A slice may begin with its colon, but brackets are never empty.
    rf"([\w*?.][\w*?./]*)(?:\[({_NUMBER}|(?=:))(:?)((?:{_NUMBER})?)\])?((?:/[\w*?./]*)?)"
)
STACKED = re.compile(r"(.*/)?(encoder|rest)/.*")  # whose first axis counts layers


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A pattern of parameters.

    Attributes:
      text: as written.
      glob: the path, without the slice.
      layers: the layers it takes; None: parameters as a whole.
    """

    text: str
    glob: str
    layers: slice | None

    def fits(self, name: str) -> bool:
        """Whether the path is that of the parameter `name`, or of a part it is in."""
        path = re.escape(self.glob.rstrip("/")).replace(r"\*", ".*").replace(r"\?", ".")
        return re.fullmatch(f"{path}(/.*)?", name) is not None

    def taken(self, name: str, layers: int) -> range:
        """The layers of a parameter, of `layers`, that match; one that is not stacked has 1.

        >>> parse_pattern("encoder[-2:]/mlp", "key").taken("encoder/mlp/fc1/kernel", 12)
        range(10, 12)
        """
        if not self.fits(name) or (self.layers and not STACKED.fullmatch(name)):
            return range(0)
        # A range takes slices as a list does: negative ends count from the last layer.
        return range(layers)[self.layers or slice(None)]


def parse_pattern(text: str, key: str) -> Pattern:
    """Reads a pattern; raises ConfigError."""
    match = _PATTERN.fullmatch(text)
    if match is None or not (match[2] != "" or match[3]):
        raise ConfigError(
            f"{key}={text}: must be a path of parameters, such as head, */bias or encoder[:8]/mlp"
        )
    first, last, layers = match[2], match[4], None
    if match[3]:
        layers = slice(int(first) if first else None, int(last) if last else None)
    elif first:
        # After the last layer, -1, an end of 0 would be before the first.
        layers = slice(int(first), int(first) + 1 or None)
    return Pattern(text, match[1] + match[5], layers)


def check_matches(patterns: Iterable[Pattern], layers: Mapping[str, int], key: str) -> None:
    """Raises ConfigError for a pattern of option `key` that matches no parameter of `layers`."""
    for pattern in patterns:
        if any(pattern.taken(name, count) for name, count in layers.items()):
            continue
        depths = {n for name, n in layers.items() if pattern.fits(name) and STACKED.fullmatch(name)}
        if depths:
            raise ConfigError(
                f"{key}={pattern.text}: none of the {max(depths)} layers; they are 0 to "
                f"{max(depths) - 1}"
            )
        if any(map(pattern.fits, layers)):
            raise ConfigError(f"{key}={pattern.text}: has no layers; leave out the brackets")
        near = _closest(pattern.glob, layers)
        raise ConfigError(f"{key}={pattern.text}: matches no parameter; close: {', '.join(near)}")


def _closest(glob: str, names: Collection[str]) -> list[str]:
    paths = list(dict.fromkeys(part for name in names for part in _paths(name)))
    near = difflib.get_close_matches(glob, paths, n=3, cutoff=0.5)
    return near or list(dict.fromkeys(name.partition("/")[0] for name in names))


def _paths(name: str) -> list[str]:
    """A parameter's path and those of the parts it is in, the shortest first."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
