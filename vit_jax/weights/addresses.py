"""Addresses of weights: which are fetched, from where, and where in the cache their file goes."""

import os
import pathlib
import re
import urllib.parse

from vit_jax.weights import checksums, readers
from vit_jax.weights.readers import WeightsError

STORAGE, HUB = "https://storage.googleapis.com", "https://huggingface.co"
LOCAL = ("localhost", "127.0.0.1")
SUFFIXES = (".npz", ".safetensors", ".json", ".csv")
# One folder or file of the cache; none begins with a dot.
SEGMENT = re.compile(r"\w[\w.+\-=:]{0,199}", re.ASCII)


def parse(reference: str) -> str:
    """Returns the address of an https:// or gs:// reference; raises WeightsError."""
    url = reference
    if reference.startswith("gs://"):
        url = f"{STORAGE}/{urllib.parse.quote(reference.removeprefix('gs://'))}"
    check(url)
    suffix = pathlib.PurePosixPath(urllib.parse.urlsplit(url).path).suffix
    if suffix in readers.UNREAD:
        raise WeightsError(
            f"{shown(url)}: a {suffix} file {readers.UNREAD[suffix]}; "
            "look for a .safetensors file next to it"
        )
    if suffix not in SUFFIXES:
        raise WeightsError(f"{shown(url)}: must end in one of {', '.join(SUFFIXES)}")
    return url


def check(url: str) -> None:
    """Raises WeightsError for an address that is not fetched."""
    try:
        parts = urllib.parse.urlsplit(url)
        local = parts.hostname in LOCAL and parts.port != 0  # reading a port checks it
    except ValueError as error:
        raise WeightsError(f"{shown(url)}: is not a URL: {error}") from error
    known = parts.scheme == "https" or (parts.scheme == "http" and local)
    if not (parts.hostname and known) or "@" in parts.netloc:
        raise WeightsError(f"{shown(url)}: only https:// and gs:// addresses are fetched")


def place(url: str) -> pathlib.PurePosixPath:
    """Returns where in the cache the file of an address is kept."""
    parts = urllib.parse.urlsplit(url)
    segments = [
        parts.netloc.lower(),
        *urllib.parse.unquote(parts.path).removeprefix("/").split("/"),
    ]
    for segment in segments:
        if not SEGMENT.fullmatch(segment):
            raise WeightsError(f"{shown(url)}: {segment[:80]!r} cannot be the name of a file")
    if parts.query:  # part of what the file is, but perhaps secret
        segments.insert(-1, checksums.short(parts.query))
    return pathlib.PurePosixPath(*segments)


def shown(url: str) -> str:
    """Returns an address as messages show it: without what may be secret in it."""
    return re.sub(r"\?.*|(?<=://)[^/@]*@", "", url)


def mirrored(url: str) -> str:
    """Returns the address in VIT_JAX_MIRROR that stands in for a published one."""
    mirror = os.environ.get("VIT_JAX_MIRROR", "").rstrip("/")
    for host in (STORAGE, HUB):
        if mirror and url.startswith(f"{host}/"):
            url = mirror + url.removeprefix(host)
            check(url)
    return url
