"""A world for the launchers: their own checkout, stand-ins on PATH, workers that are folders."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
STANDINS = ROOT / "tests" / "launch" / "standins"
ADDRESS = ["--name=s", "--project=p", "--zone=z"]
SLICE = [*ADDRESS, "--slice=v5e-8"]
RUN = [*SLICE, "--workdir=/shared/run"]
# All that the launchers and the stand-ins may need: what is not here is not on PATH.
TOOLS = """
bash basename cat chmod cksum cp date dirname env find flock grep gzip head kill mkdir mktemp mv rm
sed setsid sleep stat tail tar timeout touch tr true wc
""".split()  # noqa: SIM905


class World:
    """What a test says of the cloud, and what the launchers made of it."""

    def __init__(self, folder, **scenario):
        self.cloud, self.checkout, self.bin = (folder / name for name in ("cloud", "code", "bin"))
        for path in (self.cloud, self.checkout / "vit_jax", self.checkout / "configs", self.bin):
            path.mkdir(parents=True)
        shutil.copytree(ROOT / "launch", self.checkout / "launch")
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            (self.checkout / name).touch()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        for name in ("curl", "sudo", "python3", "vit_jax"):
            (self.bin / name).symlink_to(STANDINS / name)
        gcloud = self.bin / "gcloud"
        gcloud.write_text(f"#!{sys.executable} -SE\n" + (STANDINS / "gcloud.py").read_text())
        gcloud.chmod(0o755)
        (self.cloud / "endpoints").write_text("w0:1:10.0.0.2,w1:2:10.0.0.3")
        self.answer("memory per device    fits: 1 GiB of 16 GiB  ", 0)
        scenario = {"hosts": 2, "lives": [{"runs": ["run"]}]} | scenario
        self.scenario = scenario
        (self.cloud / "scenario.json").write_text(json.dumps(scenario))
        self.environment = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "CLOUD": str(self.cloud),
            "STANDINS": str(STANDINS),
            "REAL_PYTHON": sys.executable,
            "VIT_JAX_POLL_SECONDS": "0.05",
            "VIT_JAX_BACKOFF_SECONDS": "0",
        }

    def answer(self, text, code):
        """Says what preflight prints, and how it ends."""
        (self.cloud / "answer").write_text(text + "\n")
        (self.cloud / "fits").write_text(str(code))

    def make_ready(self):
        """Makes the first slice as `create` and `setup` do."""
        failures = self.scenario.get("failures", {})
        things = ["instance-templates", *["resource-policies"] * (self.scenario["hosts"] > 1)]
        state = {"life": 0, "alive": True, "seen": 9, "failures": failures, "things": things}
        (self.cloud / "state.json").write_text(json.dumps(state))
        for number in range(self.scenario["hosts"]):
            home = self.worker(number)
            (home / "vit_jax/venv/bin").mkdir(parents=True)
            for name in ("vit_jax", "python"):
                shutil.copy(STANDINS / name, home / "vit_jax/venv/bin")
            for name in ("tpu_worker.sh", "secrets.sh"):
                shutil.copy(ROOT / "launch" / name, home)
            (home / "number").write_text(str(number))
            runs = self.scenario["lives"][0]["runs"]
            (home / "outcomes").write_text("\n".join(runs) + "\n")

    def hasten(self):
        """Makes every command of gcloud have the time of the shortest, and kills soon."""
        for name in ("tpu_cloud", "tpu_supervise"):
            script = self.checkout / f"launch/{name}.sh"
            hasty = re.sub(r"\d+ \* timeout", "timeout", script.read_text())
            hasty = hasty.replace("KILL_SECONDS=10", "KILL_SECONDS=1")
            script.write_text(hasty.replace("clear 60", "clear 1"))

    def start(self, *words, start_new_session=False, **environment):
        return subprocess.Popen(
            [str(self.checkout / "launch/tpu.sh"), *words],
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=start_new_session,
        )

    def tpu(self, *words, code=0, **environment):
        """The output of launch/tpu.sh, which must end with `code`."""
        process = self.start(*words, **environment)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
        return output

    def calls(self, *wanted):
        """The command lines that gcloud was given: those with all these words."""
        path = self.cloud / "calls.jsonl"
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [words for words in lines if set(wanted) <= set(words)]

    def forget(self):
        (self.cloud / "calls.jsonl").unlink(missing_ok=True)

    def worker(self, number, life=0):
        return self.cloud / f"life{life}" / f"worker{number}"

    def sessions(self):
        """The process groups of all runs."""
        return [
            int(path.read_text()) for path in self.cloud.glob("life*/worker*/vit_jax/run/session")
        ]

    def gone(self):
        """Whether what hung has been ended, and its child with it."""
        pids = (self.cloud / "hanging").read_text().split()
        return not any(pathlib.Path("/proc", pid).exists() for pid in pids)

    def end(self):
        """Kills what a test has left running."""
        started = list(self.cloud.glob("life*/worker*/vit_jax/run/command"))
        wait_for(lambda: all((path.parent / "session").exists() for path in started))
        for session in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, 9)


def wait_for(condition, seconds=60):
    """The first true value of the condition; fails after some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def supervisor_lines(printed):
    """The lines of a supervisor, without their times."""
    return [line.partition("Z ")[2] for line in printed.splitlines() if line[10:11] == " "]
