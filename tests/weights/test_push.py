"""`vit_jax push`: what goes to the Hub, what is refused, and that a token is never printed."""

import base64
import http.server
import json
import pathlib
import shutil
import sys

import pytest

import serving
from vit_jax import cli
from vit_jax.weights import push
from vit_jax.weights.arrays import WeightsError

TOKEN = "hf_" + "x" * 34
NAN = b"\0\0\xc0\x7f"  # float32
WEIGHTS = pathlib.Path(__file__).parents[1] / "fixtures" / "weights" / "hf_vit_tiny"


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of the Hub's interface that an upload makes, as far as it reads the answers."""

    def log_message(self, *args):
        pass

    def do(self):
        world, body = self.server.world, self.rfile.read(int(self.headers["Content-Length"] or 0))
        address = self.path.partition("?")[0]
        world["requests"].append((self.command, address, self.headers["Authorization"]))
        if world["status"] != 200 and world["refuses"] in address:
            self.answer(world["status"], {"error": "not today"})
        elif address == "/api/models/me/vit":
            siblings = [{"rfilename": name} for name in world["files"] or ()]
            code = {} if world["files"] is not None else {"X-Error-Code": "RepoNotFound"}
            self.answer(404 if code else 200, {"id": "me/vit", "siblings": siblings}, code)
        elif address == "/api/models/me/vit/tree/main":
            self.answer(200, [{"type": "file", "path": name, "size": 1, "oid": "a" * 40}
                              for name in world["files"]])  # fmt: skip
        elif address == "/api/repos/create":
            world["created"] = json.loads(body)
            self.answer(200, {"url": f"{world['address']}/me/vit", "name": "me/vit"})
        elif address == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif address.endswith("/preupload/main"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer(200, {"files": files})
        elif address.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    world["files"] = world["files"] or {}
                    world["files"][value["path"]] = base64.b64decode(value["content"])
            self.answer(
                200, {"commitOid": "a" * 40, "commitUrl": f"{world['address']}/me/vit/commit/1"}
            )
        else:
            self.answer(404, {"error": "no such address"})

    do_GET = do_POST = do  # noqa: N815

    def answer(self, status, value, headers=()):
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch):
    """A server that stands in for the Hub; what it was told."""
    pytest.importorskip("huggingface_hub")
    server = http.server.ThreadingHTTPServer(("localhost", 0), Hub)
    address = f"http://localhost:{server.server_port}"
    world = server.world = {"requests": [], "files": None, "status": 200, "address": address}
    world["refuses"] = ""  # where in an address
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving.running(server):
        yield world


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(WEIGHTS, tmp_path / "mine")
    (tmp_path / "mine" / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    return tmp_path / "mine"


@pytest.mark.parametrize("public", [False, True])
def test_the_files_of_a_folder_arrive_as_they_are(hub, folder, public):
    lines = push.push(folder, "me/vit", public=public)
    assert hub["files"] == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert lines[0] == f"the repository is {'public' if public else 'private'}"
    assert hub["created"]["visibility"] == ("public" if public else "private")
    assert lines[-1].startswith(f"pushed: {hub['address']}/me/vit (")


def test_a_repository_keeps_no_weights_beside_new_ones(hub, folder, capsys):
    hub["files"] = {"README.md": b"old", "pytorch_model.bin": b"other weights"}
    assert cli.main(["push", str(folder), "me/vit"]) == 2
    said = capsys.readouterr().err
    assert "me/vit: has pytorch_model.bin, which this folder lacks" in said
    assert hub["files"].keys() == {"README.md", "pytorch_model.bin"}
    hub["files"] = {"README.md": b"old", "notes.txt": b"kept"}
    assert cli.main(["push", str(folder), "me/vit", "--public"]) == 0
    said = capsys.readouterr().out
    assert "private" not in said  # it stays what it was
    assert "--public: the repository was there, and is as public as it was" in said
    assert hub["files"]["notes.txt"] == b"kept"
    assert hub["files"]["README.md"] != b"old"


@pytest.mark.parametrize(
    "name", ["preprocessor_config.json", "processor_config.json", "open_clip_config.json"]
)
def test_a_repository_keeps_no_preprocessing_of_another_project(folder, name):
    files = [folder / "config.json", folder / "model.safetensors"]
    said = f"^push me/vit: has {name}, which this folder lacks, and others would read it with these"
    with pytest.raises(WeightsError, match=said):
        push._check_others(["README.md", "config.json", name], files, "me/vit")
    push._check_others(["README.md", "config.json", name], [*files, folder / name], "me/vit")


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_without_a_card_says_what_the_hub_shows(hub, folder, there):
    (folder / "README.md").unlink()
    hub["files"] = {"README.md": b"old"} if there else {}
    shows = "the model card it has" if there else "no model card"
    assert f"README.md: is missing, so the Hub shows {shows}" in push.push(folder, "me/vit")


@pytest.mark.parametrize(("status", "said"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (418, "418")])
def test_a_refusal_of_the_hub_is_one_line_without_the_token(hub, folder, status, said, capsys):
    hub["status"] = status
    assert cli.main(["push", str(folder), "me/vit"]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("vit_jax: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert TOKEN not in captured.err + captured.out


@pytest.mark.parametrize("there", [False, True])
def test_a_push_that_fails_at_the_end_says_what_it_left(hub, folder, there):
    hub["status"], hub["refuses"] = 403, "/commit/"
    hub["files"] = {"notes.txt": b"kept"} if there else None
    with pytest.raises(WeightsError, match=r"^push me/vit: no token that may write") as caught:
        push.push(folder, "me/vit")
    assert ("; the repository was made, and is empty" in str(caught.value)) is not there
    assert ("created" in hub) is not there
    assert hub["files"] == ({"notes.txt": b"kept"} if there else None)


def test_a_hub_that_does_not_answer_is_one_line(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:1")
    with pytest.raises(WeightsError, match=r"^push me/vit: http://localhost:1: .*[Cc]onnection"):
        push.push(folder, "me/vit")


def test_damaged_weights_are_not_sent(hub, folder):
    file = folder / "model.safetensors"
    sound = file.read_bytes()
    # A file of other bytes, and one in which a single number is none.
    for damaged, said in ((b"damaged", "download it again"), (sound[:-4] + NAN, "is not finite")):
        file.write_bytes(damaged)
        with pytest.raises(WeightsError, match=said):
            push.push(folder, "me/vit")
    assert hub["requests"] == []


def test_nothing_but_weights_is_sent(folder, tmp_path):
    for name in (".env", "secret", "more"):
        odd = folder / name
        if name == "secret":
            odd.symlink_to("/etc/hostname")
        elif name == "more":
            odd.mkdir()
        else:
            odd.write_text("PASSWORD=1")
        with pytest.raises(WeightsError, match="move it away"):
            push.push(folder, "me/vit")
        odd.rmdir() if name == "more" else odd.unlink()
    with pytest.raises(WeightsError, match="no such folder; vit_jax convert"):
        push.push(tmp_path / "none", "me/vit")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(WeightsError, match="is not a folder of weights"):
        push.push(tmp_path / "run", "me/vit")
    for name in ("vit", "me/vit/more", "../vit", "me/v t"):
        with pytest.raises(WeightsError, match="must be USER/NAME"):
            push.push(folder, name)


def test_it_says_what_it_lacks(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match=r"pip install 'vit_jax\[hf\]'"):
        push.push(folder, "me/vit")
    monkeypatch.setenv("VIT_JAX_OFFLINE", "1")
    with pytest.raises(WeightsError, match="VIT_JAX_OFFLINE forbids"):
        push.push(folder, "me/vit")
