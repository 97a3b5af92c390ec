"""Real processes that do not come, do not agree, or are lost: each says so and ends."""

import hashlib
import pathlib
import platform
import re
import signal
import socket
import time

import pytest

import runs
import vit_jax
from vit_jax import config
from vit_jax.runtime import distributed

WATCHDOG = {"join": 8, "heartbeat": 5}


def start(workdirs, configs, count=2):
    """Starts the first processes of a run of `count`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        runs.start(
            runs.command(workdir, cfg=cfg),
            env=runs.environment(
                1,
                JAX_COORDINATOR_ADDRESS=address,
                JAX_NUM_PROCESSES=str(count),
                JAX_PROCESS_ID=str(number),
            ),
        )
        for number, (workdir, cfg) in enumerate(zip(workdirs, configs, strict=True))
    ]


def ends(process):
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def configure(**sections):
    return runs.configure(**sections, watchdog=WATCHDOG)


@pytest.mark.slow
def test_who_has_not_come_is_named(tmp_path):
    code, output = ends(*start([tmp_path / "run"], [configure()], count=3))
    assert code == 70, output
    assert "after 8 s process 1, 2 of 3 had not joined" in output


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_the_others(tmp_path, sent):
    cfg = configure(train={"duration": 100_000}, checkpoint={"every": 1000})
    workdir = tmp_path / "run"
    processes = start([workdir] * 2, [cfg] * 2)
    while not (workdir / "metrics.jsonl").exists():
        assert all(p.poll() is None for p in processes)
        time.sleep(0.1)
    processes[1].send_signal(sent)
    code, output = ends(processes[0])
    processes[1].kill()
    processes[1].communicate()
    assert code == 70, output
    assert "a process of this run is lost" in output
    assert f"1 on {distributed.host_of(workdir, 1)}" in output


@pytest.mark.slow
def test_another_config_is_named(tmp_path):
    folders = [tmp_path / "one" / "run", tmp_path / "two" / "run"]
    configs = [configure(), configure(evaluation={"every": 7})]
    for code, output in map(ends, start(folders, configs)):
        assert code == 2, output
        assert "process 1 on" in output
        assert "its config is" in output


@pytest.mark.slow
def test_a_workdir_that_is_not_shared_is_named(tmp_path):
    folders = [tmp_path / "one" / "run", tmp_path / "two" / "run"]
    for code, output in map(ends, start(folders, [configure()] * 2)):
        assert code == 2, output
        assert "process 1 on" in output
        assert "its workdir is without what process 0 writes there" in output
        assert "--workdir must be on storage that all hosts share" in output


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b,c", "TPU_WORKER_ID": "2"}, (2, 3, None)),
        (
            {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "1"},
            (1, 4, "h:1"),
        ),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}
            | {"MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2"},
            (5, 6, None),
        ),
        (
            {"TPU_WORKER_HOSTNAMES": "a", "TPU_WORKER_ID": "0"}
            | {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"},
            (1, 2, None),
        ),
    ],
)
def test_the_environment_says_who_i_am(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert distributed.from_environment() == expected


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (("h:1", "two", "0"), "JAX_NUM_PROCESSES=two: must be a number, as JAX_COORD"),
        (("h:1", "2", ""), "JAX_PROCESS_ID=: must be a number below 2, as JAX_COORD"),
        (("h:1", "2", "2"), "JAX_PROCESS_ID=2: must be a number below 2"),
        (("h", "2", "0"), "JAX_COORDINATOR_ADDRESS=h: must be HOST:PORT"),
    ],
)
def test_half_an_environment_is_one_line(monkeypatch, variables, line):
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    for name, value in zip(names, variables, strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(config.ConfigError, match=line):
        distributed.from_environment()
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("TPU_WORKER_ID", "2")
    with pytest.raises(config.ConfigError, match="TPU_WORKER_ID=2: must be a number below 2, on a"):
        distributed.from_environment()


def test_what_processes_leave_for_each_other(tmp_path):
    me = distributed.ProcessInfo(number=3, count=4, address=None)
    folder = tmp_path / "run" / distributed.FOLDER
    distributed._write_host(folder, me)
    assert distributed.host_of(tmp_path / "run", 3) == platform.node()
    assert distributed.host_of(tmp_path / "run", 2) == distributed.host_of(None, 3) == "?"
    token = distributed._write_token(tmp_path / "new" / "folder")
    assert (tmp_path / "new/folder/token").read_text() == token
    assert re.fullmatch("[0-9a-f]{16}", token)
    assert distributed._write_token(tmp_path / "new" / "folder") != token


def test_the_code_is_that_of_the_package_alone():
    root, total = pathlib.Path(vit_jax.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    assert distributed.code_digest() == total.hexdigest()[:16]


def test_processes_are_joined_in_the_order_that_names_who_is_missing(tmp_path, monkeypatch):
    done = []
    me = distributed.ProcessInfo(address="host:1", count=3, number=1)
    monkeypatch.setattr(distributed, "from_environment", lambda: me)
    monkeypatch.setattr(distributed, "_joined", [])
    monkeypatch.setattr(distributed, "_end_with_code", lambda *given: done.append(given))
    monkeypatch.setattr(
        distributed.jax.distributed, "initialize", lambda **given: done.append(given)
    )
    distributed.initialize(tmp_path, config.Watchdog(join=7, heartbeat=9))
    assert done == [
        (me, tmp_path, 7),  # first: jax aborts a process that waits in vain
        {
            "coordinator_address": "host:1", "num_processes": 3, "process_id": 1,
            "initialization_timeout": 7, "heartbeat_timeout_seconds": 9,
        },
    ]  # fmt: skip
    assert distributed._joined == [True]
    assert "process 0, 2 of 3 had not" in distributed.missing_processes(
        me, tmp_path, time.time(), 7
    )
    assert "process 0, 2 of 3 had not" in distributed.missing_processes(me, None, time.time(), 7)
    (tmp_path / distributed.FOLDER / "2").write_text("host")
    assert "process 0 of 3 had not" in distributed.missing_processes(me, tmp_path, time.time(), 7)
