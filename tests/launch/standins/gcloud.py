"""Stands in for gcloud: notes its arguments, plays the slices of scenario.json one by one.

A slice is one of the Cloud TPU API (`compute tpus`) or a managed instance group of Compute Engine.

Workers are folders, and what ssh carries is run there by a shell, as the real one does.
"""

import contextlib
import fcntl
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
# Flags that gcloud has, as of version 528: those that the launcher may use. Of later versions it
# needs `--target-size-policy-mode` and templates with FLEX_START, which 528 has in beta or alpha.
WIDE = {"project", "zone", "quiet"}
GLOBAL = WIDE - {"zone"}
GROUP = "instance-groups managed"
FLAGS = {
    "queued-resources create": WIDE
    | {"node-id", "accelerator-type", "type", "topology", "runtime-version", "spot", "reserved"}
    | {"service-account", "network", "subnetwork", "internal-ips", "labels", "tags"},
    "queued-resources describe": WIDE | {"format"},
    "queued-resources delete": WIDE | {"force", "async"},
    "tpu-vm describe": WIDE | {"format"},
    "tpu-vm scp": WIDE | {"worker", "internal-ip"},
    "tpu-vm ssh": WIDE | {"worker", "internal-ip", "command"},
    "resource-policies create workload-policy": GLOBAL | {"type", "accelerator-topology", "region"},
    "resource-policies delete": GLOBAL | {"region"},
    "instance-templates create": GLOBAL
    | {"machine-type", "image-family", "image-project", "maintenance-policy", "boot-disk-size"}
    | {"provisioning-model", "instance-termination-action", "max-run-duration", "scopes"}
    | {"reservation-affinity", "reservation", "network", "service-account", "no-address"},
    "instance-templates delete": GLOBAL,
    f"{GROUP} create": WIDE
    | {"size", "template", "workload-policy", "target-size-policy-mode"}
    | {"default-action-on-vm-failure"},
    f"{GROUP} describe": WIDE | {"format"},
    f"{GROUP} list-instances": WIDE | {"format", "sort-by"},
    f"{GROUP} delete": WIDE,
    "ssh": WIDE | {"command", "internal-ip"},
    "scp": WIDE | {"scp-flag", "internal-ip"},
}
FLEX = {"provisioning-model", "max-run-duration"}  # of `alpha compute tpus` only


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
            save(state)
            return met
    return None


def save(state):
    new = STATE.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(state))
    new.replace(STATE)


def load():
    if STATE.exists():
        return json.loads(STATE.read_text())
    failures = SCENARIO.get("failures", {})
    return {"life": -1, "alive": False, "seen": 0, "failures": failures, "things": []}


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


# --- Compute Engine -----------------------------------------------------------------------------


def missing(command, kind):
    fail(
        f"ERROR: (gcloud.compute.{command}) Could not fetch resource:\n"
        f" - The resource 'projects/p/zones/z/{kind}/s' was not found"
    )


def create_thing(kind):
    def do(state, words):
        if kind in state["things"]:
            fail(f"ERROR: (gcloud.x) Could not fetch resource:\n - '{kind}' already exists")
        state["things"] = [*state["things"], kind]

    return do


def delete_thing(kind):
    def do(state, words):
        if kind not in state["things"]:
            missing(f"{kind}.delete", kind)
        state["things"] = [one for one in state["things"] if one != kind]

    return do


def create_group(state, words):
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    assert int(flags["size"]) == SCENARIO["hosts"]
    assert "instance-templates" in state["things"]
    assert ("workload-policy" in flags) == ("resource-policies" in state["things"])
    create(state, words)


def describe_group(state, words):
    if not state["alive"]:
        missing("instance-groups.managed.describe", "instanceGroupManagers")
    life = SCENARIO["lives"][state["life"]]
    state["seen"] += 1
    print(
        f"{life.get('size', SCENARIO['hosts'])},{life.get('topology', '')},{life.get('why', ',')}"
    )


def list_instances(state, words):
    life = SCENARIO["lives"][max(state["life"], 0)]
    states = life.get("states", ["NONE,RUNNING"])
    shown = states[min(max(state["seen"] - 1, 0), len(states) - 1)]
    for number in range(life.get("listed", SCENARIO["hosts"])):
        last = number == SCENARIO["hosts"] - 1
        print(
            f"s-{number}w,{life.get('then', 'NONE,TERMINATED') if last and taken(state) else shown}"
        )


def delete_group(state, words):
    if not state["alive"]:
        missing("instance-groups.managed.delete", "instanceGroupManagers")
    delete(state, words)


def number_of(instance):
    return int(instance.partition(":")[0].removeprefix("s-").removesuffix("w"))


def compute_scp(state, words):
    reach(state)
    *sources, target = [word for word in words if not word.startswith("--")]
    for source in sources:
        shutil.copy(source, hosts(state)[number_of(target)])


def compute_ssh(state, words):
    """As gcloud does: the command's exit code is its own, but for 255."""
    _, command = meet(state, words)
    number = number_of(words[0])
    if (CLOUD / f"refused{number}").exists():
        print(
            "ERROR: (gcloud.compute.ssh) [/usr/bin/ssh] exited with return code [255].",
            file=sys.stderr,
        )
        return 255
    home = hosts(state)[number]
    return subprocess.run(
        ["bash", "-c", command], cwd=home, env=os.environ | {"HOME": str(home)}
    ).returncode


# --- The Cloud TPU API ---------------------------------------------------------------------------


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


def meet(state, words):
    """Flags and command of a connection that comes about; of a command that meets no obstacle."""
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
    return flags, " ".join(flags["command"].split(" "))  # as gcloud, and then ssh, do


def ssh(state, words):
    flags, command = meet(state, words)
    homes = hosts(state)
    chosen = range(len(homes)) if flags["worker"] == "all" else [int(flags["worker"])]
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


DO = {
    "queued-resources create": create,
    "queued-resources describe": describe_request,
    "queued-resources delete": delete,
    "tpu-vm describe": describe_node,
    "tpu-vm scp": scp,
    "tpu-vm ssh": ssh,
    "resource-policies create workload-policy": create_thing("resource-policies"),
    "resource-policies delete": delete_thing("resource-policies"),
    "instance-templates create": create_thing("instance-templates"),
    "instance-templates delete": delete_thing("instance-templates"),
    f"{GROUP} create": create_group,
    f"{GROUP} describe": describe_group,
    f"{GROUP} list-instances": list_instances,
    f"{GROUP} delete": delete_group,
    "ssh": compute_ssh,
    "scp": compute_scp,
}


def main(words):
    with (CLOUD / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if words[:2] == ["config", "get-value"]:
        if SCENARIO.get("configured") == "hangs":
            misbehave(hang=600)
        print(SCENARIO.get("configured", {}).get(words[2], ""))
        return 0
    assert "--quiet" in words, words
    alpha = words[:1] == ["alpha"]
    words = words[alpha:]
    assert words[0] == "compute", words
    words = words[2:] if words[1] == "tpus" else words[1:]
    command = next(one for one in DO if words[: len(one.split())] == one.split())
    rest = words[len(command.split()) :]
    known = FLAGS[command] | (FLEX if alpha else set())
    for word in rest:
        if word.startswith("--") and word[2:].partition("=")[0] not in known:
            fail(f"ERROR: (gcloud.{command}) unrecognized arguments: {word}", 2)
    with (CLOUD / "lock").open("w") as lock:  # there may be one for each VM
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = load()
        met = fault(state, command, rest)
    cut = half_of_it() if met == "HALF" else contextlib.nullcontext()
    if isinstance(met, dict):
        misbehave(**met)
    elif met and met != "HALF":
        fail(met)
    before = json.dumps(state)
    with cut:
        code = DO[command](state, rest)
    if json.dumps(state) != before:  # else, a command that takes long would undo another's change
        save(state)
    return code or 0


sys.exit(main(sys.argv[1:]))
