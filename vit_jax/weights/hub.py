"""Files from the web into a cache: resumed, checked, put in place whole, each once.

VIT_JAX_CACHE is the folder of the cache, by default ~/.cache/vit_jax/weights, VIT_JAX_OFFLINE=1
forbids the network, and VIT_JAX_MIRROR is an address that stands in for those of the published
files. HF_TOKEN is sent to the Hugging Face Hub alone, never to where it redirects, and never
printed.

A file must have its published SHA-256, or else that of its first download. A lock file in the cache
stores it, with the file's size and time at the last check; a file is read again only if these have
changed.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO, Any

from vit_jax import __version__
from vit_jax.runtime.progress import Bar
from vit_jax.utils import storage
from vit_jax.utils.messages import memory_text
from vit_jax.weights import readers
from vit_jax.weights.arrays import WeightsError

STORAGE, HUB = "https://storage.googleapis.com", "https://huggingface.co"
LOCAL = ("localhost", "127.0.0.1")
SUFFIXES = (*readers.FORMATS, ".json", ".csv")
# One folder or file of the cache; none begins with a dot.
SEGMENT = re.compile(r"\w[\w.+\-=:]{0,199}", re.ASCII)
LOCK = "weights.lock.json"
HIDDEN = ".locks"
CHUNK = 2**20
TRIES = 3
TIMEOUT = 30.0  # seconds without a byte
SIZE_TOLERANCE = 0.03  # tables print sizes rounded
# Failures that another try does not fix.
FINAL = (socket.gaierror, ConnectionRefusedError, ssl.SSLError, ValueError)
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", re.ASCII)
UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
BY_HAND = "download it elsewhere and give its path"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """Files that belong together: one, or several of one folder, the largest last."""

    name: str  # what people call it
    urls: tuple[str, ...]  # of its files
    optional: tuple[str, ...] = ()  # those of the `urls` it can do without
    mib: float | None = None  # size of the last file as published, rounded
    sha256: str | None = None  # digest of the last file as published


def fetch(source: Download | str, *, wait: Callable[[float], object] = time.sleep) -> pathlib.Path:
    """A source's file, or the folder of its files, downloaded if they are not there yet.

    Args:
      source: what to fetch, or the address of one file: https:// or gs://.
      wait: sleeps some seconds before another try.

    Raises WeightsError, in one line.
    """
    if isinstance(source, str):
        source = Download(name=source, urls=(parse_address(source),))
    folder = os.environ.get("VIT_JAX_CACHE") or "~/.cache/vit_jax/weights"
    root = storage.cache_folder("VIT_JAX_CACHE", folder)
    wanted = [_CachedFile(url, root, root / cache_path(url)) for url in source.urls]
    wanted[-1] = dataclasses.replace(wanted[-1], mib=source.mib, sha256=source.sha256)
    try:
        # All required files are cached: an optional one that is not did not exist at download.
        if not all(one.path.is_file() for one in wanted if one.url not in source.optional):
            for one in wanted:
                if not one.path.is_file():
                    _bring(one, source, wait)
        for one in wanted:
            if one.path.is_file():
                _verify_file(root, one.path, one.sha256)
    except OSError as error:
        raise WeightsError(
            f"{root}: cannot hold {source.name}: {error.strerror or error}; "
            "name another folder with VIT_JAX_CACHE"
        ) from error
    return wanted[-1].path if len(wanted) == 1 else wanted[-1].path.parent


def is_offline() -> bool:
    """Whether VIT_JAX_OFFLINE forbids the network."""
    return os.environ.get("VIT_JAX_OFFLINE", "") not in ("", "0")


@dataclasses.dataclass(frozen=True)
class _CachedFile:
    url: str
    root: pathlib.Path
    path: pathlib.Path
    mib: float | None = None
    sha256: str | None = None

    @property
    def shown(self) -> str:
        return shown(self.url)

    @property
    def part(self) -> pathlib.Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def state(self) -> pathlib.Path:
        """The server's description of the file that the part belongs to."""
        return self.path.with_name(f"{self.path.name}.part.json")

    def known(self) -> tuple[int, dict[str, Any]]:
        """The bytes downloaded so far, and the server's description of their file."""
        if not (self.part.is_file() and self.state.is_file()):
            return 0, {}
        try:
            state = readers.read_json(self.state)
        except WeightsError:  # damaged
            return 0, {}
        # A part can be resumed only if the server can say that its file is unchanged.
        return (self.part.stat().st_size, state) if state.get("validator") else (0, {})


class _BrokenOff(Exception):
    """A failure that another try may fix."""


class _Missing(WeightsError):
    """The server has no such file."""


def _bring(one: _CachedFile, source: Download, wait: Callable[[float], object]) -> None:
    """Puts a file of a source in place, unless it is optional and does not exist."""
    if is_offline():
        raise WeightsError(
            f"{source.name}: not in the cache, and no network is to be used; "
            f"unset VIT_JAX_OFFLINE, or copy {one.shown} to {one.path}"
        )
    # One process downloads; others that want the same file wait here.
    with Bar(one.path.name, bytes_=True) as bar, _exclusive(one.root, str(one.path)):
        if one.path.is_file():  # another process was faster
            return
        one.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _complete_file(one, bar, wait)
            # First, as the likeliest cause is a proxy's page, and its remedy is another than a
            # wrong digest's.
            if not _is_whole(one):
                one.part.unlink()
                raise WeightsError(
                    f"{one.shown}: the server did not send a whole {one.path.suffix} file; "
                    f"{BY_HAND}"
                )
            _verify_file(one.root, one.path, one.sha256, one.part)
            one.part.replace(one.path)
        except _Missing:
            if one.url not in source.optional:
                raise
        finally:
            if not one.known()[0]:  # a part that cannot be resumed is not kept
                one.part.unlink(missing_ok=True)
                one.state.unlink(missing_ok=True)


def _complete_file(one: _CachedFile, bar: Bar, wait: Callable[[float], object]) -> None:
    """Brings the part of a file to its full length, in several tries if need be."""
    reason = ""
    for attempt in range(TRIES):
        if attempt:
            wait(4.0 ** (attempt - 1))
        try:
            return _receive(one, bar)
        except _BrokenOff as error:
            reason = str(error)
    here = one.known()[0]
    resume = f"the same command continues from its {here:,} bytes" if here else "try later"
    raise WeightsError(f"{one.shown}: {reason}, {TRIES} times; {resume}, or {BY_HAND}")


def _receive(one: _CachedFile, bar: Bar) -> None:
    """Downloads the missing rest of a file; raises WeightsError or _BrokenOff."""
    here, state = one.known()
    # A process that ended between the last byte and the renaming leaves a whole part.
    if here and here == state.get("total"):
        return
    with _open_request(one, here, state) as response:
        start, total = 0, _length(response)
        validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if response.status == 206:
            match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            start, total = (int(match[1]), int(match[2])) if match else (-1, None)
            if not here:
                raise _BrokenOff("the server sent a part of the file, asked for all of it")
            # If-Range makes a server send all of a changed file; one that ignores it is found out
            # here.
            if (start, {"validator": validator, "total": total}) != (here, state):
                one.part.unlink()
                raise _BrokenOff("the file has changed where it is published")
        _check_size(one, total, start)
        # Before the first byte: a part without this description, or with that of another file,
        # could not be resumed.
        storage.write_atomically(one.state, json.dumps({"validator": validator, "total": total}))
        with storage.naming(one.path), one.part.open("ab" if start else "wb") as file:
            here = start
            while chunk := _read_body(response):
                file.write(chunk)
                here += len(chunk)
                bar.update(here, total)
                if here > (readers.MAX_BYTES if total is None else total):
                    # Or the next command would go on from these bytes.
                    file.truncate(0)
                    raise WeightsError(
                        f"{one.shown}: the server sent more bytes than it announced; {BY_HAND}"
                    )
            file.flush()
            os.fsync(file.fileno())
    if total is not None and here < total:
        raise _BrokenOff(f"broke off after {here:,} of {total:,} bytes")
    # Without a length, only its content shows whether a file is whole when the connection ends.
    # The last chunk of a chunked body is marked; http.client raises without it.
    sure = total is not None or response.chunked or one.sha256 is not None
    if not sure and (one.path.suffix.lower() == ".csv" or not _is_whole(one)):
        one.part.unlink()
        raise _BrokenOff(f"broke off after {here:,} bytes, of how many the server did not say")


def _read_body(response: http.client.HTTPResponse) -> bytes:
    try:
        # What has arrived, without waiting for a whole CHUNK: the bar moves on a slow link too.
        return response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOff(f"broke off: {error or type(error).__name__}") from error


def _open_request(one: _CachedFile, here: int, state: dict[str, Any]) -> http.client.HTTPResponse:
    """The server's response to a request for the bytes after those already here."""
    url = mirrored(one.url)
    headers = {"User-Agent": f"vit_jax/{__version__}"}
    if here:
        headers |= {"Range": f"bytes={here}-", "If-Range": state["validator"]}
    local = urllib.parse.urlsplit(url).hostname in LOCAL
    # No proxy for this machine's own addresses.
    proxies = [urllib.request.ProxyHandler({})] if local else []
    opener = urllib.request.build_opener(Redirects, *proxies)
    address = shown(url)
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked
    on_hub = url.startswith(f"{HUB}/")
    if on_hub and (token := _token()):
        # The Hub redirects to its storage hosts, which the token is not for.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        return opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        # An HTTPError holds the open connection.
        error.close()
        said = f"the server says {error.code} {storage.reason(ValueError(error.reason))}"
        # Range not satisfiable: the part is longer than the file.
        if error.code == 416:
            one.part.unlink(missing_ok=True)
            raise _BrokenOff("the file has changed where it is published") from error
        if error.code == 429 or error.code >= 500:
            raise _BrokenOff(said) from error
        if on_hub and error.code in (401, 403):
            page = address.partition("/resolve/")[0]
            raise WeightsError(
                f"{address}: {said}; if {page} is gated, ask for access there and set HF_TOKEN to "
                f"a token of your account that may read it, or {BY_HAND}"
            ) from error
        kind = _Missing if error.code in (404, 410) else WeightsError
        raise kind(
            f"{address}: {said}; `vit_jax list --weights` shows what is published, or {BY_HAND}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, FINAL) or getattr(reason, "errno", None) in UNREACHABLE:
            raise WeightsError(f"{address}: cannot be reached: {reason}; {BY_HAND}") from error
        raise _BrokenOff(f"broke off: {storage.reason(error)}") from error


def _token() -> str:
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch(r"[\w\-.]*", token, re.ASCII):  # which an error of a header would print
        raise WeightsError("HF_TOKEN: is not a token: it has letters, digits, - and _ only")
    return token


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to addresses that could have been requested themselves."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request to make instead; raises WeightsError."""
        try:
            check_address(newurl)
            inside = urllib.parse.urlsplit(newurl).hostname in LOCAL
            # A server elsewhere must not make this machine ask its own services.
            if inside and urllib.parse.urlsplit(req.full_url).hostname not in LOCAL:
                raise WeightsError("points to this machine")
        except WeightsError as error:
            fp.close()
            address = shown(req.full_url)
            raise WeightsError(f"{address}: redirect refused: {error}") from error
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _length(response: http.client.HTTPResponse) -> int | None:
    text = response.headers.get("Content-Length", "")
    # Python's int would also take signs, spaces, underscores and the digits of other scripts.
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text) <= 18 else 10**18  # int() refuses thousands of digits


def _check_size(one: _CachedFile, total: int | None, start: int) -> None:
    if total is None:
        return
    shown, free = one.shown, shutil.disk_usage(one.path.parent).free
    if total > readers.MAX_BYTES:
        raise WeightsError(
            f"{shown}: {memory_text(total)}; the limit is {memory_text(readers.MAX_BYTES)}"
        )
    if one.mib is not None and abs(total / 2**20 - one.mib) > SIZE_TOLERANCE * one.mib + 1:
        raise WeightsError(
            f"{shown}: {memory_text(total)} instead of the published {one.mib:g} MiB; {BY_HAND}"
        )
    if total - start > free:
        raise WeightsError(
            f"{shown}: needs {total - start:,} bytes, of which {one.path.parent} has {free:,} "
            "left; name another folder with VIT_JAX_CACHE"
        )


def _is_whole(one: _CachedFile) -> bool:
    """Whether a part is a complete file of its kind, not the HTML page of a proxy.

    A table does not show whether it is complete.
    """
    kind = one.path.suffix.lower()
    if kind == ".csv":
        with one.part.open("rb") as file:
            return not file.read(9).lstrip().startswith(b"<")
    try:
        if kind == ".json":
            readers.read_json(one.part)
        else:
            readers.open_arrays(one.part, kind)
    except WeightsError:
        return False
    return True


# Addresses


def parse_address(reference: str) -> str:
    """The address of an https:// or gs:// reference; raises WeightsError."""
    url = reference
    if reference.startswith("gs://"):
        url = f"{STORAGE}/{urllib.parse.quote(reference.removeprefix('gs://'))}"
    check_address(url)
    suffix = pathlib.PurePosixPath(urllib.parse.urlsplit(url).path).suffix.lower()
    if suffix in readers.UNREAD:
        raise WeightsError(
            f"{shown(url)}: a {suffix} file {readers.UNREAD[suffix]}; "
            "look for a .safetensors file next to it"
        )
    if suffix not in SUFFIXES:
        raise WeightsError(f"{shown(url)}: must end in one of {', '.join(SUFFIXES)}")
    return url


def check_address(url: str) -> None:
    """Raises WeightsError for an address that is not fetched."""
    try:
        parts = urllib.parse.urlsplit(url)
        local = parts.hostname in LOCAL and parts.port != 0  # reading a port checks it
    except ValueError as error:
        raise WeightsError(f"{shown(url)}: is not a URL: {error}") from error
    known = parts.scheme == "https" or (parts.scheme == "http" and local)
    if not (parts.hostname and known) or "@" in parts.netloc:
        raise WeightsError(f"{shown(url)}: only https:// and gs:// addresses are fetched")


def cache_path(url: str) -> pathlib.PurePosixPath:
    """The path in the cache for the file of an address."""
    parts = urllib.parse.urlsplit(url)
    segments = [
        parts.netloc.lower(),
        *urllib.parse.unquote(parts.path).removeprefix("/").split("/"),
    ]
    for segment in segments:
        if not SEGMENT.fullmatch(segment):
            raise WeightsError(f"{shown(url)}: {segment[:80]!r} cannot be the name of a file")
    if parts.query:  # part of the identity of the file, but perhaps secret
        segments.insert(-1, _short(parts.query))
    return pathlib.PurePosixPath(*segments)


def shown(url: str) -> str:
    """An address for messages, without the parts that may be secret."""
    return re.sub(r"\?.*|(?<=://)[^/@]*@", "", url)


def mirrored(url: str) -> str:
    """The address in VIT_JAX_MIRROR that replaces a published one."""
    mirror = os.environ.get("VIT_JAX_MIRROR", "").rstrip("/")
    for host in (STORAGE, HUB):
        if mirror and url.startswith(f"{host}/"):
            url = mirror + url.removeprefix(host)
            check_address(url)
    return url


# Digests


def _verify_file(
    root: pathlib.Path, path: pathlib.Path, sha256: str | None, part: pathlib.Path | None = None
) -> None:
    """Raises WeightsError if the file `path` of a cache, or the `part` to put there, is another.

    It must have its published digest or, without one, that of its first check in the lock file.
    """
    file = part or path
    name, stat = path.relative_to(root).as_posix(), file.stat()
    state = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}  # which renaming does not change
    pinned = read_lock(root).get(name, {})
    wanted = sha256 or pinned.get("sha256")
    if pinned == {"sha256": wanted, **state}:
        return
    found = storage.sha256(file)
    if wanted not in (None, found):
        by = "as published" if sha256 else f"as at its first download ({root / LOCK})"
        remedy = "" if sha256 else ", or, if it has changed where it is published, its entry there"
        what = ""
        if part is not None:
            part.unlink()
            what = "the download is a different file: "
        raise WeightsError(
            f"{path}: {what}its SHA-256 is {found}, not {wanted} {by}; delete the file to download "
            f"it again{remedy}"
        )
    with _exclusive(root, LOCK):
        # Read again under the lock: another process may have added a file meanwhile.
        lock = read_lock(root) | {name: {"sha256": found, **state}}
        storage.write_atomically(root / LOCK, json.dumps(lock, indent=1, sort_keys=True))


def _short(text: str) -> str:
    """A name of 16 characters derived from a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _exclusive(root: pathlib.Path, name: str) -> Iterator[None]:
    """Holds an exclusive lock while a file of the cache is written."""
    folder = root / HIDDEN
    folder.mkdir(parents=True, exist_ok=True)
    # Deleting a lock file could let two writers in, so empty ones remain.
    with (folder / _short(name)).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_lock(root: pathlib.Path) -> dict[str, Any]:
    """The digest, size and time of every file of a cache; raises WeightsError if damaged."""
    values = readers.read_json(root / LOCK) if (root / LOCK).exists() else {}
    if not all(isinstance(value, dict) for value in values.values()):
        raise WeightsError(f"{root / LOCK}: is damaged; repair or delete it")
    return values
