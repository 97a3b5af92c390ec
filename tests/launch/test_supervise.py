"""launch/tpu.sh supervise through preemptions, failures and interruptions."""

import json
import resource
import signal
import subprocess

import pytest

import worlds
from worlds import RUN, supervisor_lines, wait_for

REMINDER = "slice s costs money until launch/tpu.sh delete --name=s --project=p --zone=z"
HOSTS = 1
QUEUED = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]


@pytest.mark.slow
def test_three_preemptions_and_an_end(world):
    here = world(
        lives=[
            {"states": QUEUED, "runs": ["taken"]},
            {"states": ["WAITING_FOR_RESOURCES", "FAILED"]},
            {"runs": ["70", "taken"], "then": "SUSPENDING"},
            {"runs": ["75", "taken"]},
            {"states": QUEUED, "runs": ["0"]},
        ]
    )
    printed = here.tpu("supervise", *RUN, "--capacity=spot", "digits", "--config.seed=7")
    said = supervisor_lines(printed)
    gone = "slice s is gone (lost, SUSPENDED)"
    expected = [
        "compiling digits for v5e-8; minutes for large models, --force skips it",
        "preflight: fits: 1 GiB of 16 GiB",
        "slice s: absent",
        "slice s: queued (WAITING_FOR_RESOURCES)",
        "slice s: queued (PROVISIONING)",
        "slice s: ready (ACTIVE, node READY HEALTHY)",
        f"{gone}; restart 1 of 10 in 0 s",
        "slice s: lost (SUSPENDED)",
        "slice s: absent",
        "slice s: queued (WAITING_FOR_RESOURCES)",
        "slice s: lost (FAILED)",
        "the request for a slice ended as FAILED; restart 2 of 10 in 0 s",
        "slice s: absent",
        "slice s: ready (ACTIVE, node READY HEALTHY)",
        "exit code 70; restart 3 of 10 in 0 s",
        "slice s: ready (ACTIVE, node READY HEALTHY)",
        "slice s is gone (lost, SUSPENDING); restart 4 of 10 in 0 s",
        "slice s: lost (SUSPENDING)",
        "slice s: absent",
        "slice s: ready (ACTIVE, node READY HEALTHY)",
        "exit code 75; restart 5 of 10 in 0 s",
        "slice s: ready (ACTIVE, node READY HEALTHY)",
        f"{gone}; restart 6 of 10 in 0 s",
        "slice s: lost (SUSPENDED)",
        "slice s: absent",
        "slice s: queued (WAITING_FOR_RESOURCES)",
        "slice s: queued (PROVISIONING)",
        "slice s: ready (ACTIVE, node READY HEALTHY)",
        "done",
        REMINDER,
    ]
    assert [line for line in said if "worker" not in line] == expected
    assert len(here.calls("create")) == 5
    assert len(here.calls("delete")) == 4
    assert all("--spot" in call for call in here.calls("create"))
    words = (here.worker(0, life=4) / "words").read_text().splitlines()
    assert words == ["train", "digits", "--config.seed=7", "--workdir=/shared/run"]
    assert "step 300/300" in printed  # of the log of worker 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "steady"),
    [("run", []), ("run", ["--steady-seconds=0"]), ("create", ["--steady-seconds=0"])],
)
def test_the_budget_ends_it(world, fails, steady):
    failures = {"queued-resources create": [LATER] * 9 if fails == "create" else []}
    here = world(lives=[{"runs": ["70"] * 9}], failures=failures)
    if fails == "run":
        here.make_ready()
    words = ["--max-restarts=2", *steady, "--then-delete", "digits"]
    printed = here.tpu("supervise", *RUN, *words, code=70)
    last = [line for line in supervisor_lines(printed) if "no more of it" in line]
    assert len(last) == 1
    assert last[0].endswith("no more of it after 2 restarts in a row (--max-restarts)")
    if fails == "run":
        assert (here.worker(0) / "attempts").read_text().count("attempt") == 3
        assert here.calls()[-1][:4] == ["compute", "tpus", "queued-resources", "delete"]


@pytest.mark.slow
def test_a_steady_run_renews_the_budget(ready):
    here = ready(lives=[{"runs": ["70", "70", "0"]}])
    script = here.checkout / "launch/tpu_supervise.sh"
    script.write_text(script.read_text().replace("RAN=$((SECONDS - began))", "RAN=5"))
    here.tpu("supervise", *RUN, "--max-restarts=1", "--steady-seconds=5", "digits")


def noting_sleeps(here):
    """Makes a `sleep` that only notes; returns how to read the whole seconds."""
    (here.bin / "sleep").unlink()
    (here.bin / "sleep").write_text('#!/bin/sh\necho "$1" >>"$CLOUD/slept"\n')
    (here.bin / "sleep").chmod(0o755)
    return lambda: [
        int(line) for line in (here.cloud / "slept").read_text().split() if line.isdigit()
    ]


@pytest.mark.slow
def test_back_off_doubles(world):
    failures = {"tpu-vm scp": [LATER] * 4}
    here = world(lives=[{"runs": ["0"]}], failures=failures)
    slept = noting_sleeps(here)
    here.tpu("supervise", *RUN, "digits", VIT_JAX_BACKOFF_SECONDS="30")
    assert slept() == [30, 60, 120, 240]


@pytest.mark.slow
def test_a_request_that_stays_lost_is_asked_for_at_growing_intervals(world):
    lost = [{"prints": "SUSPENDED\n"}] * 10
    here = world(lives=[{"runs": ["0"]}], failures={"queued-resources describe": lost})
    slept = noting_sleeps(here)
    here.tpu("supervise", *RUN, "digits", VIT_JAX_POLL_SECONDS="30")
    pauses = slept()
    assert pauses[:9] == [30, 60, 120, 240, 480, 960, 1920, 1920, 1920]
    assert set(pauses[9:]) <= {30}


@pytest.mark.slow
def test_one_worker_of_two_decides_nothing(ready):
    """gcloud may end with 0 though it has reached only some of them."""
    half = [{"prints": "worker 0: exited 0\n"}, {"prints": "worker 0: exited 0\n" * 2}]
    here = ready(hosts=2, lives=[{"runs": ["0/2"]}], failures={"tpu-vm ssh status": half})
    printed = here.tpu("supervise", *RUN, "digits", code=2)
    assert "worker 0: exited 0\nworker 1: exited 2\n" in printed


@pytest.mark.slow
def test_an_answer_of_megabytes_is_cut_and_costs_little(ready):
    failures = {
        "tpu-vm ssh poll": [
            {"prints": "worker 0: running, log 9\n" + "log x\n" * 500_000},
            "\x01\u00e9" * 500_000,  # what gcloud complains of
        ],
        "tpu-vm ssh status": [{"prints": "worker 0: exited 0\n" * 100_000}],
    }
    here = ready(lives=[{"runs": ["0"]}], failures=failures)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    printed = here.tpu("supervise", *RUN, "digits")
    assert 100_000 < len(printed) < 150_000
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "code"), [("2/70", 2), ("70/78", 78), ("71/70", 71), ("70/72", 72)]
)
def test_what_a_restart_does_not_mend_ends_it_whichever_worker_says_so(ready, outcome, code):
    here = ready(hosts=2, lives=[{"runs": [outcome]}])
    printed = here.tpu("supervise", *RUN, "digits", code=code)
    assert supervisor_lines(printed)[-2:] == [
        f"exit code {code}, which a restart does not mend; launch/tpu.sh logs --name=s",
        REMINDER,
    ]
    first, second = outcome.split("/")
    assert f"worker 0: exited {first}\nworker 1: exited {second}\n" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "noted", "code"), [("run", "words", 75), ("importing", "importing", 143)]
)
def test_stop_ends_the_supervisor_too(ready, run, noted, code):
    here = ready(lives=[{"runs": [run]}])
    process = here.start("supervise", *RUN, "digits")
    wait_for((here.worker(0) / noted).exists)
    here.tpu("stop", *RUN[:3])
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == code, printed
    assert supervisor_lines(printed)[-2:] == ["ended by launch/tpu.sh stop", REMINDER]


@pytest.mark.slow
def test_an_interruption_leaves_the_run_which_the_same_command_takes_up_again(world):
    here = world(lives=[{"runs": ["run"]}])
    process = here.start("supervise", *RUN, "digits")
    wait_for((here.worker(0) / "words").exists)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert supervisor_lines(printed)[-2:] == [
        "interrupted; the run goes on, if it had begun, and the same command takes it up again",
        REMINDER,
    ]
    assert here.tpu("status", *RUN[:3]).endswith("worker 0: running\n")

    other = here.tpu("supervise", *RUN, "another", code=2)
    assert "worker 0: another run is going on: train digits --workdir=/shared/run" in other
    here.forget()
    again = here.start("supervise", *RUN, "digits")
    wait_for(lambda: len(here.calls("ssh", "--worker=0")) > 1)  # it follows
    here.tpu("stop", *RUN[:3])
    printed, _ = again.communicate(timeout=60)
    assert again.returncode == 75, printed
    assert "worker 0: running already\n" in printed
    assert len((here.worker(0) / "attempts").read_text().split()) == 1  # it was not begun again


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_before_the_next_attempt(ready):
    here = ready(hosts=2, lives=[{"runs": ["70", "0"]}])
    # Worker 1 hangs when worker 0 has failed, and not even SIGTERM ends it.
    (here.worker(1) / "outcomes").write_text("deaf\n0\n")
    here.hasten()
    printed = here.tpu("supervise", *RUN, "digits")
    assert "worker 0: exited 70\nworker 1: running\n" in printed
    assert "exit code 137; restart 1 of 10 in 0 s" in printed
    assert supervisor_lines(printed)[-2:] == ["done", REMINDER]


def test_a_slice_that_cannot_be_reached_is_made_again(ready):
    here = ready(failures={"ssh0": 99}, lives=[{"runs": ["0"]}, {"runs": ["0"]}])
    printed = here.tpu("supervise", *RUN, "--max-restarts=1", "digits", code=70)
    assert "tpu.sh: setup: worker 0: exit status 255\n" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("life", "line"),
    [
        ({"runs": ["75"], "meets": {"status": "taken"}}, "slice s is gone (lost, SUSPENDED)"),
        (
            {"runs": ["run"], "meets": {"poll": "refused"}},
            "slice s cannot be reached: [255] Connection refused",
        ),
    ],
)
def test_a_slice_that_is_gone_or_silent_is_made_again(world, life, line):
    here = world(lives=[life, {"runs": ["0"]}])
    printed = here.tpu("supervise", *RUN, "--max-restarts=1", "digits")
    assert f"{line}; restart 1 of 1 in 0 s" in supervisor_lines(printed)


LATER = "ERROR: (gcloud.x) UNAVAILABLE: try later"
STRANGE = [{"prints": "???\n"}] * 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ({"queued-resources describe": [LATER] * 4}, "slice s: unknown (UNAVAILABLE: try later)"),
        ({"queued-resources describe": [*STRANGE, "ERROR: (gcloud.x) gone", *STRANGE]}, ""),
        (
            {
                "queued-resources describe": [{"hang": 600}, ""],
                "tpu-vm ssh": ["", "", "", "", "", {"hang": 600}],
            },
            "gcloud queued-resources describe did not answer within 2 s",
        ),
    ],
    ids=["unavailable", "strange", "hangs"],
)
def test_google_that_does_not_answer_is_asked_again(ready, failures, said):
    here = ready(failures=failures, lives=[{"runs": ["0"]}])
    printed = here.tpu("supervise", *RUN, "--timeout-seconds=2", "digits")
    assert said in printed
    assert supervisor_lines(printed)[-2:] == ["done", REMINDER]


REFUSED = "ERROR: (gcloud.x) PERMISSION_DENIED: Permission 'tpu.nodes.get' denied"
QUOTA = "ERROR: (gcloud.x) RESOURCE_EXHAUSTED: Quota limit 'TPUS' has been exceeded. Limit: 0."
ZONE = "ERROR: (gcloud.x) INVALID_ARGUMENT: location z is not valid"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "error", "line"),
    [
        ("queued-resources create", QUOTA, "create: RESOURCE_EXHAUSTED: Quota limit"),
        ("queued-resources create", ZONE, "create: INVALID_ARGUMENT: location z"),
        ("queued-resources describe", REFUSED, "PERMISSION_DENIED: Permission"),
        ("tpu-vm describe", REFUSED, "PERMISSION_DENIED: Permission"),
        ("tpu-vm scp", REFUSED, "setup: PERMISSION_DENIED: Permission"),
        ("tpu-vm ssh", REFUSED, "PERMISSION_DENIED: Permission"),
    ],
)
def test_what_is_refused_for_good_ends_it_at_once(world, command, error, line):
    here = world(failures={command: [error] * 50})
    printed = here.tpu("supervise", *RUN, "digits", code=78)
    last = printed.splitlines()[-1]
    assert last.startswith("tpu.sh: ")
    assert line in last
    assert len(here.calls(command.split()[1])) <= 3  # ssh: a look, clear, setup
    assert not here.calls("delete")  # nobody knows what became of the slice
    assert supervisor_lines(printed)[-1] == REMINDER


def test_a_permission_taken_away_while_it_runs_ends_it(ready):
    here = ready(lives=[{"runs": ["run"]}])
    process = here.start("supervise", *RUN, "digits")
    wait_for((here.worker(0) / "words").exists)
    state = json.loads((here.cloud / "state.json").read_text())
    state["failures"] = {"tpu-vm ssh": [REFUSED] * 9}
    (here.cloud / "state.json").write_text(json.dumps(state))
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 78, printed
    assert not here.calls("delete")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("", "the request is ''"),
        ("ACTIVE\nACTIVE", "the request is 'ACTIVE ACTIVE'"),
        ("<html>502</html>", "the request is '<html>502</html>'"),
        (None, "ACTIVE, its node 'HIDDEN UNKNOWN'"),
    ],
)
def test_a_state_that_is_not_known_is_polled_so_often(world, state, shown):
    node = [{"prints": "HIDDEN\tUNKNOWN\n"}] * (99 * (state is None))
    lives = [{}] if state is None else [{"states": [state]}]
    here = world(lives=lives, failures={"tpu-vm describe": node})
    printed = here.tpu("supervise", *RUN, "digits", code=70)
    assert printed.splitlines()[-1] == (
        f"tpu.sh: slice s: after 20 polls still a state that is not known: {shown}"
    )
    if state is not None:
        assert len(here.calls("describe")) == 21  # the first one: there is no slice yet
    assert not here.calls("delete")


@pytest.mark.slow
def test_half_an_answer_of_a_worker_decides_nothing(ready):
    """An empty one was once the end of the run: exit code 0."""
    here = ready(hosts=2, lives=[{"runs": ["0/78"]}])
    script = here.checkout / "launch/tpu_worker.sh"
    for home in (here.worker(0), here.worker(1)):
        # The first two answers about a run that has ended are cut short.
        broken = script.read_text().replace(
            "status() {\n",
            'status() {\n  echo x >>"$RUN/asked"\n'
            '  case $(wc -l <"$RUN/asked") in\n'
            "    1) return ;;\n"
            '    2) echo "worker 0: exi" && return ;;\n'
            "  esac\n",
        )
        (home / "tpu_worker.sh").write_text(broken)
    script.write_text(broken)
    printed = here.tpu("supervise", *RUN, "digits", code=78)
    assert "worker 0: exited 0\nworker 1: exited 78\n" in printed


@pytest.mark.slow
@pytest.mark.parametrize("garbage", ["", "worker 0: runn", "{}", "worker 0: running, log 3x\n"])
def test_garbage_from_a_worker_is_a_miss(ready, garbage):
    here = ready(lives=[{"runs": ["0"]}])
    # A look, clear, scp, setup, health, start; then polls.
    fine = ["", "", "", "", ""]
    failures = {"tpu-vm ssh": [*fine, {"prints": garbage}, {"prints": garbage}]}
    state = json.loads((here.cloud / "state.json").read_text())
    (here.cloud / "state.json").write_text(json.dumps(state | {"failures": failures}))
    printed = here.tpu("supervise", *RUN, "digits")
    assert supervisor_lines(printed)[-2:] == ["done", REMINDER]
    assert not here.calls("delete")


@pytest.mark.slow
def test_a_slice_that_cannot_be_given_back_is_tried_again(ready):
    here = ready(
        lives=[{"runs": ["0"]}],
        failures={"queued-resources delete": ["ERROR: (gcloud.x) UNAVAILABLE: later"] * 2},
    )
    printed = here.tpu("supervise", *RUN, "--then-delete", "digits")
    assert supervisor_lines(printed)[-2:] == ["delete: UNAVAILABLE: later; again in 0 s"] * 2
    assert len(here.calls("delete")) == 3


def test_the_launchers_know_what_no_exit_code_means():
    script = f"source {worlds.ROOT}/launch/exits.sh; worst; worst 0 0"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout == "70\n0\n"
