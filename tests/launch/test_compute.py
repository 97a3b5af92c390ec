"""launch/tpu.sh with --api=compute: a managed instance group of Compute Engine as the slice.

What both APIs have in common is tested in test_tpu_script.py and test_supervise.py.
"""

import re
import signal

import pytest

from worlds import ADDRESS, supervisor_lines, wait_for

SLICE = [*ADDRESS, "--api=compute", "--slice=v6e-8"]  # two VMs of four chips
RUN = [*SLICE, "--workdir=/shared/run"]
WHERE = ["--project=p", "--quiet"]
GROUP = ["compute", "instance-groups", "managed"]
REMINDER = (
    "slice s costs money until launch/tpu.sh delete --name=s --api=compute --project=p --zone=z"
)
IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
STATE = (
    "--format=csv[no-heading](targetSize,status.appliedAcceleratorTopologies[0].state,"
    "status.bulkInstanceOperation.lastProgressCheck.error.errors[0].code,"
    "status.bulkInstanceOperation.lastProgressCheck.error.errors[0].message)"
)
NAMES = "--format=csv[no-heading](instance.basename(),currentAction,instanceStatus)"


# --- One command line after another -------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice_", "hosts", "machine", "topology", "image"),
    [
        ("v6e-1", 1, "ct6e-standard-1t", None, IMAGE),
        ("v6e-4", 1, "ct6e-standard-4t", None, IMAGE),
        ("v6e-32", 8, "ct6e-standard-4t", "4x8", IMAGE),
        ("v6e:4x4", 4, "ct6e-standard-4t", "4x4", IMAGE),
        ("v5p:2x2x4", 4, "ct5p-hightpu-4t", "2x2x4", IMAGE),
        ("tpu7x:2x2x1", 1, "tpu7x-standard-4t", None, "ubuntu-accel-2404-amd64-tpu-tpu7x"),
        ("tpu7x:2x2x2", 2, "tpu7x-standard-4t", "2x2x2", "ubuntu-accel-2404-amd64-tpu-tpu7x"),
    ],
)
def test_create(world, slice_, hosts, machine, topology, image):
    here = world(hosts=hosts)
    api = [] if slice_.startswith("tpu7x") else ["--api=compute"]
    here.tpu("create", *ADDRESS, *api, f"--slice={slice_}")
    *policies, template, group = here.calls()
    policy = ["--workload-policy=projects/p/regions/z/resourcePolicies/s"] if topology else []
    made = ["compute", "resource-policies", "create", "workload-policy", "s",
            "--type=HIGH_THROUGHPUT", f"--accelerator-topology={topology}", "--region=z",
            *WHERE]  # fmt: skip
    assert policies == ([made] if topology else [])
    assert template == [
        "compute", "instance-templates", "create", "s", f"--machine-type={machine}",
        f"--image-family={image}", "--image-project=ubuntu-os-accelerator-images",
        "--boot-disk-size=100GB", "--maintenance-policy=TERMINATE", "--scopes=cloud-platform",
        *WHERE,
    ]  # fmt: skip
    assert group == [
        *GROUP, "create", "s", f"--size={hosts}", "--template=s", *policy,
        "--target-size-policy-mode=bulk", "--default-action-on-vm-failure=do-nothing",
        "--zone=z", *WHERE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            ["--capacity=spot", "--runtime=mine", "--create-flags=--network=n --service-account=a"],
            ["--provisioning-model=SPOT", "--instance-termination-action=STOP",
             "--image-family=mine", "--network=n", "--service-account=a"],
        ),
        (
            ["--capacity=flex-start"],
            ["--provisioning-model=FLEX_START", "--max-run-duration=7d",
             "--instance-termination-action=DELETE", "--reservation-affinity=none"],
        ),
        (
            ["--capacity=reserved", "--create-flags=--reservation=mine"],
            ["--provisioning-model=RESERVATION_BOUND", "--reservation-affinity=specific",
             "--reservation=mine"],
        ),
    ],
)  # fmt: skip
def test_the_capacity_stands_in_the_template(world, words, flags):
    here = world()
    here.tpu("create", *SLICE, *words)
    assert here.calls("instance-templates", *flags)


def test_what_an_earlier_request_has_left_is_replaced(world):
    here = world(failures={"instance-groups managed create": ["ERROR: (gcloud.x) UNAVAILABLE: l"]})
    here.tpu("create", *SLICE, code=70)
    here.forget()
    here.tpu("create", *SLICE)
    policy, template = ["compute", "resource-policies"], ["compute", "instance-templates"]
    assert [call[:3] for call in here.calls()] == [
        [*policy, "create"], [*policy, "delete"], [*policy, "create"],
        [*template, "create"], [*template, "delete"], [*template, "create"],
        GROUP,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--slice=v5e-16"], "--slice=v5e-16: Compute Engine has v5p, v6e and tpu7x; --api=tpu"),
        (["--slice=v6e-12"], "--slice=v6e-12: no such size; known: v6e-1, -4, -8, ... -256"),
        (["--slice=v6e-512"], "--slice=v6e-512: no such size; known: v6e-1, -4, -8, ... -256"),
        (["--slice=v5p-8"], "--slice=v5p-8: name it by its chips along each axis, such as v6e:4"),
        (["--slice=v6e:2x2x1"], "--slice=v6e:2x2x1: name it by its chips along each axis"),
        (["--slice=v5p:2x2"], "--slice=v5p:2x2: chips along two axes for v6e, and three for v5p"),
        (["--slice=v6e:1x2"], "--slice=v6e:1x2: hosts have 4 chips, or the only one"),
        (["--capacity=reserved"], "--capacity=reserved: name the reservation; --create-flags=--r"),
        (["--capacity=free"], "--capacity=free: must be on-demand, spot, flex-start or reserved"),
        (["--name=S_1"], "--name=S_1: must be at most 54 small letters, digits and dashes"),
    ],
)
def test_a_mistake_is_one_line(world, words, line):
    here = world()
    printed = here.tpu("create", *SLICE, *words, code=2)
    assert printed.startswith(f"tpu.sh: {line}")
    assert printed.count("\n") == 1
    assert not here.calls()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            "Could not fetch resource:\n - Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0",
            "create: Could not fetch resource: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0; "
            "ask for more (console: IAM & Admin, Quotas; each API has its own)",
        ),
        (
            "Could not fetch resource:\n - Compute Engine API has not been used in project 1",
            "create: Compute Engine API is off; gcloud services enable compute.googleapis.com "
            "--project=p",
        ),
        (
            "unrecognized arguments:\n \n --target-size-policy-mode flag is available in one or "
            "more alternate release tracks. Try:",
            "create: unrecognized arguments:; this gcloud is too old; gcloud components update",
        ),
    ],
)
def test_what_google_refuses_is_one_line_with_a_remedy(world, error, line):
    here = world(failures={"instance-templates create": [f"ERROR: (gcloud.x) {error}"]})
    printed = here.tpu("create", *SLICE, code=78)
    assert printed.startswith(f"tpu.sh: {line}")
    assert printed.count("\n") == 1


@pytest.mark.slow
def test_setup_and_run_reach_every_vm(world):
    here = world()
    here.tpu("create", *SLICE)
    here.forget()
    (here.cloud / "count_chips").touch()
    (here.cloud / "endpoints").unlink()  # nothing is asked of the metadata server
    assert "worker 0: 2 hosts, 8 chips (TPU v5 lite)" in here.tpu("setup", *SLICE)
    for number in range(2):
        (here.worker(number) / "number").unlink()
        (copy,) = here.calls("scp", f"s-{number}w:")
        assert copy[-4:] == ["--scp-flag=-oConnectionAttempts=60", "--zone=z", *WHERE]
        (health,) = [call for call in here.calls("ssh", f"s-{number}w") if "health" in call[3]]
        assert health == [
            "compute", "ssh", f"s-{number}w", f"--command=VIT_JAX_WORKER={number} "
            "VIT_JAX_WORKERS=s-0w,s-1w bash tpu_worker.sh health 8", "--zone=z", *WHERE,
        ]  # fmt: skip
    printed = here.tpu("run", *RUN, "digits", "--config.name=a 'b' $HOME")
    assert sorted(re.findall("worker .*", printed)) == ["worker 0: started", "worker 1: started"]
    for number in range(2):
        joined, words = here.worker(number) / "joined", here.worker(number) / "words"
        wait_for(lambda words=words: words.exists() and words.read_text().endswith("run\n"))
        assert "--config.name=a 'b' $HOME\n" in words.read_text()
        wait_for(lambda joined=joined: joined.exists() and joined.read_text())
        assert joined.read_text() == f"s-0w:8476 2 {number}\n"


@pytest.mark.slow
def test_status_logs_stop_delete(world):
    here = world()
    here.tpu("create", *SLICE)
    here.tpu("setup", *SLICE)
    here.tpu("run", *RUN, "digits")
    wait_for(lambda: "step 100" in (here.worker(1) / "vit_jax/run/log").read_text())
    here.forget()
    address = SLICE[:-1]
    printed = here.tpu("status", *address)
    assert printed.startswith("slice s: ready (2 of 2 VMs: RUNNING)\n")
    assert sorted(printed.splitlines()[1:]) == ["worker 0: running", "worker 1: running"]
    assert here.calls()[:2] == [
        [*GROUP, "describe", "s", STATE, "--zone=z", *WHERE],
        [*GROUP, "list-instances", "s", "--sort-by=instance", NAMES, "--zone=z", *WHERE],
    ]
    assert "delete: a run is going on" in here.tpu("delete", *address, code=2)
    following = here.start("logs", *address, "--worker=all", "--lines=5")
    wait_for(lambda: len([call for call in here.calls("ssh") if "follow" in call[3]]) == 2)
    printed = here.tpu("stop", *address, "--grace=20")
    assert sorted(printed.splitlines()) == ["worker 0: stopped 75", "worker 1: stopped 75"]
    followed, _ = following.communicate(timeout=20)
    assert following.returncode == 0, followed
    assert "worker 0: step 100/300 of attempt 1\n" in followed
    assert "worker 1: step 100/300 of attempt 1\n" in followed

    here.tpu("delete", *address)
    assert [call[1] for call in here.calls("delete")] == [
        "instance-groups", "instance-templates", "resource-policies",
    ]  # fmt: skip
    assert here.tpu("status", *address).startswith("slice s: absent")
    printed = here.tpu("delete", *address, code=70)
    assert printed.startswith("tpu.sh: delete: Could not fetch resource: The resource 'projects/p")
    assert here.tpu("stop", *address, code=70).startswith("tpu.sh: stop: Could not fetch resource")


@pytest.mark.parametrize(
    ("life", "state"),
    [
        ({"states": ["CREATING,"]}, "queued (2 of 2 VMs: CREATING)"),
        ({"states": ["CREATING,STAGING"]}, "queued (2 of 2 VMs: CREATING STAGING)"),
        ({"listed": 0}, "queued (0 of 2 VMs)"),
        ({"topology": "ACTIVE"}, "ready (2 of 2 VMs: RUNNING, topology ACTIVE)"),
        ({"topology": "ACTIVATING"}, "queued (2 of 2 VMs: RUNNING, topology ACTIVATING)"),
        ({"topology": "FAILED"}, "lost (2 of 2 VMs: RUNNING, topology FAILED)"),
        ({"topology": "ODD"}, "strange (2 of 2 VMs: RUNNING, topology ODD)"),
        ({"states": ["NONE,TERMINATED"]}, "lost (2 of 2 VMs: TERMINATED)"),
        ({"states": ["DELETING,RUNNING"]}, "lost (2 of 2 VMs: DELETING RUNNING)"),
        ({"states": ["NONE,"]}, "lost (2 of 2 VMs: NONE)"),
        ({"listed": 1}, "lost (1 of 2 VMs: RUNNING)"),
        ({"size": 0, "listed": 0}, "lost (0 of 0 VMs)"),
        ({"states": ["NONE,ODD"]}, "strange (2 of 2 VMs: ODD)"),
        ({"size": "<html>"}, "strange (the group is '<html>,,,')"),
        (
            {"states": ["CREATING,"], "why": 'ZONE_RESOURCE_POOL_EXHAUSTED,"none, now"'},
            'queued (ZONE_RESOURCE_POOL_EXHAUSTED: "none, now")',
        ),
    ],
)
def test_the_state_of_a_group(ready, life, state):
    here = ready(lives=[{"runs": ["run"]} | life])
    assert here.tpu("status", *SLICE).startswith(f"slice s: {state}\n")


def test_a_quota_that_keeps_the_group_waiting_is_refused(ready):
    life = {"states": ["CREATING,"], "why": "QUOTA_EXCEEDED,Quota 'T' exceeded."}
    here = ready(lives=[life | {"runs": ["0"]}])
    printed = here.tpu("supervise", *RUN, "digits", code=78)
    assert "QUOTA_EXCEEDED: Quota 'T' exceeded.; ask for more" in printed.splitlines()[-1]
    assert not here.calls("delete")


# --- All VMs --------------------------------------------------------------------------------------


def test_the_exit_codes_of_all_vms_count(ready):
    here = ready()
    (here.cloud / "refused1").touch()
    printed = here.tpu("run", *RUN, "digits", code=70)
    assert "worker 0: started\n" in printed
    assert "tpu.sh: run: worker 1: exit status 255; the same command starts the wor" in printed
    (here.cloud / "refused1").unlink()
    other = here.tpu("run", *RUN, "other", code=70)
    assert "worker 0: another run is going on: train digits --workdir=/shared/run" in other
    assert "run: worker 0: exit status 2" in other
    assert here.tpu("logs", *SLICE, "--worker=2", code=70) == (
        "tpu.sh: logs: slice s has no worker 2\n"
    )


def test_what_google_refuses_of_one_vm_is_told(ready):
    error = "ERROR: (gcloud.compute.ssh) PERMISSION_DENIED: no"
    here = ready(failures={"ssh": [error] * 9})
    printed = here.tpu("run", *RUN, "digits", code=78)
    assert printed.splitlines()[-1].startswith("tpu.sh: run: PERMISSION_DENIED: no; the account ")


@pytest.mark.parametrize("command", ["instance-groups managed describe", "ssh"])
def test_a_signal_ends_what_hangs_on_every_vm(ready, command):
    here = ready(failures={command: [{"hang": 600}] * 2})
    process = here.start("stop", *SLICE)
    wait_for((here.cloud / "hanging").exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130, output
    wait_for(lambda: here.gone())


def test_a_vm_that_hangs_is_given_up(ready):
    here = ready(failures={"ssh": [{"hang": 600}]})
    printed = here.tpu("stop", *SLICE, "--grace=0", "--timeout-seconds=1", code=70)
    assert re.search(r"gcloud ssh s-[01]w did not answer within 1 s", printed)
    wait_for(lambda: here.gone())


# --- supervise -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_preemptions_and_an_end(world):
    waits = ["CREATING,", "CREATING,PROVISIONING", "NONE,RUNNING"]
    here = world(
        lives=[
            {"states": waits, "runs": ["taken"], "topology": "ACTIVE"},
            {"states": ["NONE,STOPPED"]},
            {"runs": ["70", "taken"], "then": "NONE,STOPPING"},
            {"states": waits, "runs": ["0"]},
        ]
    )
    printed = here.tpu("supervise", *RUN, "--capacity=spot", "digits", "--config.seed=7")
    gone = "slice s is gone (lost, 2 of 2 VMs: RUNNING, {})"
    restart = "restart {} of 10 in 0 s"
    assert [line for line in supervisor_lines(printed) if "worker" not in line] == [
        "compiling digits for v6e-8; minutes for large models, --force skips it",
        "preflight: fits: 1 GiB of 16 GiB",
        "slice s: absent",
        "slice s: queued (2 of 2 VMs: CREATING, topology ACTIVE)",
        "slice s: queued (2 of 2 VMs: CREATING PROVISIONING, topology ACTIVE)",
        "slice s: ready (2 of 2 VMs: RUNNING, topology ACTIVE)",
        f"{gone.format('TERMINATED, topology ACTIVE')}; {restart.format(1)}",
        "slice s: lost (2 of 2 VMs: RUNNING, TERMINATED, topology ACTIVE)",
        "slice s: absent",
        "slice s: lost (2 of 2 VMs: STOPPED)",
        f"the request for a slice ended as 2 of 2 VMs: STOPPED; {restart.format(2)}",
        "slice s: absent",
        "slice s: ready (2 of 2 VMs: RUNNING)",
        f"exit code 70; {restart.format(3)}",
        "slice s: ready (2 of 2 VMs: RUNNING)",
        f"{gone.format('STOPPING')}; {restart.format(4)}",
        "slice s: lost (2 of 2 VMs: RUNNING, STOPPING)",
        "slice s: absent",
        "slice s: queued (2 of 2 VMs: CREATING)",
        "slice s: queued (2 of 2 VMs: CREATING PROVISIONING)",
        "slice s: ready (2 of 2 VMs: RUNNING)",
        "done",
        REMINDER,
    ]
    assert len(here.calls("managed", "create")) == 4
    assert len(here.calls("managed", "delete")) == 3
    assert len(here.calls("instance-templates", "delete")) == 3
    words = (here.worker(1, life=3) / "words").read_text().splitlines()
    assert words == ["train", "digits", "--config.seed=7", "--workdir=/shared/run"]
    assert "step 300/300" in printed


@pytest.mark.slow
def test_vms_that_are_new_are_set_up(ready):
    """Compute Engine has made them again, in the group that was there."""
    states = [*["NONE,RUNNING"] * 10, "CREATING,", "NONE,RUNNING"]
    here = ready(lives=[{"runs": ["70", "0"], "states": states}])
    printed = here.tpu("supervise", *RUN, "digits")
    assert (
        printed.count("worker 0: ready, as installed before") + printed.count("worker 0: installed")
        == 2
    )
    assert supervisor_lines(printed)[-2:] == ["done", REMINDER]


COMMANDS = (
    "resource-policies create workload-policy", "instance-templates create",
    "instance-groups managed create", "instance-groups managed describe",
    "instance-groups managed list-instances", "scp", "ssh",
)  # fmt: skip
FAULTS = {
    "hangs": ({"hang": 600}, False),
    "garbage": ({"prints": "\x1b[31m\u2026{}<html>502</html>\0" * 99}, False),
    "crashes": ("Traceback (most recent call last):\nsocket: gone", False),
    "unavailable": ("ERROR: (gcloud.x) UNAVAILABLE: try later", False),
    "denied": ("ERROR: (gcloud.x) Required 'compute.x.y' permission for 'z'", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_once(world, command, fault):
    """The run finishes, or ends with 78 where Google would refuse again."""
    what, permanent = FAULTS[fault]
    here = world(failures={command: [what]}, lives=[{"runs": ["0"] * 3}] * 3)
    here.hasten()
    if not command.endswith("create") and "policy" not in command:
        here.make_ready()
    permanent = permanent and command != "ssh"  # the first is a look whether there is a run
    printed = here.tpu(
        "supervise", *RUN, "--max-restarts=2", "--timeout-seconds=6", "digits",
        code=78 if permanent else 0,
    )  # fmt: skip
    assert ("done" in printed) != permanent


# --- Words ----------------------------------------------------------------------------------------


def test_a_dry_run_of_supervise_is_a_plan(world):
    here = world()
    asked = here.tpu("logs", *ADDRESS, "--api=compute", "--worker=3", "--dry-run")
    assert asked.startswith("gcloud compute ssh s-3 --command='VIT_JAX_WORKER=3 ")
    printed = here.tpu(
        "supervise", *ADDRESS, "--slice=tpu7x:2x2x2", "--workdir=gs://b/l16", "big", "--dry-run"
    )
    where, quote = "--project=p --quiet", "='"
    on = (
        "gcloud compute ssh s-0 --command='VIT_JAX_WORKER=0 VIT_JAX_WORKERS=s-0,... "
        f"bash tpu_worker.sh {{}}' --zone=z {where}"
    )
    assert [line for line in printed.splitlines() if not line.startswith("#")] == [
        "vit_jax preflight big --topology=tpu7x:2x2x2",
        "gcloud compute resource-policies create workload-policy s --type=HIGH_THROUGHPUT "
        f"--accelerator-topology=2x2x2 --region=z {where}",
        "gcloud compute instance-templates create s --machine-type=tpu7x-standard-4t "
        "--image-family=ubuntu-accel-2404-amd64-tpu-tpu7x "
        "--image-project=ubuntu-os-accelerator-images --boot-disk-size=100GB "
        f"--maintenance-policy=TERMINATE --scopes=cloud-platform {where}",
        "gcloud compute instance-groups managed create s --size=2 --template=s "
        "--workload-policy=projects/p/regions/z/resourcePolicies/s --target-size-policy-mode=bulk "
        f"--default-action-on-vm-failure=do-nothing --zone=z {where}",
        "gcloud compute instance-groups managed describe s "
        f"{STATE.replace('=', quote, 1)}' --zone=z {where}",
        "gcloud compute instance-groups managed list-instances s --sort-by=instance "
        f"{NAMES.replace('=', quote, 1)}' --zone=z {where}",
        on.format("clear 60"),
        f"tar -cf - --exclude=__pycache__ --exclude='*.so' -C {here.checkout} "
        "pyproject.toml setup.py README.md LICENSE vit_jax configs | gzip -n >./vit_jax.tgz",
        f"gcloud compute scp ./vit_jax.tgz {here.checkout}/launch/tpu_worker.sh "
        f"{here.checkout}/launch/secrets.sh s-0: "
        f"--scp-flag=-oConnectionAttempts=60 --zone=z {where}",
        on.format("setup tpu,gcs"),
        on.format("health 8"),
        on.format("start train big --workdir=gs://b/l16"),
        on.format("poll 0"),
        on.format("status"),
        f"gcloud compute instance-groups managed delete s --zone=z {where}",
        f"gcloud compute instance-templates delete s {where}",
        f"gcloud compute resource-policies delete s --region=z {where}",
    ]
    assert not here.calls()
