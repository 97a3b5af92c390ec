"""Every message is one line of bounded length, whatever it quotes, on any terminal."""

import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import PIL.Image
import pyarrow.parquet
import pytest

from commands import error_line
from vit_jax import cli, config
from vit_jax.data import folders
from vit_jax.data.prepare import command
from vit_jax.data.prepare.command import Request
from vit_jax.data.source import DataError
from vit_jax.inference import loaded_model, loading
from vit_jax.runtime import logs
from vit_jax.utils import messages, storage


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café 日本 👩‍🔬 a\u00a0b\u3000c", "café 日本 👩‍🔬 a\u00a0b\u3000c"),
        ("a\nb\r\tc\x1b[31m\x7f\x85", r"a\nb\r\tc\x1b[31m\x7f\x85"),
        ("a\u2028b\u2029c\u202ed\u2066", r"a\u2028b\u2029c\u202ed\u2066"),
        (os.fsdecode(b"caf\xe9"), r"caf\xe9"),
        ("\udcc3\udca9", "é"),  # as a Python reads it whose file names are ASCII
        ("x\ud800y\udce9", r"x\ud800y\udce9"),  # from JSON
    ],
)
def test_printable_text_is_one_line_of_unicode(text, shown):
    assert messages.printable(text) == shown
    assert messages.printable(shown) == shown
    shown.encode()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("text", ["9" * 10**7, "é" * 499, "\n" * 250, "日" * 10**6, "\udce9" * 400])
def test_a_line_is_bounded_in_any_encoding(text, encoding):
    line = messages.one_line(f"key={text}: must be so", limit=500, encoding=encoding)
    assert len(line.encode(encoding).decode(encoding)) == len(line) == 500
    assert line.startswith("key=")
    assert line.endswith(": must be so")
    assert ("…" in line) == (encoding in ("utf-8", "cp1252"))


def test_what_fits_is_whole():
    assert messages.one_line("a" * 500, limit=500) == "a" * 500
    assert len(messages.one_line("a" * 501, limit=500)) == 500


HUGE = "9" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "digits", f"--config.optimizer.lr={HUGE}x"],
        ["show", "digits", f"--config.seed={HUGE}"],
        ["show", "digits", f"--config.seed={HUGE[:4000]}"],
        ["show", "digits", f"--config.train.batch_size={HUGE[:4000]}"],
        ["show", "digits", "--config.train.duration=1e308 epochs"],
        ["show", "digits", f"--config.{HUGE}=1"],
        ["show", "digits", "--config.model.pooling=x\ny\r\x1b[31m\u2028\udce9"],
        ["show", "digits", "--config.model.width=1\n2"],
        ["show", f"dig\nits{HUGE}"],
        ["evaluate", "--checkpoint=x", f"--step={HUGE}"],
        ["evaluate", "--checkpoint=x", "--step=1\n2"],
        ["evaluate", f"--checkpoint=a\nb{HUGE[:3000]}"],
        ["dig\nits" + HUGE],
        ["train", "digits", f"--profile={HUGE}:\n"],
        ["predict", "--checkpoint=x", f"no\nfile{HUGE[:200]}"],
        ["list", f"--table={HUGE}\n"],
        ["train", "digits", "--workdir=r\udce9sultat"],
        ["embed", "--checkpoint=x", "--output=r\udce9sultat.parquet"],
    ],
    ids=lambda arguments: arguments[-1][:30].encode("unicode_escape").decode(),
)
def test_no_value_makes_a_message_long_or_two_lines(arguments, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as stop:  # of argparse
        code = stop.code
    out, line = capsys.readouterr()
    assert (code, out) == (2, "")
    assert line.startswith("vit_jax")
    assert line.endswith("\n")
    assert len(line) <= messages.LIMIT + 1
    assert line[:-1].isprintable()


def test_the_message_of_an_error_is_bounded_wherever_it_goes():
    error = DataError("photos/\n" + "x" * 10**6 + ": gone")
    assert len(str(error)) == messages.TEXT
    assert str(error).startswith(r"photos/\nx")
    assert str(error).endswith(": gone")


def test_warnings_of_data_are_bounded_and_commands_to_copy_are_whole(monkeypatch):
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logs.log, name, getattr(logs.log, name))
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.setup()
    logs.log.warning("%s: is damaged", "a\nb" * 1000)
    logs.log.info("vit_jax train %s", "x " * 1000 + "\ny")
    first, second = stream.getvalue().splitlines()
    assert len(first) == messages.LIMIT
    assert first.endswith(": is damaged")
    assert second == "vit_jax train " + "x " * 1000 + r"\ny"
    assert logging.getLogger("vit_jax") is logs.log


def test_out_of_memory_is_a_line(monkeypatch, capsys):
    def fill(*_, **__):
        raise MemoryError("Unable to allocate 7 PiB")

    monkeypatch.setattr(cli.backend, "choose_platform", fill)
    assert cli.main(["list"]) == 78
    assert capsys.readouterr().err == "vit_jax: out of memory: Unable to allocate 7 PiB\n"


def photo(root, name, shade):
    """Writes a photo below a folder; the name is bytes."""
    path = root / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (9, 7), (shade, 90, 200 - shade)).save(path, "PNG")


@pytest.fixture
def latin(tmp_path):
    """Photos whose names are not UTF-8, in class folders whose names are."""
    root = tmp_path / "photos"
    for number, name in enumerate((b"caf\xc3\xa9", b"tea")):
        for split in (b"train", b"test"):
            for k in range(8):
                photo(root, b"%s/%s/n\xe9%d.png" % (split, name, k), number * 100 + k)
    return root


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"caf\xe9", r"caf\xe9: is not UTF-8; first: convmv -r -f latin1 -t utf8 --notest "),
     (b"a\nb", r"a\nb: has a character that cannot be shown; rename it"),
     (b"a\xe2\x80\xaeb", r"a\u202eb: has a character that cannot be shown; rename it")],
)  # fmt: skip
def test_class_folders_that_are_no_text_are_refused_at_once(latin, name, shown):
    photo(latin, b"train/" + name + b"/1.png", 3)
    given = config.Data(source="folder", root=str(latin)), "train", "data.train_split"
    assert f"{latin}/train: class folder {shown}" in error_line(DataError, folders.Folder, *given)


def test_names_of_older_runs_and_of_json_become_text():
    cfg = config.build({"model": {"num_classes": 3}})
    assert loaded_model.class_names(["caf\udce9", "a\ud800"], cfg) == (
        r"caf\xe9",
        r"a\ud800",
        "class 2",
    )


def test_folders_that_are_not_utf8_are_refused_where_libraries_cannot_open_them(tmp_path):
    folder = tmp_path / os.fsdecode(b"r\xe9sultat")
    request = Request(data_dir=str(folder), sources=(str(tmp_path),))
    with pytest.raises(config.ConfigError, match=r"r\\xe9sultat: is not UTF-8; choose another"):
        list(command.prepare("mine", request))


def test_listings_of_files_with_such_names_have_a_fingerprint(latin):
    assert len(folders.Loose(latin, ("tea", "café"), "--images").fingerprint()) == 16


def test_a_page_with_such_a_name_can_be_written(tmp_path):
    storage.write_atomically(tmp_path / "page.html", "<p>caf\udce9</p>")
    assert (tmp_path / "page.html").read_text() == r"<p>caf\udce9</p>"


SMALL = {
    "model.patch_size": "4", "model.width": "8", "model.depth": "1", "model.mlp_dim": "8",
    "model.heads": "2", "data.image_size": "8x8", "data.workers": "0", "data.threads": "1",
    "train.batch_size": "8", "train.duration": "2 steps", "schedule.warmup": "1 steps",
    "model.pooling": "token", "logging.tensorboard": "false",
}  # fmt: skip


def run(*words, **environment):
    """A command in an ASCII locale: what it printed, which must be ASCII."""
    script = "from vit_jax import cli; cli.entry()"
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"} | environment,
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done.stdout.decode("ascii")


@pytest.mark.slow
def test_files_that_are_not_utf8_go_through_every_command(latin, tmp_path):
    workdir = str(tmp_path / "résultat")
    options = [f"--config.{key}={value}" for key, value in SMALL.items()]
    named = os.fsdecode(b"--config.name=caf\xe9")
    start = ["train", "image_folder-32", f"--workdir={workdir}", f"--config.data.root={latin}"]
    run(*start, named, *options)
    assert (pathlib.Path(workdir) / "checkpoints").is_dir()
    run("report", workdir)
    checkpoint = f"--checkpoint={workdir}"
    run("evaluate", checkpoint)
    run("embed", checkpoint, f"--output={tmp_path}/o.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "o.parquet").column("name").to_pylist()
    assert len(rows) == 16
    assert rows[0] == rf"{latin}/test/café/n\xe90.png"
    run("embed", checkpoint, f"--output={tmp_path}/o.npz", f"{latin}")
    assert str(np.load(tmp_path / "o.npz")["names"][0]) == r"test/café/n\xe90.png"
    lines = run("predict", checkpoint, "--json", str(latin / "test"), "--top=1").splitlines()
    assert json.loads(lines[0])["image"] == rf"{latin}/test/café/n\xe90.png"
    for form in ("--csv", "--top=2"):
        assert r"n\xe90.png" in run("predict", checkpoint, form, str(latin / "test"))
    for form in ("timm", "hf"):
        run("convert", f"--checkpoint={workdir}", f"--to={form}", f"--output={tmp_path / form}")
    moved = pathlib.Path(workdir).rename(tmp_path / os.fsdecode(b"r\xe9sultat"))
    with pytest.raises(config.ConfigError, match=r"r\\xe9sultat.* is not UTF-8; rename"):
        loading.load(moved)
    moved.rename(workdir)
    run("inspect", "view", checkpoint, f"{latin}", f"--output={tmp_path}/v.html")
    assert re.search(r"/n\\\\xe9\d\.png", (tmp_path / "v.html").read_text())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:planted@host/a: gone", "https://***@host/a: gone"),
        (
            "https://host/a?x=1&X-Goog-Signature=planted&token=planted: gone",
            "https://host/a?x=1&X-Goog-Signature=***&token=*** gone",
        ),
        ("hf_planted0123456789, ya29.planted-0123", "hf_***, ya29.***"),
        (
            "weights/hf_vit_base_patch16_224/config.json",
            "weights/hf_vit_base_patch16_224/config.json",
        ),
        ("HF_TOKEN=planted WANDB_API_KEY='planted'", "HF_TOKEN=*** WANDB_API_KEY='***'"),
        ("it was planted0123456789", "it was ***"),
        (
            "--config.model.class_token=true mailto:a@b",
            "--config.model.class_token=true mailto:a@b",
        ),
    ],
)
def test_a_message_has_no_secret(text, shown, monkeypatch, capsys):
    monkeypatch.setenv("MY_TOKEN", "planted0123456789")
    found = messages.one_line(text)
    assert found == shown
    assert messages.one_line(found) == found
    logs.setup()
    logs.log.info("%s", text)
    logs.log.error("%s", text)
    assert capsys.readouterr().err.splitlines()[0] == shown


@pytest.mark.parametrize("before", ["", "hf_" + "planted" * 20 + " "], ids=["first", "second"])
def test_a_secret_longer_than_the_line_is_not_cut_but_removed(before):
    text = f"{before}https://me:{'planted' * 20}@host/{'b' * 90}"
    assert messages.one_line(text, limit=30).startswith(f"{before and 'hf_*** '}https://")
    assert "planted" not in messages.one_line(text, limit=30)


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", "aaaaaa\u2026bbb"), ("ascii", "aaaaaa...b")]
)
def test_the_middle_of_a_long_line_is_cut(encoding, expected):
    text = "a" * 50 + "b" * 50
    assert messages.one_line(text, limit=10, encoding=encoding) == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [(80_900, "80.9 kB"), (999_900, "999.9 kB"), (10**6, "1.0 MB"), (5 * 10**12, "5.0 TB")],
)
def test_sizes(number, text):
    assert messages.size_text(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "not known"), (0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"),
     (1023 * 2**20, "0.999 GiB"), (2.75 * 2**30, "2.75 GiB"),
     (16 * 2**30, "16 GiB"), (10**18, "888 PiB")],
)  # fmt: skip
def test_sizes_of_memory(number, text):
    assert messages.memory_text(number) == text


def test_a_line_is_printed_in_the_encoding_of_the_terminal(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii"))
    messages.print_line("caf\u00e9")
    assert raw.getvalue() == b"caf\\xe9\n"
