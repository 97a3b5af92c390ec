"""A supervised run whose gcloud fails in each of its commands: nothing waits for ever."""

import itertools

import pytest

from worlds import RUN, SLICE

HOSTS = 1

COMMANDS = (
    "queued-resources create", "queued-resources describe", "tpu-vm describe", "tpu-vm scp",
    "tpu-vm ssh clear", "tpu-vm ssh setup", "tpu-vm ssh health", "tpu-vm ssh start",
    "tpu-vm ssh poll", "tpu-vm ssh status",
)  # fmt: skip
# These are asked before anybody knows whether there is a run: their failure is none.
UNHEARD = {"tpu-vm ssh clear", "tpu-vm ssh poll"}
# Commands of which half the output is enough, or any.
HALF_IS_ENOUGH = set(COMMANDS) - {"queued-resources describe", "tpu-vm ssh status"}
ANY_IS_ENOUGH = {"tpu-vm ssh health"}
NOISE = "\x1b[31m\u2026{}<html>502</html>\0" * 99
# What gcloud does, and whether it would do so again: then the run ends with 78, at once.
FAULTS = {
    "hangs": ({"hang": 600}, False),
    "hangs, deaf": ({"hang": 600, "deaf": True}, False),
    "half": ("HALF", False),
    "garbage": ({"prints": NOISE}, False),
    "garbage, failing": (f"{NOISE}\n{NOISE}", False),
    "crashes": ("Traceback (most recent call last):\nsocket: gone", False),
    "unavailable": ("ERROR: (gcloud.x) UNAVAILABLE: try later", False),
    "no capacity": ("ERROR: (gcloud.x) RESOURCE_EXHAUSTED: There is no more capacity", False),
    "too often": (
        "ERROR: (gcloud.x) RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Requests' and "
        "limit 'Requests per minute'", False,
    ),
    "quota": ("ERROR: (gcloud.x) RESOURCE_EXHAUSTED: Quota limit 'T' has been exceeded", True),
    "denied": ("ERROR: (gcloud.x) PERMISSION_DENIED: no", True),
    "logged out": ("ERROR: (gcloud.x) Reauthentication failed. Please run gcloud auth login", True),
}  # fmt: skip
# Pairs that the fast tests have; the long ones have all.
FEW = {
    ("queued-resources create", "hangs"), ("queued-resources describe", "too often"),
    ("tpu-vm describe", "half"), ("tpu-vm scp", "crashes"), ("tpu-vm ssh poll", "garbage"),
    ("tpu-vm ssh status", "denied"), ("tpu-vm ssh status", "garbage, failing"),
}  # fmt: skip


def supervise(here, code, seconds):
    here.hasten()
    words = ["supervise", *RUN, "--max-restarts=2", f"--timeout-seconds={seconds}", "digits"]
    return here.tpu(*words, code=code)


ALL = [
    pytest.param(*pair, marks=() if pair in FEW else pytest.mark.long)
    for pair in itertools.product(COMMANDS, FAULTS)
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "fault"), ALL)
def test_once(world, command, fault):
    """The run finishes, or ends with 78 where Google would refuse again."""
    what, permanent = FAULTS[fault]
    here = world(failures={command: [what]}, lives=[{"runs": ["0"]}] * 3)
    if command != "queued-resources create":
        here.make_ready()
    permanent = permanent and command not in UNHEARD
    printed = supervise(here, 78 if permanent else 0, seconds=2)
    assert ("done" in printed) != permanent
    if fault != "garbage":  # what gcloud prints itself is passed on
        assert max(map(len, printed.splitlines())) < 700
        assert printed.replace("\n", "").isprintable()
    assert not permanent or not here.calls("delete")


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", ["hangs", "half", "garbage", "unavailable", "denied"])
def test_always(world, command, fault):
    """It gives up, with 70 or 78, after a limited number of calls."""
    what, permanent = FAULTS[fault]
    here = world(failures={command: [what] * 999}, lives=[{"runs": ["0"]}] * 30)
    harmless = (
        command == "tpu-vm ssh clear"
        or (fault == "half" and command in HALF_IS_ENOUGH)
        or (fault == "garbage" and command in ANY_IS_ENOUGH)
    )
    supervise(here, 0 if harmless else 78 if permanent else 70, seconds=1)
    assert len(here.calls()) < 200


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["clear", "setup", "health", "start"])
def test_a_slice_taken_in_each_state_is_made_again(world, verb):
    lives = [{"runs": ["run"], "meets": {verb: "taken"}}, {"runs": ["0"]}]
    here = world(lives=lives)
    printed = here.tpu("supervise", *RUN, "--max-restarts=1", "digits")
    assert len(here.calls("create")) == 2, printed
    assert len(here.calls("delete")) == 1


def test_a_request_that_vanishes_is_not_made_for_ever(world):
    """It was once, without a pause."""
    gone = "ERROR: (gcloud.x) NOT_FOUND: no such resource"
    here = world(failures={"queued-resources describe": [gone] * 99})
    printed = here.tpu("supervise", *RUN, "--max-restarts=1", "digits", code=70)
    assert "restart 1 of 1" in printed
    assert len(here.calls("create")) <= 2


def test_a_queue_that_never_ends_is_left(world):
    here = world(lives=[{"states": ["WAITING_FOR_RESOURCES"]}])
    printed = here.tpu("supervise", *RUN, "--wait-seconds=0", "digits", code=70)
    last = printed.splitlines()[-1]
    assert last == "tpu.sh: slice s: none that can be used within 0 s (--wait-seconds)"
    assert not here.calls("delete")


@pytest.mark.slow
def test_a_slice_that_somebody_has_deleted_is_given_back(ready):
    gone = "ERROR: (gcloud.x) NOT_FOUND: no such resource"
    here = ready(lives=[{"runs": ["0"]}], failures={"queued-resources delete": [gone]})
    here.tpu("supervise", *RUN, "--then-delete", "digits")
    assert len(here.calls("delete")) == 1


def test_logs_of_a_connection_that_is_silent_end(ready):
    here = ready(failures={"tpu-vm ssh follow": [{"hang": 600}]})
    printed = here.tpu("logs", *SLICE[:3], "--timeout-seconds=1", code=70)
    assert printed == "tpu.sh: logs: gcloud was silent for 1 s (--timeout-seconds)\n"


@pytest.mark.slow
def test_logs_of_a_run_that_is_silent_go_on(ready):
    here = ready()
    here.tpu("run", *RUN, "digits")
    following = here.start("logs", *SLICE[:3], "--timeout-seconds=4")
    with pytest.raises(Exception, match="timed out"):
        following.communicate(timeout=10)
    here.tpu("stop", *SLICE[:3])
    printed, _ = following.communicate(timeout=20)
    assert following.returncode == 0, printed
    assert "\n\n" not in printed
    assert printed.endswith("worker 0: stopped 75\n")


# --- Secrets --------------------------------------------------------------------------------------

SECRETS = {"HF_TOKEN": "hf_planted0123456789", "WANDB_API_KEY": "planted1abcdef0123456789"}
# Ways to carry a secret, as a launcher may have to print them.
ADDRESS = "https://me:planted2@host/x.npz?X-Goog-Signature=planted3&token=planted4"


def test_no_secret_reaches_a_log(world):
    error = f"ERROR: (gcloud.x) UNAVAILABLE: {ADDRESS} ya29.planted5abcdef {SECRETS['HF_TOKEN']}"
    here = world(lives=[{"runs": ["70", "0"]}], failures={"tpu-vm scp": [error]})
    words = ["digits", f"--config.init_from={ADDRESS}", f"--config.name={SECRETS['WANDB_API_KEY']}"]
    flags = f"--create-flags=--labels=a={SECRETS['HF_TOKEN']}"
    printed = here.tpu("supervise", *RUN, *words, flags, **SECRETS)
    printed += here.tpu("supervise", *RUN, *words, flags, "--dry-run", **SECRETS)
    log = here.worker(0) / "vit_jax/run/log"
    assert "restart 1 of 10" in printed  # the error was told
    assert "vit_jax train digits" in log.read_text()
    for text in (printed, log.read_text()):
        assert "planted" not in text
    told = (here.worker(0) / "words").read_text()  # the run has what it needs
    assert ADDRESS in told
    assert oct((log.parent / "command").stat().st_mode & 0o777) == "0o600"
