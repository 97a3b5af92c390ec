"""Stands in for gcloud: notes its arguments, plays the slices of scenario.json one by one.

Workers are folders, and what ssh carries is run there by a shell, as the real one does.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

CLOUD = pathlib.Path(os.environ["CLOUD"])
SCENARIO = json.loads((CLOUD / "scenario.json").read_text())
STATE = CLOUD / "state.json"
# Flags that `gcloud compute tpus` has, as of version 528: those that the launcher may use.
WIDE = {"project", "zone", "quiet"}
FLAGS = {
    "queued-resources create": WIDE
    | {"node-id", "accelerator-type", "type", "topology", "runtime-version", "spot", "reserved"}
    | {"service-account", "network", "subnetwork", "internal-ips", "labels", "tags"},
    "queued-resources describe": WIDE | {"format"},
    "queued-resources delete": WIDE | {"force", "async"},
    "tpu-vm describe": WIDE | {"format"},
    "tpu-vm scp": WIDE | {"worker", "internal-ip"},
    "tpu-vm ssh": WIDE | {"worker", "internal-ip", "command"},
}


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def misbehave(hang=0, prints="", code=0, deaf=False):
    """Hangs, with a child that holds the output too, and prints what no gcloud does."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if hang:
        child = subprocess.Popen(["sleep", str(hang)])
        (CLOUD / "hanging").write_text(f"{os.getpid()} {child.pid}")
        child.wait()
    sys.stdout.write(prints)
    sys.stdout.flush()
    os._exit(code)


@contextlib.contextmanager
def half_of_it():
    """Prints the first half of what is printed."""
    whole, real = CLOUD / "whole", os.dup(1)
    with whole.open("wb") as file:
        os.dup2(file.fileno(), 1)
        yield
        sys.stdout.flush()
    text = whole.read_bytes()
    os.write(real, text[: len(text) // 2])


def fault(state, command, rest):
    """The failure planned for this command, named itself or as the worker's command over ssh."""
    words = next((word.split() for word in rest if word.startswith("--command=")), [])
    for key in (command, f"{command} {' '.join(words[2:3])}"):
        if state["failures"].get(key):
            met = state["failures"][key].pop(0)
            STATE.write_text(json.dumps(state))
            return met
    return None


def load():
    if STATE.exists():
        return json.loads(STATE.read_text())
    return {"life": -1, "alive": False, "seen": 0, "failures": SCENARIO.get("failures", {})}


def hosts(state):
    return [
        CLOUD / f"life{state['life']}" / f"worker{number}" for number in range(SCENARIO["hosts"])
    ]


def taken(state):
    return (CLOUD / f"life{state['life']}" / "taken").exists()


def create(state, words):
    if state["alive"]:
        fail("ERROR: (gcloud.compute.tpus.queued-resources.create) ALREADY_EXISTS: it is there")
    state |= {"life": state["life"] + 1, "alive": True, "seen": 0}
    life = SCENARIO["lives"][state["life"]]
    for number, home in enumerate(hosts(state)):
        home.mkdir(parents=True)
        (home / "number").write_text(str(number))
        (home / "outcomes").write_text("\n".join(life.get("runs", [])) + "\n")


def describe_request(state, words):
    if not state["alive"]:
        fail("ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: no such resource")
    life = SCENARIO["lives"][state["life"]]
    states = life.get("states", ["ACTIVE"])
    if taken(state):
        print(life.get("then", "SUSPENDED"))
    else:
        print(states[min(state["seen"], len(states) - 1)])
    state["seen"] += 1


def describe_node(state, words):
    print("PREEMPTED" if taken(state) else "READY\tHEALTHY")


def delete(state, words):
    for home in hosts(state):
        session = home / "vit_jax/run/session"
        if session.exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(session.read_text()), signal.SIGKILL)
    state["alive"] = False


def reach(state):
    if not state["alive"]:
        fail("ERROR: (gcloud.compute.tpus.tpu-vm.ssh) NOT_FOUND: no such node")
    if taken(state):
        fail("ERROR: (gcloud.compute.tpus.tpu-vm.ssh) TPU is in an unusable terminal state")


def scp(state, words):
    reach(state)
    *sources, target = [word for word in words if not word.startswith("--")]
    assert target.endswith(":")
    for home in hosts(state):
        for source in sources:
            shutil.copy(source, home)


def ssh(state, words):
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    # What one of the worker's commands meets: the slice is "taken" by then, or ssh is "refused".
    life = SCENARIO["lives"][max(state["life"], 0)]
    met = {
        what
        for command, what in life.get("meets", {}).items()
        if command in flags["command"].split()
    }
    if "taken" in met:
        (CLOUD / f"life{state['life']}" / "taken").touch()
    reach(state)
    if "refused" in met:
        fail("ERROR: (gcloud.compute.tpus.tpu-vm.ssh) [255] Connection refused")
    homes = hosts(state)
    chosen = range(len(homes)) if flags["worker"] == "all" else [int(flags["worker"])]
    command = " ".join(flags["command"].split(" "))  # as gcloud, and then ssh, do
    worst = 0
    for number in chosen:
        print(f"SSH: Attempting to connect to worker {number}...", file=sys.stderr)
        if state["failures"].get(f"ssh{number}", 0):
            state["failures"][f"ssh{number}"] -= 1
            code = 255
        else:
            home = homes[number]
            code = subprocess.run(
                ["bash", "-c", command], cwd=home, env=os.environ | {"HOME": str(home)}
            ).returncode
        if code:
            worst = worst or code
            print(
                f"##### Command execution on worker {number} failed with exit status {code}. "
                "Continuing.",
                file=sys.stderr,
            )
    return worst


def main(words):
    with (CLOUD / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if words[:2] == ["config", "get-value"]:
        if SCENARIO.get("configured") == "hangs":
            misbehave(hang=600)
        print(SCENARIO.get("configured", {}).get(words[2], ""))
        return 0
    assert words[:2] == ["compute", "tpus"], words
    assert "--quiet" in words, words
    state = load()
    command, rest = " ".join(words[2:4]), words[4:]
    for word in rest:
        if word.startswith("--") and word[2:].partition("=")[0] not in FLAGS[command]:
            fail(f"ERROR: (gcloud.{command}) unrecognized arguments: {word}", 2)
    met = fault(state, command, rest)
    cut = half_of_it() if met == "HALF" else contextlib.nullcontext()
    if isinstance(met, dict):
        misbehave(**met)
    elif met and met != "HALF":
        fail(met)
    do = {
        "queued-resources create": create,
        "queued-resources describe": describe_request,
        "queued-resources delete": delete,
        "tpu-vm describe": describe_node,
        "tpu-vm scp": scp,
        "tpu-vm ssh": ssh,
    }[command]
    before = json.dumps(state)
    with cut:
        code = do(state, rest)
    if json.dumps(state) != before:  # else, a command that takes long would undo another's change
        STATE.write_text(json.dumps(state))
    return code or 0


sys.exit(main(sys.argv[1:]))
