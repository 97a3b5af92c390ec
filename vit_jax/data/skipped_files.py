"""Counts the unused files in a folder of images, by reason."""

import collections
import dataclasses
import pathlib

# Unsupported image formats: OpenCV has no decoder, or none that reports the size before allocating
# the pixels.
UNREAD = (
    *(".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl", ".jfif", ".svg", ".psd"),
    *(".dng", ".cr2", ".nef", ".arw", ".ppm", ".pgm", ".tga", ".exr", ".hdr", ".ico"),
)
MOST_KINDS = 4  # of suffixes listed


@dataclasses.dataclass
class Skipped:
    """Counts made while a folder is listed.

    Attributes:
      ends: number of unsupported files by lower-case suffix.
      loose: number of images outside of class folders.
      first_loose: path of one of these.
      hidden: number of files and folders whose name begins with a dot.
    """

    ends: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    loose: int = 0
    first_loose: str = ""
    hidden: int = 0

    def note(self, name: str) -> None:
        """Counts an unsupported file."""
        self.ends[pathlib.PurePath(name).suffix.lower() or "without a suffix"] += 1

    def note_loose(self, path: str) -> None:
        """Counts an image outside of class folders."""
        self.loose += 1
        self.first_loose = self.first_loose or path

    def add(self, other: "Skipped") -> None:
        """Adds the counts of another folder."""
        self.ends += other.ends
        self.loose += other.loose
        self.first_loose = self.first_loose or other.first_loose
        self.hidden += other.hidden

    def describe(self) -> str:
        """Returns `3 .tif (a format that is not read; save as .png), 1 hidden`; empty for none."""
        images = {end: count for end, count in self.ends.items() if end in UNREAD}
        others = {end: count for end, count in self.ends.items() if end not in UNREAD}
        parts = []
        if images:
            parts.append(f"{_listed(images)} (a format that is not read; save as .png)")
        if self.loose:
            parts.append(f"{_images(self.loose)} in no class folder ({shown(self.first_loose)})")
        if others:
            parts.append(f"{_listed(others)} (no image)")
        if self.hidden:
            parts.append(f"{self.hidden:,} hidden")
        return ", ".join(parts)


def shown(path: str) -> str:
    """Returns the end of a path for a message, with unprintable characters escaped."""
    text = path.encode(errors="backslashreplace").decode()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= 80 else f"...{text[-77:]}"


def _images(count: int) -> str:
    return f"{count:,} image{'s' if count > 1 else ''}"


def _listed(ends: dict[str, int]) -> str:
    """Returns `12 .tif, 3 .heic`, the most first."""
    ranked = sorted(ends.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count:,} {shown(end)[:20]}" for end, count in ranked[:MOST_KINDS]]
    if more := sum(count for _, count in ranked[MOST_KINDS:]):
        parts.append(f"{more:,} of other kinds")
    return ", ".join(parts)
