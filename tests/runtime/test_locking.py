"""Locks on run directories: who has one, who waits, who is refused, who takes over."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from concurrent import futures

import pytest

import bucket
import runs
from vit_jax import cli, config, train_loop
from vit_jax.runs import saving
from vit_jax.runtime import locking, logs
from vit_jax.runtime.locking import Holder
from vit_jax.utils import errors, storage

ELSEWHERE = dataclasses.replace(Holder.current(), host="far", pid=7, machine="another boot")
HOLD = """
import pathlib, sys
from vit_jax.runtime import locking
from vit_jax.utils import storage
with locking.exclusive(storage.as_path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Waits are cut to fractions of a second."""
    waits = {"NEAR": 0.2, "POLL": 0.02, "RENEW": 0.1, "LEASE": 0.6, "SETTLE": 0.05}
    for name, seconds in waits.items():
        monkeypatch.setattr(locking, name, seconds)


@pytest.fixture(scope="module")
def store():
    """A bucket on this machine."""
    with bucket.serve() as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment.items():
            patch.setenv(key, value)
        pytest.importorskip("gcsfs", reason="needs gcsfs: pip install 'vit_jax[gcs]'")
        yield server


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    """A directory that is to be locked."""
    if request.param == "disk":
        yield tmp_path / "run"
        return
    store = request.getfixturevalue("store")
    store.objects.clear()
    yield storage.as_path(f"gs://{bucket.NAME}/run")
    store.failing = lambda method, name: 0


@contextlib.contextmanager
def holding(workdir, **environment):
    """Runs a process that holds the lock; ends it if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workdir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": runs.PATHS} | environment,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        process.stdin.close()
        process.stdout.close()


def refused(workdir):
    with pytest.raises(locking.InUse) as raised, locking.exclusive(workdir):
        pass
    return str(raised.value)


def files(workdir):
    return {
        path.relative_to(workdir): path.read_bytes()
        for path in workdir.rglob("*")
        if path.is_file()
    }


# --- One machine ----------------------------------------------------------------------------------


def test_the_second_is_refused_in_one_line_until_the_first_ends(folder):
    with holding(folder) as process:
        began = time.time()
        line = refused(folder)
        assert line.startswith(
            f"--workdir={folder}: in use by process {process.pid} on {Holder.current().host} for "
        )
        assert line.endswith("s; wait for its end, stop it, or choose another --workdir")
        assert "\n" not in line
        assert locking.InUse.exit_code == 2  # 70 and 75 would be tried again and again
        assert time.time() - began < 5
        process.communicate()
        with locking.exclusive(folder):
            pass
    assert not (folder / locking.NAME).exists()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_is_followed_at_once(folder, sent, monkeypatch):
    monkeypatch.setattr(locking, "LEASE", 1e9)
    with holding(folder) as process:
        process.send_signal(sent)
        process.wait()
        assert (folder / locking.NAME).exists()
        with locking.exclusive(folder):
            assert Holder.parse((folder / locking.NAME).read_bytes()).pid == os.getpid()


def test_a_stopped_holder_holds(folder):
    with holding(folder) as process:
        process.send_signal(signal.SIGSTOP)
        assert f"process {process.pid}" in refused(folder)


def test_many_at_once_and_one_at_a_time(folder, monkeypatch):
    """Locks come and go, their files deleted each time, and never are there two holders."""
    monkeypatch.setattr(locking, "NEAR", 60.0)
    inside, most = [], []

    def work(_):
        with locking.exclusive(folder):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert most == [1] * 40


# --- Another machine ------------------------------------------------------------------------------


def lock_of(folder, token=ELSEWHERE.token):
    """The lock of a process on another machine."""
    kind = locking.BucketLock if storage.is_remote(folder) else locking.DiskLock
    return kind(folder / locking.NAME, dataclasses.replace(ELSEWHERE, token=token))


def held_elsewhere(folder):
    """A lock that a process on another machine holds."""
    other = lock_of(folder)
    assert other.acquire()
    return other


def overtake(folder):
    """Another process takes a lock that this one holds; its lock."""
    other = lock_of(folder, token="new")
    while not other.take_over(other.read()[0]):
        pass
    return other


def test_a_holder_elsewhere_that_renews_is_left_alone(folder):
    other = held_elsewhere(folder)
    with locking.Lease(other, folder):
        assert "in use by process 7 on far for " in refused(folder)
    assert other.renew()
    other.release()


def test_a_holder_elsewhere_that_is_gone_is_followed_after_the_lease(folder, caplog):
    other = held_elsewhere(folder)
    began = time.monotonic()
    with locking.exclusive(folder):
        assert time.monotonic() - began > locking.LEASE
        # If it was only asleep, it learns so, and does not touch what is another's now.
        assert not other.renew()
        other.release()
        assert Holder.parse((folder / locking.NAME).read_bytes()).pid == os.getpid()
        assert f"process {os.getpid()}" in refused(folder)
    messages = [entry.getMessage() for entry in caplog.records if entry.name == "vit_jax"]
    assert [message.partition(": ")[2].partition(" ")[0] for message in messages] == [
        "locked", "taken",
    ]  # fmt: skip


def test_who_was_overtaken_ends(folder, caplog):
    mine = held_elsewhere(folder)
    codes = []
    with locking.Lease(mine, folder, end=codes.append):
        other = overtake(folder)
        deadline = time.monotonic() + 30
        while not codes and time.monotonic() < deadline:
            time.sleep(0.01)
    assert codes == [72]
    assert "taken over by process 7 on far" in caplog.text
    mine.release()
    assert other.renew()  # it is the other's


def test_two_that_take_over_at_once(folder):
    """Of many who have waited for the same dead holder one has the lock in the end."""
    other = held_elsewhere(folder)
    version, _ = other.read()

    def work(token):
        one = lock_of(folder, token=token)
        return one if one.take_over(version) else None

    with futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, "abcd"))
    assert len([one for one in found if one is not None and one.renew()]) == 1


# --- A holder that did not run for a while, and goes on ---------------------------------------


@pytest.fixture
def suspended(monkeypatch):
    """The thread that renews does not run: only what asks for the lease can find it lost."""
    monkeypatch.setattr(locking, "RENEW", 1e9)


def test_a_lease_is_checked_where_something_is_saved(folder, suspended):
    with locking.exclusive(folder) as lease:
        lease.ensure_held()
        other = overtake(folder)
        with pytest.raises(errors.LeaseLost, match="taken over by process 7 on far .* saves noth"):
            lease.ensure_held()
    assert errors.LeaseLost.exit_code == 72
    assert other.renew()  # untouched by the release of who was overtaken


def test_a_file_in_the_same_place_with_another_token_is_not_ours(tmp_path, suspended):
    """As on a file server that gives the new file the number of the old one."""
    with locking.exclusive(tmp_path) as lease:
        holder = dataclasses.replace(Holder.current(), token="other")
        (tmp_path / locking.NAME).write_bytes(holder.dump())
        with pytest.raises(errors.LeaseLost, match=f"taken over by process {os.getpid()}"):
            lease.ensure_held()


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_changes_nothing(folder, monkeypatch, jump):
    now = time.time
    with locking.exclusive(folder) as lease:
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        lease.ensure_held()
        assert f"process {os.getpid()}" in refused(folder)
        lease.ensure_held()


def test_a_copied_directory_is_free(tmp_path):
    """The copy of a run in progress contains its lock, which nobody holds."""
    with locking.exclusive(tmp_path / "run") as lease:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        began = time.monotonic()
        with locking.exclusive(tmp_path / "copy") as other:
            assert time.monotonic() - began < locking.LEASE
            lease.ensure_held()
            other.ensure_held()


@pytest.mark.slow
def test_a_run_that_was_overtaken_saves_nothing_more(folder, suspended):
    """It has lost its lease at step 12: metrics and checkpoints stay as they were."""
    cfg = runs.configure(checkpoint={"every": 5, "keep": 9, "best": None})
    seen = {}

    class Overtaken(saving.Saver):
        def save(self, step, live, results):
            if step == 15:
                self.wait()
                seen["lock"] = overtake(folder)
                seen["files"] = contents(folder)
            super().save(step, live, results)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "Saver", Overtaken)
        with pytest.raises(errors.LeaseLost):
            train_loop.train(cfg, folder)
    assert contents(folder) == seen["files"]
    committed = {name.split("/")[1] for name in seen["files"] if name.endswith("commit.json")}
    assert committed == {"00000005", "00000010"}
    assert seen["lock"].renew()


def contents(folder):
    """The bytes of every file, but for compiled programs and the lock."""
    found = {}
    for path in folder.iterdir():
        if path.is_dir() and path.name != "compiled":
            found |= {f"{path.name}/{name}": each for name, each in contents(path).items()}
        elif path.is_file() and path.name != locking.NAME:
            found[path.name] = path.read_bytes()
    return found


class Objects:
    """One object of a bucket, as gcsfs calls Google's API; its generations go up by seven."""

    base = "https://host/storage/v1/"

    def __init__(self):
        self.generation, self.deleted = locking.ABSENT, []

    def call(self, method, path, *names, json_out=False, ifGenerationMatch, **content):
        if ifGenerationMatch != str(self.generation):
            raise FileExistsError(path)
        if method == "DELETE":
            self.deleted.append(names)
            return b""
        self.generation += 7
        return {"generation": str(self.generation)} if json_out else b"bytes"


def test_a_lease_is_renewed_and_released_as_the_generation_it_wrote(monkeypatch):
    """Without gcsfs."""
    objects = Objects()
    monkeypatch.setattr("fsspec.filesystem", {"gcs": objects}.__getitem__)
    lease = locking.BucketLock(storage.as_path("gs://photos/run/run.lock"), Holder.current())
    lease.release()  # which was never taken
    assert (lease.acquire(), lease.renew(), objects.generation) == (True, True, 14)
    lease.release()
    assert objects.deleted == [("photos", "run/run.lock")]


# --- What goes wrong ------------------------------------------------------------------------------


def test_an_answer_that_was_lost_is_no_refusal(store):
    """gcsfs asks again when a connection breaks: the first request may have been granted."""
    folder = storage.as_path(f"gs://{bucket.NAME}/lost")
    mine = locking.BucketLock(folder / locking.NAME, Holder.current())
    store.put(f"lost/{locking.NAME}", mine.me.dump())
    assert mine.acquire()
    assert mine.renew()
    mine.release()
    assert not store.names("lost/")


def test_a_bucket_that_refuses_is_one_line(store):
    store.failing = lambda method, name: 403 if name.endswith(locking.NAME) else 0
    try:
        url = storage.as_path(f"gs://{bucket.NAME}/refused")
        line = f"--workdir={url}: cannot be read: Forbidden"
        with pytest.raises(config.ConfigError, match=line), locking.attempt(url, wanted=True):
            pass
    finally:
        store.failing = lambda method, name: 0


def test_a_bucket_that_is_away_for_a_while_ends_nothing(store, monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended"))
    folder = storage.as_path(f"gs://{bucket.NAME}/away")
    with locking.exclusive(folder):
        store.failing = lambda method, name: 403
        time.sleep(5 * locking.RENEW)
        store.failing = lambda method, name: 0
        before = store.objects[f"away/{locking.NAME}"][1]
        deadline = time.monotonic() + 30
        while store.objects[f"away/{locking.NAME}"][1] == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": 3}', b"\xff" * 9, b"[" * 5000])
def test_what_a_lock_file_says_may_be_nonsense(tmp_path, content):
    assert Holder.parse(content) is None
    (tmp_path / locking.NAME).write_bytes(content)
    with locking.exclusive(tmp_path):  # nobody holds it
        pass


def test_a_process_number_that_was_given_again_is_another_process():
    me = Holder.current()
    assert me == Holder.parse(me.dump())
    assert (me.is_local(), me.has_ended()) == (True, False)
    assert dataclasses.replace(me, started=me.started - 1).has_ended()
    assert not dataclasses.replace(me, started=0, machine="another boot").has_ended()
    assert not dataclasses.replace(me, started=0, machine="").has_ended()  # nothing is known


def test_remains_of_a_process_have_ended():
    child = subprocess.Popen(["sleep", "60"])
    began = int(pathlib.Path(f"/proc/{child.pid}/stat").read_text().split()[21])
    holder = dataclasses.replace(Holder.current(), pid=child.pid, started=began)
    assert not holder.has_ended()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # and is not collected
    assert holder.has_ended()
    child.wait()
    assert holder.has_ended()


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locking.fcntl, "flock", flock)
    with locking.exclusive(tmp_path):
        pass
    assert "this file system has no locks (Operation not supported)" in caplog.text


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    line = "file/run: cannot be written: Not a directory"
    folder = tmp_path / "file/run"
    with pytest.raises(config.ConfigError, match=line), locking.exclusive(folder):
        pass


def test_a_full_disk_is_worth_a_retry(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(locking.os, "open", full)
    with pytest.raises(logs.NotWritten, match="No space left"), locking.exclusive(tmp_path):
        pass


def test_a_directory_that_another_holder_deletes_meanwhile_is_made_again(tmp_path, monkeypatch):
    opened, folder = os.open, tmp_path / "a"

    def late(path, *rest, **named):
        monkeypatch.setattr(locking.os, "open", opened)  # once
        folder.rmdir()
        return opened(path, *rest, **named)

    monkeypatch.setattr(locking.os, "open", late)
    with locking.exclusive(folder):
        assert (folder / locking.NAME).exists()


def test_a_run_that_does_not_begin_leaves_no_directory(tmp_path):
    with locking.exclusive(tmp_path / "a/b"):
        assert (tmp_path / "a/b" / locking.NAME).exists()
    assert list(tmp_path.iterdir()) == []


# --- Commands -------------------------------------------------------------------------------------


def test_every_command_that_writes_runs_is_refused(tmp_path, capsys, monkeypatch):
    """And writes nothing. A smoke test would delete the other's directory first."""
    monkeypatch.chdir(tmp_path)
    for words, workdir in (
        (["train", "digits", "--workdir=w"], "w"),
        (["train", "digits", "--smoke"], "runs/smoke/digits"),
        (["transfer", "home/ViT-digits", "--smoke"], "runs/smoke/home/ViT-digits"),
        (["transfer", "home/ViT-digits", "--config.init_from=none", "--workdir=t"], "t"),
    ):
        folder = tmp_path / workdir
        folder.mkdir(parents=True)
        (folder / "kept").write_text("by the first")
        with holding(folder) as process:
            before = files(folder)
            assert cli.main(words) == 2
            assert files(folder) == before
        err = capsys.readouterr().err
        line = f"vit_jax: --workdir={workdir}: in use by process {process.pid} on "
        assert err.splitlines()[-1].startswith(line)
        assert err.count("in use") == 1


def test_a_table_is_reproduced_by_one_process_at_a_time(tmp_path):
    from vit_jax.studies import reproduce

    with locking.exclusive(tmp_path, "reproduce-table9.lock"):
        with pytest.raises(locking.InUse, match="in use by process"):
            reproduce.perform(reproduce.table("table9"), tmp_path, {}, smoke=True)
        assert cli.main(["reproduce", "table9", "--dry-run", f"--workdir={tmp_path}"]) == 0


def test_clear_leaves_an_empty_directory(tmp_path):
    for name in ("a/b/c", "d"):
        (tmp_path / "w" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "w" / name).touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    (tmp_path / "w/link").symlink_to(tmp_path / "outside")
    locking.clear(tmp_path / "w")
    locking.clear(tmp_path / "not_there")
    assert list((tmp_path / "w").iterdir()) == []
    assert (tmp_path / "outside/kept").exists()


@pytest.mark.slow
def test_a_second_process_leaves_the_first_ones_run_as_it_is(tmp_path):
    """Refused while the first one trains; after a kill of that it goes on to the same end."""
    cfg = runs.configure()
    subprocess.run(
        runs.command(tmp_path / "alone", cfg=cfg), env=runs.environment(), check=True,
        capture_output=True,
    )  # fmt: skip
    for killed in (False, True):
        workdir = tmp_path / f"run{killed}"
        first = runs.start(runs.command(workdir, cfg=cfg), env=runs.environment())
        while not list(workdir.glob("checkpoints/*/commit.json")):
            assert first.poll() is None, first.communicate()
            time.sleep(0.005)
        first.send_signal(signal.SIGSTOP)
        before = files(workdir)
        second = subprocess.run(
            runs.command(workdir), env=runs.environment(), capture_output=True, text=True
        )
        assert second.returncode == 2
        (line,) = second.stderr.splitlines()
        assert line.startswith(f"vit_jax: --workdir={workdir}: in use by process {first.pid} on ")
        assert files(workdir) == before
        shown = subprocess.run(
            [sys.executable, "-m", "vit_jax", "evaluate", f"--checkpoint={workdir}", "--json"],
            env=runs.environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert json.loads(shown.stdout)["test/count"] == 100, (
            shown.stderr
        )  # who reads needs no lock
        if killed:
            first.kill()
            resumed = subprocess.run(
                runs.command(workdir), env=runs.environment(), capture_output=True, text=True
            )
            assert resumed.returncode == 0, resumed.stderr
        else:
            first.send_signal(signal.SIGCONT)
        output, _ = first.communicate(timeout=120)
        assert first.returncode == (-signal.SIGKILL if killed else 0), output
        runs.assert_equal_runs(workdir, tmp_path / "alone")


@pytest.mark.slow
def test_processes_of_one_run_are_let_in_and_those_of_another_are_not(tmp_path):
    cfg = runs.configure(
        train={"duration": 100_000}, checkpoint={"every": 1000}, evaluation={"every": None}
    )
    workdir = tmp_path / "run"
    command = runs.command(workdir, cfg=cfg)
    first = [runs.start(command, env=variables) for variables in runs.environments(2)]
    while not (workdir / "metrics.jsonl").exists():
        assert all(process.poll() is None for process in first), first[0].communicate()
        time.sleep(0.1)
    others = [runs.start(command, env=variables) for variables in runs.environments(2)]
    for process in others:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 2, output
        assert f"in use by process {first[0].pid} on " in output
    assert all(process.poll() is None for process in first)
    first[1].send_signal(signal.SIGTERM)
    for process in first:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 75, output


def test_this_machine_is_known():
    assert locking.machine_id()  # else a lease of a dead process here would be waited for


@pytest.mark.parametrize(
    ("error", "code", "changed"),
    [(FileExistsError(), None, True), (OSError(), 412, True), (OSError(), "412", True),
     (OSError(), 403, False), (OSError(), None, False)],
)  # fmt: skip
def test_a_write_is_refused_where_the_object_has_changed(error, code, changed):
    if code is not None:
        error.__cause__ = type("HttpError", (Exception,), {"code": code})()
    assert locking._is_precondition(error) == changed
