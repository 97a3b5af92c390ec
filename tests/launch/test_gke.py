"""launch/gke.sh and launch/sky.yaml: what they say to Google, Kubernetes and SkyPilot.

The schemas are the facts below, read from JobSet's definition (v1alpha2 as of 0.13) and SkyPilot's
(0.14.1); where SkyPilot is installed its own schema is asked too.
"""

import re
import shutil
import subprocess

import pytest
import yaml

import worlds

JOB = ["job", "--name=big", "--image=gcr.io/p/vit:1", "--workdir=gs://b/d", "digits"]
# Every field that the manifest has, with the type that Kubernetes wants; * is any key, [] a list.
FIELDS = {
    "apiVersion": str, "kind": str, "metadata.name": str, "metadata.annotations.*": str,
    "spec.failurePolicy.maxRestarts": int, "spec.failurePolicy.rules[].name": str,
    "spec.failurePolicy.rules[].action": str,
    "spec.failurePolicy.rules[].onJobFailureReasons[]": str,
    "spec.replicatedJobs[].name": str, "spec.replicatedJobs[].replicas": int,
} | {
    f"spec.replicatedJobs[].template.spec.{name}": kind
    for name, kind in {
        "parallelism": int, "completions": int, "completionMode": str, "backoffLimit": int,
        "podFailurePolicy.rules[].action": str,
        "podFailurePolicy.rules[].onExitCodes.containerName": str,
        "podFailurePolicy.rules[].onExitCodes.operator": str,
        "podFailurePolicy.rules[].onExitCodes.values[]": int,
        "template.spec.restartPolicy": str, "template.spec.terminationGracePeriodSeconds": int,
        "template.spec.nodeSelector.*": str,
        "template.spec.tolerations[].key": str, "template.spec.tolerations[].operator": str,
        "template.spec.tolerations[].value": str, "template.spec.tolerations[].effect": str,
        "template.spec.containers[].name": str, "template.spec.containers[].image": str,
        "template.spec.containers[].command[]": str,
        "template.spec.containers[].envFrom[].secretRef.name": str,
        "template.spec.containers[].envFrom[].secretRef.optional": bool,
        "template.spec.containers[].resources.limits.*": int,
    }.items()
}  # fmt: skip


def gke(*words, code=0, path=None, cwd=None, **variables):
    """What it prints and says; the latter alone where it fails."""
    bash = shutil.which("bash")
    done = subprocess.run(
        [bash, worlds.ROOT / "launch/gke.sh", *words],
        capture_output=True, text=True, timeout=60, cwd=cwd,
        env={"PATH": path or "/usr/bin:/bin", "HF_TOKEN": "hf_planted0123456789"} | variables,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "planted" not in done.stdout + done.stderr
    return done.stdout * (code == 0) + done.stderr


def leaves(value, path=""):
    """Yields the path and the value of every leaf."""
    if isinstance(value, dict):
        for key, inner in value.items():
            free = path.endswith(("annotations", "nodeSelector", "limits"))
            yield from leaves(inner, f"{path}.{'*' if free else key}".removeprefix("."))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


@pytest.mark.parametrize(
    ("slice_", "accelerator", "hosts", "chips"),
    [
        ("v5e:4x4", "tpu-v5-lite-podslice", 4, 4),
        ("v6e:1x1", "tpu-v6e-slice", 1, 1),
        ("tpu7x:2x2x1", "tpu7x", 1, 4),
        ("tpu7x:4x4x4", "tpu7x", 16, 4),
    ],
)
def test_a_manifest(slice_, accelerator, hosts, chips):
    words = ['--config.name=it\'s "x" \\n {a: b} $(HOME) # é', "--spot", "--max-restarts=7"]
    made = yaml.safe_load(gke(*JOB, *words, f"--slice={slice_}"))
    for path, value in leaves(made):
        assert type(value) is FIELDS[path], path
    assert made["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert made["kind"] == "JobSet"
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 7
    (replicated,) = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    # A job with a policy for pods may not have these restart, and its codes are not 0.
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [2, 71, 72, 78]
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": slice_.partition(":")[2],
        "cloud.google.com/gke-spot": "true",
    }
    (container,) = pod["containers"]
    assert container["name"] == rule["onExitCodes"]["containerName"]
    assert (job["parallelism"], job["completions"]) == (hosts, hosts)
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    # Kubernetes makes $(HOME) of $$(HOME).
    name = words[0].replace("$(", "$$(")
    assert container["command"] == ["vit_jax", "train", "digits", name, "--workdir=gs://b/d"]


def test_a_manifest_of_another_disk_says_that_nothing_is_mounted():
    printed = gke(*JOB, "--slice=v5e:4x4", "--workdir=/shared/run", VIT_JAX_SPOT="0")
    assert "\ngke.sh: --workdir=/shared/run: add a volume that is mounted" in printed
    assert "gke-spot" not in printed  # 0 turns it off


@pytest.mark.parametrize(
    "given",
    ["own.py", "own.py:small", "--config.data.root=photos", "--config.data.exclude=photos"],
)
def test_a_manifest_with_a_path_of_this_machine_says_so(tmp_path, given):
    for name in ("own.py", "photos"):
        (tmp_path / name).mkdir()
    words = [*JOB[:-1], *(["digits"] if given.startswith("--") else []), given, "--slice=v5e:4x4"]
    printed = gke(*words, cwd=tmp_path)
    assert f"\ngke.sh: {given}: lies on this machine; a pod finds it only" in printed


def test_a_pool_of_several_hosts_of_ironwood_has_a_policy():
    words = ["pool", "--name=n", "--cluster=c", "--project=p", "--zone=us-central1-c", "--dry-run"]
    where = "--project=p --quiet"
    assert gke(*words, "--slice=tpu7x:2x2x2", "--spot").splitlines() == [
        "gcloud compute resource-policies create workload-policy n-2x2x2 --type=HIGH_THROUGHPUT "
        f"--accelerator-topology=2x2x2 --region=us-central1 {where}",
        "gcloud container node-pools create n --cluster=c --location=us-central1 "
        "--machine-type=tpu7x-standard-4t --num-nodes=2 --node-locations=us-central1-c "
        f"--tpu-topology=2x2x2 --spot --placement-policy=n-2x2x2 {where}",
    ]
    assert gke(*words, "--slice=tpu7x:2x2x1", "--location=us-central1-c").splitlines() == [
        "gcloud container node-pools create n --cluster=c --location=us-central1-c "
        f"--machine-type=tpu7x-standard-4t --num-nodes=1 --node-locations=us-central1-c {where}"
    ]


GCLOUD = """\
#!/bin/sh
echo "$*" >>{calls}
case $1 in compute) echo "ERROR: (gcloud.x) Policy already exists" >&2; exit 1 ;; esac
{does}
"""


@pytest.mark.parametrize(
    ("does", "code", "line"),
    [
        ("", 0, ""),
        ("sleep 600", 70, "node pool"),
        ("echo 'ERROR: (gcloud.x) Quota exceeded' >&2; exit 1", 78, "pool: Quota exceeded; ask"),
        ("echo 'ERROR: (gcloud.x) GCE_STOCKOUT' >&2; exit 1", 70, "node pool: GCE_STOCKOUT"),
    ],
)
def test_a_pool_is_made_or_not(tmp_path, does, code, line):
    calls = tmp_path / "calls"
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(GCLOUD.format(calls=calls, does=does))
    gcloud.chmod(0o755)
    if "sleep" in does:  # `timeout` that is out of patience at once
        impatient = tmp_path / "timeout"
        impatient.write_text(
            "#!/bin/sh\nshift 2\ncase $2 in container) exit 124;; *) exec $*; esac\n"
        )
        impatient.chmod(0o755)
    words = ["pool", "--name=n", "--cluster=c", "--project=p", "--zone=z-1-a"]
    patience = f"--timeout-seconds={1 if 'sleep' in does else 60}"
    printed = gke(
        *words, "--slice=tpu7x:2x2x2", patience, code=code, path=f"{tmp_path}:/usr/bin:/bin"
    )
    assert line in printed
    assert len(calls.read_text().splitlines()) == (1 if "sleep" in does else 2)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fly"], "fly: no such command; see launch/gke.sh --help"),
        ([*JOB, "--slice=v5e-16"], "--slice=v5e-16: no such slice; in chips, as in v5e:4x4, v5p:"),
        ([*JOB, "--slice=v5e:1x3"], "--slice=v5e:1x3: hosts have 4 chips, or the only one"),
        ([*JOB, "--slice=v5e:a[$(touch x)]x1"], "--slice=v5e:a[$(touch x)]x1: no such slice;"),
        (JOB, "no slice; set --slice=... or VIT_JAX_SLICE"),
        ([*JOB, "--slice=v5e:4x4", "--name=A b"], "--name=A b: must be at most 40 small letters,"),
        ([*JOB, "--slice=v5e:4x4", "--config.a=\n- x"], "--config.a= - x: has a control character"),
        ([*JOB, "--slice=v5e:4x4", "--max-restarts=x"], "--max-restarts=x: must be a whole number"),
        ([*JOB, "--slice=v5e:4x4", "more"], "digits: one config is enough"),
        ([*JOB[:-1], "--slice=v5e:4x4"], "job: which config? see vit_jax list"),
        ([*JOB, "--slice=v5e:4x4", "--workdir=x"], "--workdir=x: must be gs://BUCKET/DIR, or a "),
        (
            ["pool", *JOB[1:], "--slice=v5e:4x4", "--project=p", "--cluster=c", "--zone=z"],
            "digits: pool takes no config; a pool is named by --name=NAME",
        ),
        ([*JOB, "VIT_JAX_SPOT=no"], "VIT_JAX_SPOT=no: must be 1 or 0"),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(words, line):
    variables = dict(word.split("=") for word in words if word.startswith("VIT_JAX_"))
    printed = gke(*(word for word in words if word[:8] != "VIT_JAX_"), code=2, **variables)
    assert printed.startswith(f"gke.sh: {line}"), printed
    assert printed.count("\n") == 1


# --- SkyPilot -------------------------------------------------------------------------------------

SKY = worlds.ROOT / "launch/sky.yaml"


def test_a_task_of_skypilot():
    task = yaml.safe_load(SKY.read_text())
    assert set(task) == {"name", "workdir", "resources", "envs", "setup", "run"}
    assert re.fullmatch(r"[A-Za-z0-9]+(?:[._-]{1,2}[A-Za-z0-9]+)*", task["name"])
    assert set(task["resources"]) == {"infra", "accelerators", "use_spot", "job_recovery"}
    recovery = task["resources"]["job_recovery"]
    assert recovery == {"max_restarts_on_errors": 0, "recover_on_exit_codes": [70, 75]}
    assert all(value is None or isinstance(value, str) for value in task["envs"].values())
    for name in re.findall(r"\$([A-Z]+)", task["run"]):
        assert name in task["envs"]
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_skypilot_accepts_it():
    schemas = pytest.importorskip("sky.utils.schemas")
    jsonschema = pytest.importorskip("jsonschema")
    task = yaml.safe_load(SKY.read_text())
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


@pytest.mark.parametrize("number", [0, 1])
def test_its_command_is_one_process_of_the_slice(tmp_path, number):
    here = worlds.World(tmp_path, lives=[{"runs": ["0"]}])
    here.make_ready()
    home = here.worker(number)
    run = yaml.safe_load(SKY.read_text())["run"].replace("launch/", "")
    overrides = "--config.a=1 --config.b='[2 epochs]'"
    settings = {"CONFIG": "digits", "WORKDIR": "gs://b/d", "OVERRIDES": overrides}
    subprocess.run(
        ["bash", "-c", run], cwd=home, timeout=60,
        env=here.environment | settings | {"HOME": str(home)}, capture_output=True,
    )  # fmt: skip
    assert (home / "joined").read_text() == f"10.0.0.2:8476 2 {number}\n"
    told = (home / "words").read_text().splitlines()
    assert told == [
        "train", "digits", "--workdir=gs://b/d", "--config.a=1", "--config.b=[2 epochs]"
    ]  # fmt: skip
