"""Downloads from a server that cuts, lies, moves and fails."""

import dataclasses
import hashlib
import http.server
import io
import json
import re
import socket
from concurrent import futures

import numpy as np
import pytest
from rich.console import Console

import serving
from vit_jax import config
from vit_jax.runtime import progress
from vit_jax.utils import storage
from vit_jax.weights import hub
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.hub import Download, fetch


def npz(seed, size=5000):
    file = io.BytesIO()
    np.savez(file, w=np.random.default_rng(seed).normal(size=size).astype(np.float32))
    return file.getvalue()


def tensors():
    header = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    return len(header).to_bytes(8, "little") + header + bytes(8)


BODY, OTHER = npz(0), npz(1)


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `faults` befall the requests to come, one each."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a/b.npz": BODY}
        self.faults, self.requests, self.tokens = [], [], []
        self.validators = True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """Clients may go away."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_):
        """Says nothing."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        self.server.tokens.append(self.headers.get("Authorization"))
        fault = self.server.faults.pop(0) if self.server.faults else None
        self.close_connection = True
        if fault == ("drop",):
            return
        if isinstance(fault, int):
            self.send_error(fault)
            return
        if isinstance(fault, str):
            self.send_response(302)
            self.send_header("Location", fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = self.server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        tag = f'"{hashlib.sha256(body).hexdigest()[:8]}"'
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") == tag or fault == ("splice",)
        part = body
        if asked and same:
            start = int(asked[1])
            if start >= len(body):
                self.send_error(416)
                return
            part = body[start:]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        elif fault == ("part",):
            self.send_response(206)
            self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if self.server.validators:
            self.send_header("ETag", tag)
        kind, *values = fault or ("whole",)
        if kind != "unsized":
            self.send_header("Content-Length", str(values[0] if kind == "claim" else len(part)))
        self.end_headers()
        cut = values[0] if values and kind in ("cut", "unsized") else None
        self.wfile.write(part[:cut])


@pytest.fixture
def server(monkeypatch):
    for name in ("VIT_JAX_CACHE", "VIT_JAX_OFFLINE", "VIT_JAX_MIRROR", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving.running(Server()) as one:
        yield one


@pytest.fixture
def waits():
    return []


@pytest.fixture
def get(server, tmp_path, waits, monkeypatch):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path))

    def call(source="/a/b.npz"):
        if isinstance(source, str) and source.startswith("/"):
            source = server.url + source
        return fetch(source, wait=waits.append)

    return call


def refusal(call, *arguments):
    with pytest.raises(WeightsError) as caught:
        call(*arguments)
    text = caught.value.args[0]  # all of it: people see the ends of a long one
    assert "\n" not in text
    return text


def leftovers(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and ".locks" not in p.parts)


def test_a_cut_connection_goes_on_where_it_was(get, server, waits):
    server.faults = [("cut", 1000), ("cut", 500)]
    assert get().read_bytes() == BODY
    assert [asked for _, asked in server.requests] == [None, "bytes=1000-", "bytes=1500-"]
    assert waits == [1, 4]


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (BODY[:1000], ["bytes=1000-"]),
        (BODY, []),  # of a command that ended before it put the file in place
        (BODY + b"more", [f"bytes={len(BODY) + 4}-", None]),
    ],
    ids=["cut", "whole", "longer"],
)
def test_another_command_goes_on_from_a_part(get, server, tmp_path, part, asked):
    server.faults = [("cut", 1000), ("cut", 0), ("cut", 0)]
    text = refusal(get)
    assert f"broke off after 1,000 of {len(BODY):,} bytes, 3 times" in text
    assert "the same command continues from its 1,000 bytes" in text
    (kept,) = tmp_path.rglob("*.part")
    kept.write_bytes(part)
    assert get().read_bytes() == BODY
    assert [one for _, one in server.requests[3:]] == asked


@pytest.mark.parametrize("fault", [None, ("splice",)])
def test_a_file_that_changes_meanwhile_starts_over(get, server, fault):
    # With `splice`, the server sends the rest of the new file as if it were that of the old.
    server.faults = [("cut", 1000), ("cut", 0), ("cut", 0)]
    refusal(get)
    server.files["/a/b.npz"] = OTHER
    server.faults = [fault]
    assert get().read_bytes() == OTHER


def test_a_file_of_no_stated_length(get, server):
    server.faults = [("unsized",)]
    assert get().read_bytes() == BODY


@pytest.mark.parametrize("name", ["b.npz", "c.safetensors", "d.json", "e.csv"])
def test_a_file_of_no_stated_length_that_breaks_is_not_kept(get, server, tmp_path, name):
    whole = {
        "b.npz": BODY,
        "c.safetensors": tensors(),
        "d.json": b'{"a": [1, 2]}',
        "e.csv": b"a\nb\n",
    }
    server.files[f"/a/{name}"] = whole[name]
    server.faults = [("unsized", len(whole[name]) - 2)] * 3
    text = refusal(get, f"/a/{name}")
    assert f"broke off after {len(whole[name]) - 2:,} bytes, of how many the server did" in text
    assert leftovers(tmp_path) == []
    assert get(f"/a/{name}").read_bytes() == whole[name]  # held to nothing


def test_a_part_that_nobody_asked_for(get, server, tmp_path):
    server.faults = [("part",)] * 3
    assert "the server sent a part of the file, asked for all of it, 3 times" in refusal(get)
    assert leftovers(tmp_path) == []


def test_a_part_that_cannot_be_resumed_is_not_kept(get, server, tmp_path):
    server.validators, server.faults = False, [("cut", 1000)] * 3
    assert "3 times; try later" in refusal(get)
    assert [asked for _, asked in server.requests] == [None] * 3
    assert leftovers(tmp_path) == []


def test_sizes_that_cannot_be(get, server, tmp_path):
    for size, shown in ((33 * 2**30, "33 GiB"), ("9" * 5000, "888 PiB")):
        server.faults = [("claim", size)]
        assert f"{shown}; the limit is 32 GiB" in refusal(get)
    source = Download(name="one", urls=(f"{server.url}/a/b.npz",), mib=12.0)
    assert "19.8 KiB instead of the published 12 MiB" in refusal(get, source)
    assert not list(tmp_path.rglob("b.npz*"))
    rounded = dataclasses.replace(source, mib=1.0)  # less than a MiB away from it
    assert get(rounded).read_bytes() == BODY


def test_a_disk_without_room(get, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage)
    text = refusal(get)
    assert f"needs {len(BODY):,} bytes" in text
    assert "has 10 left; name another folder with VIT_JAX_CACHE" in text


def test_a_published_digest(get, server, tmp_path):
    url = f"{server.url}/a/b.npz"
    right, wrong = (hashlib.sha256(body).hexdigest() for body in (BODY, OTHER))
    text = refusal(get, Download(name="one", urls=(url,), sha256=wrong))
    assert f"its SHA-256 is {right}, not {wrong} as published" in text
    assert leftovers(tmp_path) == []
    path = get(Download(name="one", urls=(url,), sha256=right))
    assert path.read_bytes() == BODY
    # Nor is a file that is already there believed.
    assert "as published" in refusal(get, Download(name="one", urls=(url,), sha256=wrong))


def test_the_first_download_is_binding(get, server, tmp_path):
    path = get()
    path.unlink()
    server.files["/a/b.npz"] = OTHER
    text = refusal(get)
    old, new = (hashlib.sha256(body).hexdigest() for body in (BODY, OTHER))
    assert f"its SHA-256 is {new}, not {old} as at its first download" in text
    assert str(tmp_path / hub.LOCK) in text
    assert not path.exists()
    server.files["/a/b.npz"] = BODY
    assert get().read_bytes() == BODY


def test_a_cached_file_is_read_again_only_if_it_was_touched(get, monkeypatch):
    path, read = get(), []
    digest = storage.sha256
    monkeypatch.setattr(storage, "sha256", lambda p: (read.append(p), digest(p))[1])
    get()
    assert read == []
    path.touch()
    get()
    get()
    assert read == [path]


def test_a_file_put_there_by_hand(get, server, tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    path = tmp_path / server.url.removeprefix("http://") / "a" / "b.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY)
    assert get() == path
    assert not server.requests
    path.write_bytes(OTHER)
    text = refusal(get)
    assert "as at its first download" in text
    assert "delete the file to download it again" in text
    path.unlink()
    monkeypatch.delenv("VIT_JAX_OFFLINE")
    assert get().read_bytes() == BODY


def test_a_damaged_lock_file(get, tmp_path):
    get()
    for text in ("{", '{"x": 1}'):
        (tmp_path / hub.LOCK).write_text(text)
        assert hub.LOCK in refusal(get)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_final(get, server, waits, status):
    server.faults = [status]
    text = refusal(get)
    assert f"the server says {status}" in text
    assert "download it elsewhere and give its path" in text
    assert waits == []


def test_a_token_goes_to_the_hub_and_nowhere_else(get, server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    assert get().read_bytes() == BODY
    assert server.tokens == [None]
    monkeypatch.setattr(hub, "HUB", f"{server.url}/hub")
    server.files |= {"/hub/who/x/resolve/main/c.npz": BODY, "/elsewhere/c.npz": BODY}
    server.faults = [f"{server.url}/elsewhere/c.npz"]
    assert get("/hub/who/x/resolve/main/c.npz").read_bytes() == BODY
    assert server.tokens == [None, "Bearer hf_secret", None]


@pytest.mark.parametrize("token", ["hf_secret", "hf secret\nX: y", "hf_sécret"])
def test_a_gated_file_says_how_to_get_access(get, server, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(hub, "HUB", f"{server.url}/hub")
    server.faults = [401]
    text = refusal(get, "/hub/who/x/resolve/main/c.npz")
    assert "cret" not in text
    if token == "hf_secret":
        assert f"if {server.url}/hub/who/x is gated, ask for access there and set HF_TOKEN" in text
    else:
        assert text.endswith("HF_TOKEN: is not a token: it has letters, digits, - and _ only")
        assert server.requests == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_is_tried_again(get, server, waits, status):
    server.faults = [status, status]
    assert get().read_bytes() == BODY
    assert waits == [1, 4]
    server.files["/c.npz"] = BODY
    server.faults = [status] * 3
    assert f"the server says {status}" in refusal(get, "/c.npz")
    assert len(server.requests) == 6


def test_a_connection_that_ends_without_an_answer_is_tried_again(get, server, waits):
    server.faults = [("drop",)]
    assert get().read_bytes() == BODY
    assert waits == [1]


def test_no_network(get, waits):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x.npz"
    text = refusal(get, url)
    assert text.startswith(f"{url}: cannot be reached")
    assert "download it elsewhere and give its path" in text
    assert waits == []


def test_offline(get, server, tmp_path, monkeypatch):
    path = tmp_path / server.url.removeprefix("http://") / "a" / "b.npz"
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    assert f"unset VIT_JAX_OFFLINE, or copy {server.url}/a/b.npz to {path}" in refusal(get)
    monkeypatch.setenv("VIT_JAX_OFFLINE", "0")
    get()
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    assert get() == path
    assert len(server.requests) == 1


def test_the_cache_is_where_the_environment_says(server, tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere") in fetch(f"{server.url}/a/b.npz").parents
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "file"))
    assert "name another folder with VIT_JAX_CACHE" in refusal(fetch, f"{server.url}/a/b.npz")
    monkeypatch.setenv("VIT_JAX_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(config.ConfigError, match="name another folder with VIT_JAX_CACHE"):
        fetch(f"{server.url}/a/b.npz")


def test_a_mirror_stands_in_for_published_addresses(get, server, tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_MIRROR", f"{server.url}/mirror/")
    server.files["/mirror/vit_models/imagenet21k%2Bx/B_16.npz"] = BODY
    path = get("gs://vit_models/imagenet21k+x/B_16.npz")
    at = "storage.googleapis.com/vit_models/imagenet21k+x/B_16.npz"
    assert path == tmp_path / at
    monkeypatch.setenv("VIT_JAX_MIRROR", "http://mirror.example")
    assert "only https://" in refusal(get, "gs://vit_models/other.npz")


def test_redirects(get, server):
    server.faults = ["/a/b.npz"]
    server.files["/moved.npz"] = b""
    assert get("/moved.npz").read_bytes() == BODY
    targets = {
        "http://example.com/x.npz": "redirect refused",
        "ftp://127.0.0.1/x.npz": "redirect refused",
        "file:///etc/passwd": "is not allowed",
    }
    for target, text in targets.items():
        server.faults = [target]
        assert text in refusal(get)
    assert len(server.requests) == 5


def test_nobody_is_sent_to_this_machine(server):
    handler = hub.Redirects()
    request = hub.urllib.request.Request("https://example.com/x.npz")
    with pytest.raises(WeightsError, match="points to this machine"):
        handler.redirect_request(request, io.BytesIO(), 302, "", {}, f"{server.url}/a/b.npz")


@pytest.mark.parametrize(
    "body", [b"<html>Please log in</html>", b"", b'{"a": 1}'], ids=["page", "nothing", "json"]
)
def test_the_page_of_a_proxy_is_no_checkpoint(get, server, tmp_path, body):
    server.files["/a/b.npz"] = server.files["/a/c.safetensors"] = body
    for name in ("/a/b.npz", "/a/c.safetensors"):
        assert "did not send a whole ." in refusal(get, name)
    assert leftovers(tmp_path) == []
    # And is not what later downloads are held to.
    server.files["/a/b.npz"] = BODY
    assert get().read_bytes() == BODY


@pytest.mark.parametrize(
    "url",
    [
        "/a/../b.npz",
        "/a/%2e%2e/b.npz",
        "/a/..%2f..%2fb.npz",
        "/a//b.npz",
        "/a/.hidden/b.npz",
        "/a/b\\c.npz",
        "/a/b%00.npz",
        "/" + "x" * 300 + ".npz",
    ],
)
def test_names_cannot_lead_out_of_the_cache(get, server, tmp_path, url):
    assert "cannot be the name of a file" in refusal(get, url)
    assert not server.requests
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://example.com/x.npz", "only https:// and gs:// addresses"),
        ("file:///etc/x.npz", "only https:// and gs:// addresses"),
        ("https:///x.npz", "only https:// and gs:// addresses"),
        ("https://me:secret@example.com/x.npz", "only https:// and gs:// addresses"),
        ("https://[::1/x.npz", "is not a URL"),
        ("https://example.com/x.pkl", "objects of any class"),
        ("https://example.com/x.PKL", "objects of any class"),
        ("https://example.com/x.exe?a=b", "must end in one of"),
    ],
)
def test_addresses_that_are_not_fetched(get, url, text):
    said = refusal(get, url)
    assert text in said
    assert "secret" not in said
    assert "a=b" not in said


def test_a_query_tells_files_apart_and_stays_secret(get, server, tmp_path):
    server.files["/a/b.npz?token=one"], server.files["/a/b.npz?token=two"] = BODY, OTHER
    assert get("/a/b.npz?token=one").read_bytes() == BODY
    assert get("/a/b.npz?token=two").read_bytes() == OTHER
    assert "token" not in refusal(get, "/a/b.npz?token=three")
    assert not any("token" in str(p) for p in tmp_path.rglob("*"))


def folder_of(server, **more):
    urls = tuple(f"{server.url}/m/{n}" for n in ("config.json", "more.json", "model.safetensors"))
    return Download(name="m", urls=urls, **more)


TENSORS = (2).to_bytes(8, "little") + b"{}"


def test_a_folder(get, server, monkeypatch):
    server.files["/m/config.json"] = server.files["/m/more.json"] = b"{}"
    server.files["/m/model.safetensors"] = TENSORS
    server.faults = [None, 500, None, ("cut", 3)]
    folder = get(folder_of(server))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        "config.json": b"{}",
        "more.json": b"{}",
        "model.safetensors": TENSORS,
    }
    count = len(server.requests)
    assert get(folder_of(server)) == folder
    assert len(server.requests) == count
    (folder / "more.json").unlink()
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    assert "not in the cache" in refusal(get, folder_of(server))


def test_a_folder_may_lack_what_is_optional(get, server, monkeypatch):
    server.files["/m/config.json"], server.files["/m/model.safetensors"] = b"{}", TENSORS
    assert "404" in refusal(get, folder_of(server))
    source = folder_of(server, optional=(f"{server.url}/m/more.json",))
    folder = get(source)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    count = len(server.requests)
    assert get(source) == folder
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    assert get(source) == folder
    assert len(server.requests) == count


def test_threads_fetch_a_file_once(get, server, tmp_path):
    server.faults = [("cut", 1000)]
    with futures.ThreadPoolExecutor(8) as pool:
        paths = pool.map(get, ["/a/b.npz"] * 8)
    assert [path.read_bytes() for path in paths] == [BODY] * 8
    assert [asked for _, asked in server.requests] == [None, "bytes=1000-"]
    assert leftovers(tmp_path) == ["b.npz", hub.LOCK]


def test_many_files_at_once_are_all_pinned(get, server, tmp_path):
    for i in range(12):
        server.files[f"/many/{i}.npz"] = BODY
    with futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(get, [f"/many/{i}.npz" for i in range(12)]))
    assert len(json.loads((tmp_path / hub.LOCK).read_text())) == 12


def test_a_bar_on_a_terminal_only(get, server, capsys, monkeypatch):
    get()
    assert capsys.readouterr() == ("", "")
    server.files["/c.npz"] = BODY
    monkeypatch.setattr(
        progress, "Console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=100)
    )
    get("/c.npz")
    out, err = capsys.readouterr()
    assert out == ""
    assert "c.npz" in err
    assert "19.8/19.8 KiB" in err
