"""launch/tpu.sh against a stand-in for gcloud; its workers run launch/tpu_worker.sh for real."""

import os
import re
import signal
import subprocess
import tarfile

import pytest

from worlds import ADDRESS, RUN, SLICE, wait_for

# What an installation needs of a checkout.
SENT = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "vit_jax", "configs"}

TPUS = ["compute", "tpus"]
WHERE = ["--project=p", "--zone=z", "--quiet"]
COMMANDS = ("create", "setup", "run", "logs", "status", "stop", "supervise", "delete")


def ssh(worker, command):
    return [*TPUS, "tpu-vm", "ssh", "s", f"--worker={worker}", f"--command={command}", *WHERE]


# --- One command line after another -------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice_", "kind", "runtime"),
    [
        ("v2-8", ["--accelerator-type=v2-8"], "tpu-ubuntu2204-base"),
        ("v3-2048", ["--accelerator-type=v3-2048"], "tpu-ubuntu2204-base"),
        ("v3:8x8", ["--type=v3", "--topology=8x8"], "tpu-ubuntu2204-base"),
        ("v4:2x2x4", ["--type=v4", "--topology=2x2x4"], "tpu-ubuntu2204-base"),
        ("v5e-16", ["--accelerator-type=v5litepod-16"], "v2-alpha-tpuv5-lite"),
        ("v5litepod-16", ["--accelerator-type=v5litepod-16"], "v2-alpha-tpuv5-lite"),
        ("v5e:4x8", ["--accelerator-type=v5litepod-32"], "v2-alpha-tpuv5-lite"),
        ("v5p-128", ["--accelerator-type=v5p-128"], "v2-alpha-tpuv5"),
        ("v6e-256", ["--accelerator-type=v6e-256"], "v2-alpha-tpuv6e"),
    ],
)
def test_create(world, slice_, kind, runtime):
    here = world()
    here.tpu("create", *ADDRESS, f"--slice={slice_}")
    (call,) = here.calls()
    request = [*TPUS, "queued-resources", "create", "s", "--node-id=s"]
    assert call == [*request, *kind, f"--runtime-version={runtime}", *WHERE]


def test_flex_start_is_asked_of_the_alpha_release(world):
    here = world()
    here.tpu("create", *SLICE, "--capacity=flex-start", "--create-flags=--max-run-duration=1d")
    (call,) = here.calls()
    assert call[:5] == ["alpha", *TPUS, "queued-resources", "create"]
    flex = ["--provisioning-model=flex-start", "--max-run-duration=7d", "--max-run-duration=1d"]
    assert call[-6:] == [*flex, *WHERE]  # of two alike gcloud takes the last


def test_create_takes_settings_from_the_environment(world):
    here = world(configured={"project": "mine", "compute/zone": "zone-a"})
    here.tpu(
        "create",
        VIT_JAX_NAME="n",
        VIT_JAX_SLICE="v6e-8",
        VIT_JAX_CAPACITY="spot",
        VIT_JAX_RUNTIME="other",
        VIT_JAX_CREATE_FLAGS="--service-account=a --network=net",
    )
    assert here.calls()[:2] == [
        ["config", "get-value", "project"],
        ["config", "get-value", "compute/zone"],
    ]
    assert here.calls()[2] == [
        *TPUS, "queued-resources", "create", "n", "--node-id=n", "--accelerator-type=v6e-8",
        "--runtime-version=other", "--service-account=a", "--network=net", "--spot",
        "--project=mine", "--zone=zone-a", "--quiet",
    ]  # fmt: skip


def test_setup(world):
    here = world()
    here.tpu("create", *SLICE, "--capacity=reserved")
    assert "--reserved" in here.calls("create")[0]
    here.forget()
    (here.cloud / "count_chips").touch()
    printed = here.tpu("setup", *SLICE, "--python=3.13")
    copy, install, health = here.calls()
    scripts = [str(here.checkout / f"launch/{name}.sh") for name in ("tpu_worker", "secrets")]
    assert copy[:4] == [*TPUS, "tpu-vm", "scp"]
    assert copy[4].endswith("/vit_jax.tgz")
    assert copy[5:] == [*scripts, "s:", "--worker=all", *WHERE]
    assert install == ssh("all", "bash tpu_worker.sh setup tpu,gcs 3.13")
    assert health == ssh("all", "bash tpu_worker.sh health 8")
    assert "worker 0: 2 hosts, 8 chips (TPU v5 lite), vit_jax " in printed
    for number in range(2):
        home = here.worker(number)
        with tarfile.open(home / "vit_jax.tgz") as archive:
            assert set(archive.getnames()) == SENT
        installs = (home / "installs").read_text()
        assert f"{home}/vit_jax/source[tpu,gcs]\n" in installs
        assert f"--python 3.13 {home}/vit_jax/venv\n" in installs
    # Again: nothing has changed, nothing is installed.
    assert "worker 1: ready, as installed before" in here.tpu("setup", *SLICE, "--python=3.13")
    assert (here.worker(1) / "installs").read_text() == installs


def test_setup_of_a_wheel(world, tmp_path):
    here = world()
    wheel = tmp_path / "vit_jax-1-py3-none-any.whl"
    wheel.touch()
    here.tpu("create", *SLICE)
    here.tpu("setup", *SLICE, f"--wheel={wheel}")
    installs = (here.worker(0) / "installs").read_text()
    assert f"{here.worker(0)}/vit_jax/source/{wheel.name}[tpu,gcs]\n" in installs


def test_setup_brings_variables_and_extras(world, tmp_path):
    """What a run reads of its environment: no word of it is run, printed, or on a command line."""
    here = world()
    here.tpu("create", *SLICE)
    file = tmp_path / "run.env"
    file.write_text("# mine\nHF_TOKEN=hf_$(touch bad) x1y2z3\n\nWANDB_MODE=")
    here.forget()
    (here.cloud / "count_chips").touch()
    words = ("setup", *SLICE, f"--env-file={file}", "--extras=wandb,hf")
    dry = here.tpu(*words, "--dry-run")
    assert f"cp {file} ./vit_jax.env\n" in dry
    printed = here.tpu(*words)
    assert "x1y2z3" not in printed + repr(here.calls())
    assert here.calls()[1] == ssh("all", "bash tpu_worker.sh setup tpu,gcs,wandb,hf")
    for number in range(2):
        copy = here.worker(number) / "vit_jax.env"
        assert copy.read_text() == file.read_text()
        assert copy.stat().st_mode & 0o777 == 0o600
        assert "source[tpu,gcs,wandb,hf]\n" in (here.worker(number) / "installs").read_text()
    here.tpu("run", *RUN, "digits", "--force", "--config.name=variables")
    for number in range(2):
        token = here.worker(number) / "token"
        said = wait_for(lambda path=token: path.exists() and path.read_text())
        assert said == "hf_$(touch bad) x1y2z3\n"
    for text in ("export A=b", "A='b'", 'A="b"', "A=b\r", "A b"):
        file.write_text(f"# x\n{text}\n")
        line = here.tpu(*words, code=2)
        assert line == (
            f"tpu.sh: --env-file={file}: line 2: must be KEY=VALUE, without export or quotes\n"
        )


def test_run_carries_every_word_through_ssh_and_two_shells(ready):
    here = ready()
    words = [
        "pretrain/ViT-B_16-i21k-90ep",
        "--config.train.duration=20 epochs",
        '--config.name=it\'s "quoted" $HOME `id` \\ * & ; <é>',
        "--config.data.image_size=32x48",
        "--plugins=my_project",
        "--profile=10:15",
        "--accept=data",
    ]
    here.tpu("run", *RUN[:2], *words, *RUN[2:])
    (call,) = here.calls("ssh")
    assert call[6].startswith(
        "--command=bash tpu_worker.sh start train pretrain/ViT-B_16-i21k-90ep"
    )
    for number in range(2):
        told = here.worker(number) / "words"
        wait_for(told.exists)
        wait_for(lambda told=told: told.read_text().endswith("run\n"))
        assert told.read_text().splitlines() == ["train", *words, "--workdir=/shared/run"]
    asked = (here.cloud / "preflight").read_text().splitlines()
    assert asked == ["preflight", *words[:-2], "--topology=v5e-8"]


def test_workers_are_told_of_each_other(ready):
    here = ready()
    here.tpu("run", *RUN, "digits")
    for number in range(2):
        joined = here.worker(number) / "joined"
        wait_for(lambda joined=joined: joined.exists() and joined.read_text())
        assert joined.read_text() == f"10.0.0.2:8476 2 {number}\n"


def test_a_slice_of_one_host_is_alone(ready):
    here = ready(hosts=1)
    (here.cloud / "endpoints").write_text("t1v-n-0")
    here.tpu("run", *RUN, "digits")
    joined = here.worker(0) / "joined"
    wait_for(lambda: joined.exists() and joined.read_text())
    assert joined.read_text() == "alone 1 0\n"


def test_logs_status_stop_delete(ready):
    here = ready()
    here.tpu("run", *RUN, "digits")
    wait_for(lambda: "step 100" in (here.worker(1) / "vit_jax/run/log").read_text())
    here.forget()

    printed = here.tpu("status", *ADDRESS)
    assert printed.startswith("slice s: ready (ACTIVE, node READY HEALTHY)\n")
    assert printed.endswith("worker 0: running\nworker 1: running\n")
    request, node, workers = here.calls()
    assert request == [
        *TPUS,
        "queued-resources",
        "describe",
        "s",
        "--format=value(state.state)",
        *WHERE,
    ]
    assert node == [*TPUS, "tpu-vm", "describe", "s", "--format=value(state,health)", *WHERE]
    assert workers == ssh("all", "bash tpu_worker.sh status")

    refusal = here.tpu("delete", *ADDRESS, code=2)
    assert refusal == "tpu.sh: delete: a run is going on; launch/tpu.sh stop --name=s, or --force\n"
    following = here.start("logs", *ADDRESS, "--worker=1", "--lines=5")
    follow = ssh(1, "bash tpu_worker.sh follow 5 30")
    wait_for(lambda: follow in here.calls())
    printed = here.tpu("stop", *ADDRESS, "--grace=20")
    assert ssh("all", "bash tpu_worker.sh stop 20") in here.calls()
    assert printed == "worker 0: stopped 75\nworker 1: stopped 75\n"
    followed, _ = following.communicate(timeout=20)
    assert following.returncode == 0, followed
    assert "worker 1: step 100/300 of attempt 1\n" in followed
    assert followed.endswith("worker 1: stopped 75\n")
    assert re.search(r"worker 1: \S+Z worker 1: exit code 75\n", followed)

    here.forget()
    here.tpu("delete", *ADDRESS)
    assert here.calls()[-1] == [*TPUS, "queued-resources", "delete", "s", "--force", *WHERE]
    assert here.tpu("status", *ADDRESS).startswith("slice s: absent")


def test_a_run_goes_on_when_its_launcher_and_terminal_are_gone(ready):
    here = ready(lives=[{"runs": ["run", "0"]}])
    here.tpu("run", *RUN, "digits")
    session = wait_for(here.sessions)[0]
    assert os.getsid(session) == session  # of its own: no terminal can hang up on it
    assert here.tpu("run", *RUN, "digits").count("running already") == 2
    other = here.tpu("run", *RUN, "other", code=70)
    assert "worker 0: another run is going on: train digits --workdir=/shared/run" in other
    assert "run: worker 0: exit status 2 worker 1: exit status 2" in other


def test_the_same_command_starts_a_worker_that_was_not_reached(ready):
    here = ready(failures={"ssh1": 1})
    printed = here.tpu("run", *RUN, "digits", code=70)
    assert "tpu.sh: run: worker 1: exit status 255; the same command starts the wor" in printed
    printed = here.tpu("run", *RUN, "digits")
    assert "worker 0: running already\nworker 1: started\n" in printed


def test_a_worker_that_was_killed_says_so(ready):
    here = ready()
    here.tpu("run", *RUN, "digits")
    wait_for(lambda: len(here.sessions()) == 2)
    for session in here.sessions():
        os.killpg(session, signal.SIGKILL)
    wait_for(lambda: here.tpu("status", *ADDRESS).endswith("worker 0: killed\nworker 1: killed\n"))


# --- Mistakes, each in one line -----------------------------------------------------------------


def test_what_is_missing_or_wrong_is_one_line(world, monkeypatch):
    here = world()
    monkeypatch.chdir(here.checkout)
    for words, line in (
        (["fly"], "fly: no such command; see launch/tpu.sh --help"),
        (["create", "--slice=v5e-8"], "no name; set --name=... or VIT_JAX_NAME"),
        (["create", "--name=s"], "no project; set --project=... or VIT_JAX_PROJECT"),
        (["create", *ADDRESS], "no slice; set --slice=... or VIT_JAX_SLICE"),
        (
            ["create", *ADDRESS, "--slice=tpu7x:2x2x1", "--api=tpu"],
            "--slice=tpu7x:2x2x1: the Cloud TPU API has none; --api=compute has, and launch/gke.sh",
        ),
        (["create", *ADDRESS, "--slice=v9-8"], "--slice=v9-8: no such slice; examples: v3-32, "),
        (["create", *ADDRESS, "--slice=v4x-8"], "--slice=v4x-8: no such generation; known: v2 "),
        (
            ["create", *ADDRESS, "--slice=v5e-17"],
            "--slice=v5e-17: no such size; known: v5e-1, -4, -8, -16, -32, -64, -128, -256",
        ),
        (["create", *ADDRESS, "--slice=v5p:2x2x2"], "--slice=v5p:2x2x2: name it by its size"),
        *(
            (["create", *ADDRESS, f"--slice={shape}"], f"--slice={shape}: no such shape; name it ")
            for shape in ("v5e:2x8", "v5e:2x2x4", "v5e:16", "v6e:8x4")
        ),
        (["create", *SLICE, "--capacity=free"], "--capacity=free: must be on-demand, spot, f"),
        (["create", *SLICE, "--api=gke"], "--api=gke: must be tpu or compute"),
        (["create", *SLICE, "--zoen=z"], "--zoen=z: no such setting, or not in the form --KEY="),
        (["create", *SLICE, "--zone", "z"], "--zone: no such setting, or not in the form --KEY="),
        (
            ["setup", *SLICE, f"--wheel={__file__}"],
            f"--wheel={__file__}: no wheel (.whl); pip wheel",
        ),
        (["setup", *SLICE, "--wheel=none.whl"], "--wheel=none.whl: no such file"),
        (["setup", *SLICE, "--env-file=none"], "--env-file=none: no such file"),
        (["setup", *SLICE, "--extras=a]"], "--extras=a]: must be names such as wandb,hf"),
        (["run", *RUN, "digits", "--extras=hf"], "--extras: run does not read it; for: setup sup"),
        (
            ["run", *SLICE, "--workdir=runs/x", "digits"],
            "--workdir=runs/x: must be gs://BUCKET/DIR, or /DIR on a disk",
        ),
        (["run", *SLICE, "--workdir=gs://b", "digits"], "--workdir=gs://b: must be gs://BUCKET/"),
        (["run", *SLICE, "digits"], "no workdir; set --workdir=gs://BUCKET/DIR or VIT_JAX_WORK"),
        (["run", *RUN], "run: which config? see vit_jax list"),
        (["run", *RUN, "digits", "more"], "more: one config is enough"),
        (["run", *RUN, "digits", "--config.a"], "--config.a: needs a value, as in --config.a=V"),
        (["run", *RUN, "--config=x.py"], "--config=x.py: put the file into configs/ and name "),
        (["run", *RUN, "mine/x.py:A"], "mine/x.py:A: no worker has it; put the file into configs"),
        (
            ["run", *RUN, "digits", "--config.data.root", "launch"],
            "--config.data.root=launch: lies on this machine; workers read gs://BUCKET/DIR, or ",
        ),
        (["run", *RUN, "digits", "--config.init_from=~/code"], "--config.init_from=~/code: lies o"),
        (
            ["run", *RUN, "digits", "--config.data.exclude=setup.py"],
            "--config.data.exclude=setup.py: l",
        ),
        (["delete", *ADDRESS, "other"], "other: delete takes no config; a slice is named by --n"),
        (["run", *RUN, "digits", "--then-delete"], "--then-delete: run does not read it; for: su"),
        (["status", *ADDRESS, "--worker=1"], "--worker: status does not read it; for: logs\n"),
        (["stop", *ADDRESS, "--wait-seconds=1"], "--wait-seconds: stop does not read it; for: s"),
    ):
        printed = here.tpu(*words, code=2)
        assert printed.startswith(f"tpu.sh: {line}"), printed
        assert printed.count("\n") == 1, printed


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (
            "ERROR: (gcloud.compute.tpus.queued-resources.create) RESOURCE_EXHAUSTED: Quota limit "
            "'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0.",
            "create: RESOURCE_EXHAUSTED: Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerZone"
            "ForTPUAPI' has been exceeded. Limit: 0.; ask for more (console: IAM & Admin, ",
            78,
        ),
        (
            "ERROR: (gcloud.x) You do not currently have an active account selected.\nPlease run:",
            "create: not logged in; gcloud auth login",
            78,
        ),
        ("ERROR: (gcloud.x) UNAVAILABLE: try later", "create: UNAVAILABLE: try later", 70),
        ("Traceback\nsocket: gone", "create: socket: gone", 70),
    ],
)
def test_what_google_refuses_is_one_line_with_a_remedy(world, error, line, code):
    """And with 78 if it would be refused again."""
    here = world(failures={"queued-resources create": [error]})
    printed = here.tpu("create", *SLICE, code=code)
    assert printed.startswith(f"tpu.sh: {line}")
    assert printed.count("\n") == 1


def test_without_gcloud(world):
    here = world()
    (here.bin / "gcloud").unlink()
    printed = here.tpu("create", *SLICE, code=2)
    assert printed == (
        "tpu.sh: gcloud is not installed; see https://cloud.google.com/sdk/docs/install\n"
    )
    assert here.tpu("create", *SLICE, "--dry-run").startswith("gcloud compute tpus queued-res")


def test_setup_names_the_worker_that_fails(world):
    here = world(failures={"ssh1": 1})
    here.tpu("create", *SLICE)
    assert here.tpu("setup", *SLICE, code=70).endswith("setup: worker 1: exit status 255\n")
    (here.cloud / "offline").touch()
    printed = here.tpu("setup", *SLICE, "--python=3.12", code=70)
    assert (
        "worker 1: cannot install: error: Failed to fetch https://pypi.org/simple/uv/;" in printed
    )
    (here.cloud / "offline").unlink()
    (here.cloud / "count_chips").touch()
    printed = here.tpu("setup", *ADDRESS, "--slice=v5e-16", code=70)
    assert "worker 0: unhealthy: 16 chips were asked for, and 8 are here;" in printed


def test_a_slice_that_is_not_set_up_says_so(world):
    here = world()
    here.tpu("create", *SLICE)
    printed = here.tpu("run", *RUN, "digits", code=70)
    assert (
        "worker 0: exit status 127 worker 1: exit status 127; not set up? launch/tpu.sh se"
        in printed
    )


def test_preflight_decides(ready):
    here = ready()
    here.answer("memory per device    does not fit: 18 GiB, 2 GiB too much", 78)
    printed = here.tpu("run", *RUN, "big", code=78)
    assert "tpu.sh: preflight: does not fit: 18 GiB, 2 GiB too much; vit_jax pref" in printed
    needs = "--topology=v5e-8: needs the TPU compiler; pip install 'vit_jax[tpu]'"
    here.answer(f"vit_jax: {needs}", 2)
    printed = here.tpu("run", *RUN, "big", code=2)
    assert printed.endswith(f"tpu.sh: preflight: {needs}; --force skips preflight\n")
    assert not here.calls()  # nothing has been started
    (here.bin / "vit_jax").unlink()
    printed = here.tpu("run", *RUN, "big", code=2)
    assert printed == (
        "tpu.sh: preflight: vit_jax is not installed here; pip install '.[tpu]', or --force\n"
    )
    assert "worker 1: started" in here.tpu("run", *RUN, "big", "--force")


NUMBERS = [
    "max_restarts", "backoff_seconds", "steady_seconds", "poll_seconds", "timeout_seconds",
    "grace", "lines", "examples", "worker",
]  # fmt: skip
EVIL = "SECONDS[$(touch executed; echo 0)]"  # which bash runs wherever it expects a number


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_is_run_as_a_command(ready, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = ready(lives=[{"runs": ["70", "0"]}])
    for value in (EVIL, "-1", "08", "1e3", "1 2", "9" * 30, "1\n2"):
        if (number, value) == ("poll_seconds", "08"):
            continue  # which goes to `sleep` alone
        for words, variables in (
            ([f"--{number.replace('_', '-')}={value}"], {}),
            ([], {f"VIT_JAX_{number.upper()}": value}),
        ):
            printed = here.tpu("supervise", *RUN, *words, "digits", code=2, **variables)
            shown = f"--{number.replace('_', '-')}={value}".replace("\n", " ")
            assert printed.startswith(f"tpu.sh: {shown}: must be a "), printed
            assert printed.count("\n") == 1
    assert not (tmp_path / "executed").exists()
    assert not here.calls()


def test_no_slice_is_run_as_a_command(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = world()
    for size in (f"v5e-{EVIL}", "v5e-08", "v3:2x08", "v5e-" + "9" * 30, "v4:2x2x2x2"):
        printed = here.tpu("create", *ADDRESS, f"--slice={size}", code=2)
        assert f"--slice={size[:60]}: no such slice; examples: " in printed
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("words", [["poll"], ["clear"], ["stop"], ["health"], ["follow"]])
def test_no_number_is_run_on_a_worker(ready, words):
    here = ready()
    home = here.worker(0)
    for value in (EVIL, "08", "-1"):
        done = subprocess.run(
            ["bash", "tpu_worker.sh", *words, value], cwd=home, capture_output=True, text=True,
            env=here.environment | {"HOME": str(home)},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (
            2, f"worker 0: {value}: must be a whole number\n",
        )  # fmt: skip
    assert not (home / "executed").exists()


# --- Google that does not answer, or not as expected ---------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("queued-resources create", ["create", *SLICE]),
        ("queued-resources describe", ["status", *ADDRESS]),
        ("queued-resources delete", ["delete", *ADDRESS, "--force"]),
        ("tpu-vm scp", ["setup", *SLICE]),
        ("tpu-vm ssh", ["run", *RUN, "digits"]),
        ("tpu-vm ssh", ["stop", *ADDRESS, "--grace=1"]),
    ],
)
def test_a_command_that_hangs_is_ended(ready, command, words):
    here = ready(failures={command: [{"hang": 600}]})
    here.hasten()
    code = 0 if words[0] == "status" else 70  # which says what it could not learn
    printed = here.tpu(*words, "--timeout-seconds=1", code=code)
    seconds = 2 if words[0] == "stop" else 1
    assert f"gcloud {command} did not answer within {seconds} s (--timeout-seconds)" in printed
    wait_for(lambda: here.gone())


def test_a_project_that_cannot_be_looked_up_is_asked_for(world):
    here = world(configured="hangs")
    printed = here.tpu("create", "--name=s", "--timeout-seconds=1", code=2)
    assert printed == "tpu.sh: no project; set --project=... or VIT_JAX_PROJECT\n"
    wait_for(lambda: here.gone())


@pytest.mark.slow
@pytest.mark.parametrize("send", [os.kill, os.killpg])  # a terminal signals the group
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("create", ["create", *SLICE]),
        ("describe", ["status", *ADDRESS]),
        ("create", ["supervise", *RUN, "digits", "--force"]),
    ],
)
def test_a_signal_ends_what_hangs_at_once(world, number, send, command, words):
    here = world(failures={f"queued-resources {command}": [{"hang": 600}]})
    process = here.start(*words, start_new_session=True)
    wait_for((here.cloud / "hanging").exists)
    send(process.pid, number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130, output
    wait_for(lambda: here.gone())


def test_status_that_is_refused_says_so(ready):
    error = "ERROR: (gcloud.x) PERMISSION_DENIED: no"
    here = ready(failures={"queued-resources describe": [error]})
    printed = here.tpu("status", *ADDRESS, code=78)
    assert printed.startswith("slice s: refused (PERMISSION_DENIED: no; the account needs the ")


# --- Words ----------------------------------------------------------------------------------------


def test_every_verb_explains_itself(world):
    here = world()
    printed = here.tpu("--help")
    assert here.tpu() == printed
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", printed, re.MULTILINE)
        told = here.tpu(command, "--help")
        assert told.startswith(f"launch/tpu.sh {command} --name=NAME")
        assert "\n  --project, --zone " in told
    assert not here.calls()


def test_a_dry_run_is_the_commands(world):
    here = world()
    for command in COMMANDS:
        printed = here.tpu(
            command, *RUN, *(["digits"] if command in ("run", "supervise") else []), "--dry-run"
        )
        assert "gcloud compute tpus " in printed
        assert "Z started;" not in printed
    assert not here.calls()


def test_a_switch_may_be_off(world):
    here = world()
    switches = ("DRY_RUN", "FORCE", "THEN_DELETE")
    here.tpu("create", *SLICE, **{f"VIT_JAX_{switch}": "0" for switch in switches})
    assert here.calls("create")  # no dry run
    told = here.tpu("create", *SLICE, VIT_JAX_THEN_DELETE="no", code=2)
    assert told == "tpu.sh: VIT_JAX_THEN_DELETE=no: must be 1 or 0\n"


@pytest.mark.parametrize("command", ["run", "supervise"])
def test_a_dry_run_knows_the_configs(world, command):
    here = world()
    (here.cloud / "unknown").write_text("vit_jax: --config=digitz: no such config\n")
    told = here.tpu(command, *RUN, "digitz", "--dry-run", code=2)
    assert told == f"tpu.sh: {command}: --config=digitz: no such config\n"
    (here.bin / "vit_jax").unlink()  # it cannot ask
    assert "gcloud compute tpus " in here.tpu(command, *RUN, "digitz", "--dry-run")


def test_a_dry_run_of_supervise_is_a_plan(world):
    here = world()
    printed = here.tpu(
        "supervise", *ADDRESS, "--slice=v3-128", "--capacity=spot", "--workdir=gs://b/l16",
        "pretrain/ViT-L_16-i21k-90ep", "--config.train.duration=20 epochs", "--dry-run",
    )  # fmt: skip
    where = "--project=p --zone=z --quiet"
    command = (
        f"gcloud compute tpus tpu-vm ssh s --worker=all --command='bash tpu_worker.sh {{}}' {where}"
    )
    started = (
        r"start train pretrain/ViT-L_16-i21k-90ep --config.train.duration='\''20 epochs'\'' "
        "--workdir=gs://b/l16"
    )
    assert [line for line in printed.splitlines() if not line.startswith("#")] == [
        "vit_jax preflight pretrain/ViT-L_16-i21k-90ep --config.train.duration='20 epochs' "
        "--topology=v3-128",
        "gcloud compute tpus queued-resources create s --node-id=s --accelerator-type=v3-128 "
        f"--runtime-version=tpu-ubuntu2204-base --spot {where}",
        f"gcloud compute tpus queued-resources describe s --format='value(state.state)' {where}",
        f"gcloud compute tpus tpu-vm describe s --format='value(state,health)' {where}",
        command.format("clear 60"),
        f"tar -cf - --exclude=__pycache__ --exclude='*.so' -C {here.checkout} "
        "pyproject.toml setup.py README.md LICENSE vit_jax configs | gzip -n >./vit_jax.tgz",
        f"gcloud compute tpus tpu-vm scp ./vit_jax.tgz {here.checkout}/launch/tpu_worker.sh "
        f"{here.checkout}/launch/secrets.sh s: --worker=all {where}",
        command.format("setup tpu,gcs"),
        command.format("health 64"),
        command.format(started),
        command.format("poll 0").replace("=all", "=0"),
        command.format("status"),
        f"gcloud compute tpus queued-resources delete s --force {where}",
    ]
