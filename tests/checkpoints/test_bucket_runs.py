"""Runs in a bucket: gcsfs and tensorstore against an object store on this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import jax
import pytest

import bucket
import runs
import states
from vit_jax import cli, config
from vit_jax.checkpoints import manager, record
from vit_jax.utils import errors, storage

URL = f"gs://{bucket.NAME}"

# A request that is refused leaves its body and the view of it in one cycle: where Python 3.13
# frees the body first, it says so. Nothing is lost.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.BytesIO object:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def store():
    """One for all tests here: gcsfs keeps the address it was first used with."""
    pytest.importorskip("gcsfs", reason="needs gcsfs: pip install 'vit_jax[gcs]'")
    with bucket.serve() as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment.items():
            patch.setenv(key, value)
        yield server


@pytest.fixture
def folder(store, request):
    """A folder of the bucket for one test."""
    yield storage.as_path(f"{URL}/{request.node.name.partition('[')[0]}")
    store.failing = lambda method, name: 0


def test_what_is_lacking_is_one_line(monkeypatch, capsys):
    def fail(self):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(type(storage.as_path(URL)), "exists", fail)
    assert cli.main(["train", "digits", f"--workdir={URL}/x"]) == 2
    assert capsys.readouterr().err == (
        f"vit_jax: --workdir={URL}/x: needs gcsfs: pip install 'vit_jax[gcs]'\n"
    )


def test_a_move_cut_short_at_any_request_leaves_a_whole_checkpoint(folder, store):
    """A folder has no name to change: objects are copied and deleted one by one."""
    content = {"state/a": b"1", "state/d/b": b"2"}
    for cut in range(100):
        directory = folder / str(cut)
        old, new = (
            record.folder(directory, 7),
            record.folder(directory, 7).with_name("00000007.old"),
        )
        for name, data in content.items():
            (old / name).write_bytes(data)
        record.write_commit(old, {"step": 7, "facts": {}, "metrics": {}, "leaves": {}, "files": {}})
        left = [cut]

        def fail(method, name, left=left):
            left[0] -= method in ("POST", "DELETE")
            return 403 if left[0] < 0 and method in ("POST", "DELETE") else 0

        store.failing = fail
        try:
            record.move_checkpoint(old, new)
            done = True
        except OSError:
            done = False
        store.failing = lambda method, name: 0
        whole = [
            path for path in (old, new)
            if (path / record.COMMIT).exists()
            and all((path / name).exists() for name in content)
        ]  # fmt: skip
        if done:
            assert whole == [new]
            assert store.names(f"{directory.name}/00000007/") == []
            return
        assert whole, cut
        record.tidy(directory)  # the save over it never came to be: it gets its name back
        assert record.steps(directory) == [7]
        assert all((old / name).read_bytes() == data for name, data in content.items())
    pytest.fail("never done")


def test_states_are_saved_retired_and_set_aside(folder, store, caplog):
    target = states.target(states.mesh())
    with contextlib.closing(manager.Manager(folder, keep=2, best="top1")) as saver:
        assert saver.restore(target) is None
        for step in (1, 2, 3):
            saver.save(step, states.state(step, states.mesh()), record={}, metrics=None)
            saver.wait()
        assert saver.steps() == [2, 3]
        assert not any("/00000001/" in name for name in store.names())
    name = max(
        (n for n in store.names() if "/00000003/state/" in n),
        key=lambda n: len(store.objects[n][0]),
    )
    data = bytearray(store.objects[name][0])
    for place in range(0, len(data), 16):
        data[place] ^= 1
    store.put(name, data)
    with contextlib.closing(manager.Manager(folder, keep=2, best="top1")) as saver:
        state, found = saver.restore(target)
        assert (found["step"], states.equal(state, 2)) == (2, True)
        assert saver.steps() == [2]
    assert any("00000003 is damaged" in message for message in caplog.messages)
    assert any("/00000003.bad/commit.json" in name for name in store.names())
    with contextlib.closing(manager.Manager(folder, keep=2, best="top1")) as saver:
        store.failing = lambda method, name: 403 if name.endswith("commit.json") else 0
        with pytest.raises(errors.CheckpointError):
            saver.restore(target)  # a bucket that refuses has lost nothing
        store.failing = lambda method, name: 0
        assert saver.steps() == [2]
    jax.clear_caches()


@pytest.mark.slow
def test_a_run_killed_in_a_bucket_comes_to_the_same_end(store, tmp_path):
    cfg = runs.configure(evaluation={"every": None})
    environment = runs.environment(**store.environment)
    oracle = tmp_path / "oracle"
    subprocess.run(runs.command(oracle, cfg=cfg), env=environment, check=True, capture_output=True)
    (tmp_path / "config.json").write_text((oracle / "config.json").read_text())
    url = f"{URL}/killed"
    store.put("killed/config.json", (oracle / "config.json").read_bytes())
    command = [sys.executable, "-m", "vit_jax", "train", f"--workdir={url}"]
    process = runs.start(command, env=environment)
    while not any("checkpoints/00000010/commit.json" in name for name in store.names("killed/")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    resumed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step" in resumed.stderr
    copy = tmp_path / "copy"
    for name in store.names("killed/"):
        file = copy / name.removeprefix("killed/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(store.objects[name][0])
    for key in ("train/loss", "train/grad_norm", "data/batch_crc"):
        assert runs.trace(copy, key) == runs.trace(oracle, key)
    assert runs.digests(copy) == runs.digests(oracle)
    assert (copy / "curves.png").read_bytes().startswith(b"\x89PNG")
    shown = subprocess.run(
        [sys.executable, "-m", "vit_jax", "evaluate", f"--checkpoint={url}", "--json"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert f'"step": {runs.STEPS}' in shown.stdout


@pytest.mark.slow
def test_two_processes_share_a_bucket(store, tmp_path):
    cfg = runs.configure(mesh={"fsdp": 2, "fsdp_min_size": 1}, watchdog={"heartbeat": 10})
    store.put("two/config.json", json.dumps(config.to_dict(cfg)).encode())
    command = [sys.executable, "-m", "vit_jax", "train", f"--workdir={URL}/two"]
    processes = [
        runs.start(command, env=variables | store.environment) for variables in runs.environments(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "process 1 on" in outputs[0]
    names = store.names("two/")
    assert {"two/hosts/0", "two/hosts/1", "two/hosts/token"} <= set(names)
    assert f"two/checkpoints/{runs.STEPS:08d}/commit.json" in names
    lines = store.objects["two/metrics.jsonl"][0].decode().splitlines()
    losses = [line["train/loss"] for line in map(json.loads, lines) if "train/loss" in line]
    assert len(losses) == runs.STEPS
    shown = subprocess.run(
        [sys.executable, "-m", "vit_jax", "evaluate", f"--checkpoint={URL}/two", "--json",
         "--config.mesh.fsdp=1"],
        env=runs.environment(**store.environment), capture_output=True, text=True,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
