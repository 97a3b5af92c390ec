"""Damage, kills, power cuts and full disks: never a wrong state, never a lost good checkpoint."""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import states
from vit_jax.checkpoints import manager, reader, record
from vit_jax.utils import storage

WORKER = pathlib.Path(states.__file__)


def open_manager(directory, keep=3):
    return manager.Manager(directory, keep=keep, best="top1")


def put(saver, step):
    saver.save(step, states.state(step, states.mesh()), record={}, metrics=None)
    saver.wait()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Steps 1, 2 and 3, to be copied and damaged."""
    directory = tmp_path_factory.mktemp("three")
    with contextlib.closing(open_manager(directory)) as saver:
        for step in (1, 2, 3):
            put(saver, step)
    return directory


@pytest.fixture
def run(three, tmp_path):
    shutil.copytree(three, tmp_path / "run")
    return tmp_path / "run"


class Outcome:
    """What one restore after a mutation came to."""

    def __init__(self, directory, caplog):
        caplog.clear()
        self.step: int | None = None
        self.exact = True
        bad = contextlib.suppress(manager.AllCheckpointsBad)
        with contextlib.closing(open_manager(directory)) as saver, bad:
            state, found = saver.restore(states.target(states.mesh()))
            self.step = found["step"]
            self.exact = states.equal(state, found["step"])
        self.names, self.messages = names(directory), list(caplog.messages)


def files_of(directory, step):
    folder = pathlib.Path(record.folder(directory, step))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def mutate(directory, rng, step):
    """Damages one file of a step in one way; returns what was done."""
    files = files_of(directory, step)
    weights = np.array([path.stat().st_size for path in files], float)
    kind = rng.choice(["bit by bytes", "bit by file", "truncate", "delete", "zero", "swap"])
    uniform = kind in ("bit by file", "truncate", "delete")
    path = files[rng.choice(len(files), p=None if uniform else weights / weights.sum())]
    data = bytearray(path.read_bytes())
    what = f"{kind} {path.relative_to(directory)}"
    if kind.startswith("bit"):
        bit = int(rng.integers(8 * len(data)))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        return f"{what} bit {bit}"
    if kind == "truncate":
        size = int(rng.integers(len(data)))
        path.write_bytes(data[:size])
        return f"{what} to {size}"
    if kind == "delete":
        path.unlink()
        return what
    if kind == "zero":
        start = int(rng.integers(len(data)))
        block = min(len(data) - start, int(rng.integers(1, 4097)))
        if not any(data[start : start + block]):
            data[start] ^= 255
        data[start : start + block] = bytes(block)
        path.write_bytes(data)
        return f"{what} {start}+{block}"
    others = [other for other in files_of(directory, step - 1) if other.read_bytes() != data]
    # Orbax names data files at random: without a namesake, the one nearest in size.
    other = min(others, key=lambda o: (o.name != path.name, abs(o.stat().st_size - len(data))))
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return f"{what} with {other.relative_to(directory)}"


@pytest.mark.parametrize(
    "seeds",
    [
        range(30),
        pytest.param(range(30, 60), marks=pytest.mark.slow),
        pytest.param(range(1000, 1300), marks=pytest.mark.long),
    ],
)
def test_no_damage_comes_back_as_a_wrong_state(three, tmp_path, caplog, seeds):
    """Damages step 3 of a copy once per seed and restores."""
    fell_back = 0
    for seed in seeds:
        directory = tmp_path / str(seed)
        shutil.copytree(three, directory)
        what = f"seed {seed}: {mutate(directory, np.random.default_rng(seed), 3)}"
        outcome = Outcome(directory, caplog)
        assert outcome.exact, f"silently wrong: {what}"
        folder = str(directory / "00000003")
        if f"checkpoint {folder} was never finished; removed" in outcome.messages:
            assert what.endswith("delete 00000003/commit.json"), what
            assert outcome.step == 2, what
        else:
            assert outcome.step == 2 or ("swap" in what and outcome.step == 1), what
            assert "00000003.bad" in outcome.names, what
            first = outcome.messages[0]
            assert first.startswith(f"checkpoint {folder} is damaged ("), what
            assert first.endswith(f"; set aside as {folder}.bad"), what
            last = outcome.messages[-1]
            assert last == f"restored the checkpoint of step {outcome.step} instead", what
            fell_back += 1
        shutil.rmtree(directory)
    assert fell_back > 0.91 * len(seeds)


def test_digests_alone_see_what_orbax_reads_without_complaint(run, caplog):
    """A whole state of another step, sound in itself, with files that match the record."""
    shutil.rmtree(run / "00000003/state")
    shutil.copytree(run / "00000002/state", run / "00000003/state")
    newest = record.epath.Path(run / "00000003")
    commit = record.read_commit(newest)
    commit.pop("files")  # whose sizes and sums are written anew
    record.write_commit(newest, commit)
    outcome = Outcome(run, caplog)
    assert (outcome.step, outcome.exact) == (2, True)
    leaves = sum(leaf.size > 0 for leaf in states.values(1).values())
    wanted = f"(ema/encoder/bias (and {leaves - 1} more) differs from its digest)"
    assert wanted in outcome.messages[0]


def poll_until_it_raises(saver):
    for _ in range(1000):
        saver.poll()
        time.sleep(0.01)


def test_all_bad_refuses_to_start_over(run, caplog):
    for step in (1, 2, 3):
        (run / f"{step:08d}/commit.json").write_text("{}")
    for _ in range(2):  # the second start finds nothing but .bad folders
        outcome = Outcome(run, caplog)
        assert outcome.step is None
        assert outcome.names == ["00000001.bad", "00000002.bad", "00000003.bad"]
    with contextlib.closing(open_manager(run)) as saver:
        with pytest.raises(manager.AllCheckpointsBad) as caught:
            saver.restore(states.target(states.mesh()))
        assert caught.value.exit_code == 78
        assert str(caught.value) == (
            f"{run}: none of its checkpoints can be restored; "
            "move the .bad folders away to start over from step 0"
        )
    for name in outcome.names:
        shutil.rmtree(run / name)
    with contextlib.closing(open_manager(run)) as saver:
        assert saver.restore(states.target(states.mesh())) is None


def test_a_damaged_step_can_be_saved_again(run, caplog):
    for step in (2, 3):
        (run / f"{step:08d}/state/_METADATA").unlink()
    (run / "00000003.bad").mkdir()
    with contextlib.closing(open_manager(run)) as saver:
        restored = saver.restore(states.target(states.mesh()))
        assert restored[1]["step"] == 1
        assert names(run) == ["00000001", "00000002.bad", "00000003.bad", "00000003.bad1"]
        put(saver, 2)
        put(saver, 3)
        assert names(run) == ["00000001", "00000002", "00000003"]
        (run / "00000003/commit.json").write_text("")
        put(saver, 3)  # over a damaged record
        assert saver.steps() == [1, 2, 3]
    assert Outcome(run, caplog).step == 3


def test_prediction_reports_damage_and_touches_nothing(run):
    (run / "00000002/state/_METADATA").write_text("{}")
    (run / "00000003/commit.json").write_text("{}")
    before = names(run)
    target = {"params": states.target(states.mesh())["params"]}
    with pytest.raises(manager.CheckpointError) as caught:
        reader.restore_subtree(run, 2, target)
    size = len((run / "00000001/state/_METADATA").read_bytes())
    assert str(caught.value) == (
        f"{run}/00000002: damaged: state/_METADATA has 2 bytes instead of {size}; "
        "checkpoints there: [1, 2, 3]"
    )
    assert caught.value.exit_code == 2
    assert record.find_step(run)[0] == 2  # the newest with a sound record
    with pytest.raises(manager.CheckpointError, match="damaged: commit.json cannot be read"):
        record.find_step(run / "00000003")
    with contextlib.closing(open_manager(run)) as saver, pytest.raises(manager.CheckpointError):
        saver.restore(states.target(states.mesh()), step=2)
    assert names(run) == before


def test_a_passing_trouble_is_no_damage(run, monkeypatch):
    """Out of memory, permissions or open files, the checkpoint stays where it is."""
    for trouble in (
        MemoryError(), ValueError("PERMISSION_DENIED: no"), ValueError("Stale file handle"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EMFILE, "Too many open files"),
    ):  # fmt: skip
        with contextlib.closing(open_manager(run)) as saver, monkeypatch.context() as patch:

            def fail(*_, trouble=trouble, **__):
                raise trouble

            where = (
                (record, "size_and_crc")
                if isinstance(trouble, OSError)
                else (manager.ocp.PyTreeCheckpointHandler, "restore")
            )
            patch.setattr(*where, fail)
            with pytest.raises(manager.CheckpointError, match="00000003"):
                saver.restore(states.target(states.mesh()))
    assert names(run) == ["00000001", "00000002", "00000003"]


@pytest.mark.parametrize(
    ("own", "elsewhere", "kept"),
    [
        ("passes", None, True),
        (None, "passes", True),
        (None, "damaged", False),
        ("damaged", "passes", True),
    ],
)
def test_trouble_of_one_process_reaches_all(own, elsewhere, kept, run, monkeypatch):
    """Others would wait in a collective for one that has raised by itself."""
    asked = []

    def first_problem(problem):  # asked about what may pass, then about damage
        asked.append(problem)
        here = "passes" if len(asked) == 1 else "damaged"
        return problem or (elsewhere if elsewhere == here else None)

    def fail(path):
        raise OSError(errno.EMFILE if own == "passes" else errno.EIO, "not now")

    monkeypatch.setattr(reader.collectives, "first_problem", first_problem)
    if own:
        monkeypatch.setattr(record, "size_and_crc", fail)
    with pytest.raises((manager.CheckpointError, record.DamagedCheckpoint)) as raised:
        reader.restore(run, 3, states.target(states.mesh()), whole=True)
    assert isinstance(raised.value, record.DamagedCheckpoint) != kept
    assert len(asked) == (1 if kept else 2)


def start(directory, mode):
    """Starts states.py as a process of its own, on one device."""
    root = pathlib.Path(manager.__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "XLA_FLAGS": ""}
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(directory), mode],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(
    "seeds",
    [
        range(1),
        pytest.param(range(1, 4), marks=pytest.mark.slow),
        pytest.param(range(100, 130), marks=pytest.mark.long),
    ],
)
def test_killed_while_saving(tmp_path, caplog, seeds):
    """Kills a process that saves all the time, again and again; each resumes where it left off."""
    directory = tmp_path / "run"
    best = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        with start(directory, "forever") as process:
            count = int(rng.integers(1, 6))
            lines = [json.loads(process.stdout.readline()) for _ in range(count)]
            time.sleep(rng.uniform(0, 0.1))
            process.kill()
            # Not `communicate`, which loses lines that came in one piece with the last one read.
            lines += [json.loads(line) for line in process.stdout]
            errors = process.stderr.read()
        begun = max(line.get("begun", 0) for line in lines)
        best = max([best] + [line.get("committed", 0) for line in lines])
        outcome = Outcome(directory, caplog)
        assert outcome.exact, seed
        assert best <= (outcome.step or 0) <= begun, seed
        assert not any(".bad" in name for name in outcome.names), seed
        assert "Traceback" not in errors, errors
        best = outcome.step or 0


class Trip:
    """Lets calls through until a given one, which fails as a broken disk would."""

    def __init__(self, point):
        self.left = point

    def wrap(self, call):
        def tripping(*arguments, **keywords):
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **keywords)

        return tripping


def failure(saver):
    """What a save ended with; None where it is committed."""
    try:
        saver.wait()
    except manager.SaveFailed as error:
        return error
    return None


@pytest.mark.slow
def test_a_file_system_error_anywhere_in_a_commit(run, monkeypatch):
    """Each flush, rename and look at a file fails once: reported, earlier steps whole, goes on."""
    local = type(record.epath.Path("/"))
    with contextlib.closing(open_manager(run, keep=5)) as saver:
        for step in range(4, 200):
            trip = Trip(step - 4)
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", trip.wrap(os.fsync))
                patch.setattr(record, "size_and_crc", trip.wrap(record.size_and_crc))
                patch.setattr(local, "replace", trip.wrap(local.replace))
                saver.save(step, states.state(step, states.mesh()), record={}, metrics=None)
                error = failure(saver)
            if error is None:
                break
            start, _, end = str(error).partition("Input/output error")
            assert start.startswith(f"step {step} was not saved in {run}: ")
            assert end.endswith("; newest checkpoint: step 3")
            assert names(run) == ["00000001", "00000002", "00000003"]
        assert trip.left >= 0
        assert step > 30  # as many ways to fail, and then a save that met none of them
        restored = saver.restore(states.target(states.mesh()))
        assert restored[1]["step"] == step
        assert states.equal(restored[0], step)


def test_a_record_that_reads_back_differently_is_no_commit(run, monkeypatch):
    with contextlib.closing(open_manager(run)) as saver:
        with monkeypatch.context() as patch:
            patch.setattr(record, "read_commit", lambda _: {})
            saver.save(4, states.state(4, states.mesh()), record={}, metrics=None)
            with pytest.raises(manager.SaveFailed, match=r"step 4 .* reads back differently"):
                saver.wait()
        assert names(run) == ["00000001", "00000002", "00000003"]


def test_what_a_failed_save_left_is_removed_again_if_a_late_writer_makes_it_anew(run, monkeypatch):
    tidy, late = record.tidy, [run / "00000004/state"]

    def tidied(directory):
        removed = tidy(directory)
        if late:
            late.pop().mkdir(parents=True)
        return removed

    with contextlib.closing(open_manager(run)) as saver:
        with monkeypatch.context() as patch:
            patch.setattr(record, "tidy", tidied)
            patch.setattr(record, "write_commit", lambda *_: 1 / 0)
            saver.save(4, states.state(4, states.mesh()), record={}, metrics=None)
            with pytest.raises(manager.SaveFailed, match=r"step 4 .*division by zero"):
                saver.wait()
        assert not late
        assert names(run) == ["00000001", "00000002", "00000003"]


def test_everything_is_flushed_before_the_record_gets_its_name(tmp_path, monkeypatch):
    """What a power cut right after the commit would leave: all of the checkpoint."""
    flushed: list[str] = []
    sync = storage.sync

    def note(path):
        sync(path)
        committed = (tmp_path / "run/00000001/commit.json").exists()
        flushed.append(f"{os.path.relpath(path, tmp_path / 'run')}{' after' if committed else ''}")

    monkeypatch.setattr(storage, "sync", note)
    with contextlib.closing(open_manager(tmp_path / "run")) as saver:
        flushed.clear()
        put(saver, 1)
    folder = tmp_path / "run/00000001"
    below = [str(p.relative_to(tmp_path / "run")) for p in (folder / "state").rglob("*")]
    assert sorted(flushed[:-3]) == sorted([*below, "00000001/state", "00000001"])
    assert flushed[-3:] == ["00000001/commit.json.part", "00000001 after", ". after"]


def test_an_error_of_orbax_is_reported_at_the_next_step(run, monkeypatch, capfd):
    with contextlib.closing(open_manager(run)) as saver:
        with monkeypatch.context() as patch:
            patch.setattr(record, "write_commit", lambda *_: 1 / 0)
            saver.save(4, states.state(4, states.mesh()), record={}, metrics=None)
            with pytest.raises(manager.SaveFailed, match=r"step 4 .*division by zero.* step 3$"):
                poll_until_it_raises(saver)
        saver.poll()
        saver.wait()
        put(saver, 4)
        assert saver.steps() == [2, 3, 4]
    assert capfd.readouterr() == ("", "")


def test_no_room_is_noticed_before_anything_is_written(run, monkeypatch):
    state = states.state(4, states.mesh())
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    with contextlib.closing(open_manager(run)) as saver:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, size))
            with pytest.raises(manager.SaveFailed) as caught:
                saver.save(4, state, record={}, metrics=None)
        assert str(caught.value) == (
            f"step 4 was not saved in {run}: {1.1 * size / 1e3:.1f} kB needed, "
            f"{size / 1e3:.1f} kB free; newest checkpoint: step 3"
        )
        assert caught.value.exit_code == 70
        assert names(run) == ["00000001", "00000002", "00000003"]
        put(saver, 4)


def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on file size stands in for the disk: writes fail while orbax saves."""
    process = start(tmp_path / "run", "full")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    failure, left, end = map(json.loads, output.splitlines())
    assert failure == {
        "error": f"step 2 was not saved in {tmp_path / 'run'}: File too large; "
        "newest checkpoint: step 1",
        "code": 70,
        "steps": [1],
    }
    assert left == {"left": []}
    assert end == {"steps": [1, 3]}
    assert errors == ""
    with contextlib.closing(open_manager(tmp_path / "run")) as saver:
        for step in (1, 3):
            restored = saver.restore(states.target(states.mesh(), 4096), step=step)
            assert states.equal(restored[0], step, 4096)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(manager.CheckpointError, match="cannot hold checkpoints: Not a directory"):
        open_manager(tmp_path / "file" / "checkpoints")


@pytest.mark.parametrize("sign", ["[", "\\"])
def test_a_directory_whose_arrays_orbax_would_not_find(tmp_path, sign):
    name = f"try{sign}1]"
    with pytest.raises(manager.CheckpointError, match=re.escape(f"a name with {sign}; choose")):
        open_manager(tmp_path / name / "checkpoints")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_show_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "prepare_directory", lambda _: ".probe-elsewhere")
    with pytest.raises(manager.CheckpointError, match="process 0 sees another directory; it must"):
        open_manager(tmp_path)


def test_a_read_only_directory(small_disk, three):
    run = small_disk / "run"
    shutil.copytree(three, run)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(manager.CheckpointError) as caught:
        open_manager(run)
    assert str(caught.value) == f"{run}: cannot hold checkpoints: Read-only file system"
    assert caught.value.exit_code == 2
    # Reading it, to evaluate or predict, is fine.
    target = {"params": states.target(states.mesh())["params"]}
    assert record.find_step(run)[0] == 3
    reader.restore_subtree(run, 3, target)


def test_old_checkpoints_that_cannot_be_removed(run, monkeypatch, caplog):
    with contextlib.closing(open_manager(run)) as saver:
        with monkeypatch.context() as patch:

            def refuse(*_, **__):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

            patch.setattr(record.epath.Path("/").__class__, "unlink", refuse)
            put(saver, 4)
        assert saver.steps() == [1, 2, 3, 4]
        assert caplog.messages == ["old checkpoints cannot be removed: Permission denied"]
        put(saver, 5)
        assert saver.steps() == [3, 4, 5]
