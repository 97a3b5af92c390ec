"""What a process arranges with its machine, in processes of their own."""

import functools
import importlib.util
import os
import pathlib
import platform
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from vit_jax import __main__
from vit_jax.runtime import logs
from vit_jax.utils import errors

CACHE_OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")

STEPS = """
import resource, statistics
from vit_jax.runtime import device
{arrange}
import jax, jax.numpy as jnp

def summed(x):  # 66 MiB of temporary buffers
    return jnp.cumsum(jnp.cumsum(x, axis=1)[::-1], axis=0).sum()

x = jnp.ones((64, 2**17))
program = jax.jit(summed).lower(x).compile()
faults = []
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    returned = program(x)
    ready = returned.is_ready()
    returned.block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(statistics.median(faults)), int(ready))
"""


def run_program(arrange="", **variables):
    """The median page faults of a program's runs, and whether it has ended when a call returns."""
    # Optimized, unlike in conftest.py: otherwise the program takes ten times as long.
    run = subprocess.run(
        [sys.executable, "-c", STEPS.format(arrange=arrange)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, run.stdout.split()))


@pytest.mark.slow
def test_a_step_on_the_cpu_ends_in_the_call():
    assert not run_program()[1]
    assert run_program(arrange="device.step_by_step()")[1]


LARGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc"
    or not LARGE_PAGES.exists()
    or "[madvise]" not in LARGE_PAGES.read_text(),
    reason="no large pages to ask for, or no need to ask",
)
def test_a_step_of_a_command_has_large_pages():
    plain, _ = run_program(**{__main__.TUNABLES: f"{__main__.LARGE_PAGES}=0"})
    assert plain > 10_000
    large, _ = run_program(**{__main__.TUNABLES: f"{__main__.LARGE_PAGES}=1"})
    assert large < 0.1 * plain


KEPT = """
import ctypes, pathlib
from vit_jax.runtime import device

def held():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

blocks = [ctypes.create_string_buffer(b"x" * 2**16) for _ in range(1600)]
last = [ctypes.create_string_buffer(2**16) for _ in range(9)]  # above most of them
before = held()
del blocks
kept = held()
device.return_freed_memory()
print(before - kept, before - held())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc's malloc")
def test_freed_memory_is_kept_until_it_is_returned():
    variables = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", KEPT]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    kept, returned = map(int, run.stdout.split())
    assert kept < 10 * 2**20
    assert returned > 90 * 2**20


@pytest.mark.parametrize(
    ("platforms", "answer"), [("cpu", True), ("cuda", False), ("tpu,cpu", False)]
)
def test_a_named_platform_tells_whether_jax_can_only_choose_the_cpu(monkeypatch, platforms, answer):
    from vit_jax.runtime import backend

    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert backend.is_cpu_only() == answer


@pytest.mark.parametrize(
    ("platforms", "libtpu", "tpu", "plugin", "chosen"),
    [
        (None, True, False, False, "cpu"),
        (None, True, False, True, None),
        (None, True, True, False, None),
        (None, False, False, False, None),
        ("cuda,cpu", True, False, False, "cuda,cpu"),
    ],
)
def test_jax_looks_for_no_tpu_where_libtpu_is_there_to_compile(
    platforms, libtpu, tpu, plugin, chosen, monkeypatch
):
    from vit_jax.runtime import backend

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    find = {"libtpu": libtpu or None}
    monkeypatch.setattr(backend.importlib.util, "find_spec", find.get)
    monkeypatch.setattr(backend, "_has_tpu", lambda: tpu)
    monkeypatch.setattr(backend, "has_plugin", lambda: plugin)
    told = []
    monkeypatch.setattr(jax.config, "update", lambda *given: told.append(given))
    backend.choose_platform()
    assert os.environ.get("JAX_PLATFORMS") == chosen
    assert told == ([("jax_platforms", "cpu")] if chosen == "cpu" else [])  # jax is imported here
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # what the rest of the tests needs


@pytest.mark.parametrize("platforms", ["cuda", "rocm,gpu"])
def test_a_platform_that_is_not_installed_is_one_line(monkeypatch, capsys, platforms):
    from vit_jax import cli
    from vit_jax.runtime import backend

    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(backend, "has_plugin", lambda: False)
    for words in (["evaluate", "--checkpoint=DIR"], ["list"], ["train", "digits", "--dry-run"]):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == (
            f"vit_jax: JAX_PLATFORMS={platforms}: not on this machine (no package for it is "
            "installed); unset it to use what there is\n"
        )
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    backend.choose_platform()


def test_a_device_that_jax_does_not_find_is_one_line(monkeypatch, capsys):
    from vit_jax import cli
    from vit_jax.runtime import device

    named = compile(
        "def find(): raise RuntimeError(\"Unable to initialize backend 'tpu': no TPU (set "
        "JAX_PLATFORMS='' to choose)\")",
        "jax/_src/xla_bridge.py",
        "exec",
    )
    found = {}
    exec(named, found)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setattr(cli.backend, "choose_platform", lambda opens: found["find"]())
    assert cli.main(["list"]) == 2
    line = (
        "JAX_PLATFORMS=tpu: not on this machine (Unable to initialize backend 'tpu': no TPU); "
        "unset it to use what there is"
    )
    assert capsys.readouterr().err == f"vit_jax: {line}\n"
    errors_of_memory = functools.partial(device.memory_errors, "lower train.batch_size")
    with pytest.raises(errors.ConfigError) as caught, errors_of_memory():
        found["find"]()
    assert str(caught.value) == line
    with pytest.raises(RuntimeError, match="another"), errors_of_memory():
        raise RuntimeError("another")
    with pytest.raises(RuntimeError, match="RESOURCE"), errors_of_memory():
        raise RuntimeError("RESOURCE_EXHAUSTED: by another library")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), errors_of_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")
    line = "out of device memory: RESOURCE_EXHAUSTED: 9 B"
    with (
        pytest.raises(device.OutOfMemory, match=f"^{line}; lower train.batch_size$"),
        errors_of_memory(),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 B\nby whom")
    with pytest.raises(device.OutOfMemory, match="9 bytes; lower"), errors_of_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 9 bytes")

    # A command without a remedy of its own.
    def fail(**_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 B\nby whom")

    monkeypatch.setattr(cli.backend, "choose_platform", fail)
    assert cli.main(["list"]) == 78
    assert capsys.readouterr().err == f"vit_jax: {line}\n"


@pytest.mark.slow  # libtpu looks for its device for ten seconds
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
@pytest.mark.parametrize(
    "words", [("-m", "vit_jax", "selftest"), ("-c", "import vit_jax; vit_jax.train('digits')")]
)
@pytest.mark.parametrize("platforms", ["tpu", "tpu,cpu"])
def test_a_tpu_that_is_not_there_is_one_line(words, platforms):
    run = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"JAX_PLATFORMS": platforms},
        capture_output=True,
        text=True,
    )
    lines = [line for line in run.stderr.splitlines() if not line.startswith(("Traceback", "  "))]
    assert run.returncode == (1 if "-c" in words else 2)
    assert len(lines) == 1
    assert f"JAX_PLATFORMS={platforms}: not on this machine (Unable to initialize" in lines[0]
    assert lines[0].endswith("); unset it to use what there is")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_script_on_a_machine_without_a_tpu_gets_no_messages_of_libtpu():
    script = "import jax, vit_jax; vit_jax.get_config('digits'); print(jax.default_backend())"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == ("cpu\n", "")


def test_compiled_programs_are_kept_in_a_private_folder_of_the_user(tmp_path, monkeypatch, caplog):
    from vit_jax.runtime import device

    monkeypatch.setenv("HOME", str(tmp_path))
    before = {name: jax.config.values[name] for name in CACHE_OPTIONS}
    folder = tmp_path / f".cache/vit_jax/compiled/cpu-{platform.node()}"
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        device.cache_programs()
        assert jax.config.values["jax_compilation_cache_dir"] == str(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        monkeypatch.setattr(device, "CACHED", 23)  # a byte too many is one
        for number in range(4):
            (folder / str(number)).write_bytes(bytes(8))
            os.utime(folder / str(number), (number, number))
        jax.config.update("jax_compilation_cache_dir", None)
        device.cache_programs()
        assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
        monkeypatch.setattr(device, "CACHED", 16)  # as many as there may be are not
        jax.config.update("jax_compilation_cache_dir", None)
        device.cache_programs()
        assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
        jax.config.update("jax_compilation_cache_dir", None)
        folder.chmod(0o777)
        device.cache_programs()
        assert jax.config.values["jax_compilation_cache_dir"] is None
        assert "others may write there; compiled programs are not kept" in caplog.text
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_program_that_a_kill_has_cut_short_is_compiled_and_kept_again(tmp_path):
    def compiled() -> int:
        jax.jit(lambda x: x * 41 + 1)(jnp.float32(2))
        (file,) = tmp_path.glob("jit__lambda-*-cache")
        return file.stat().st_size

    before = jax.config.values["jax_compilation_cache_dir"]
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        compilation_cache.reset_cache()  # it keeps the folder that it first wrote to
        assert compiled() > 99
        for file in tmp_path.iterdir():
            os.truncate(file, 99)
        with logs.assumptions_logged():
            warnings.simplefilter("default")  # as in a command; in a test they are errors
            assert compiled() > 99
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()


def test_what_lies_in_the_current_folder_is_no_module_of_jax(tmp_path, monkeypatch):
    from vit_jax.runtime import backend

    (tmp_path / "random.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    assert backend.ask("import random; print(random.randint(3, 3))") == ["3"]


@pytest.mark.parametrize("platforms", [None, "tpu"])
def test_a_question_about_devices_is_answered_in_words_or_in_a_line(platforms, monkeypatch):
    from vit_jax.runtime import backend

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert backend.ask("print('cpu', 4)") == ["cpu", "4"]
    why = "raise RuntimeError('no such device (set JAX_PLATFORMS to choose)')"
    with pytest.raises(errors.ConfigError) as caught:
        backend.ask(why)
    assert str(caught.value) == (
        "JAX_PLATFORMS=tpu: not on this machine (no such device); unset it to use what there is"
        if platforms
        else "jax finds no device: no such device"
    )
