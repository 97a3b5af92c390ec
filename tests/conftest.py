"""A stricter world than users have: eight simulated devices, no promotion of rank or type."""

import os
import shutil
import signal
import tempfile

# A shell that starts a command in the background has it, and what it starts, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before jax is imported anywhere: these are read once. Subprocesses inherit them.
# Programs that run once need no optimization, and XLA's older emitters, which jaxlib 0.12 no longer
# has, compile in two thirds of the time of the new ones; both compute the same.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"  # else each command begins twice
# Many tests compile the same small programs; all processes share a cache, thrown away at the end.
STARTED_HERE = "PYTEST_XDIST_WORKER" not in os.environ
if STARTED_HERE:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="vit_jax_tests_")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import pytest

import rotation
import runs
from vit_jax.runtime import logs

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_addoption(parser):
    parser.addoption(
        "--in-turn",
        action="store_true",
        help="of slow and long tests those whose turn it is: another share in every CI run",
    )


def pytest_itemcollected(item):
    rotation.COLLECTED.add(item.nodeid)
    if not rotation.is_sampled(item):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)  # after -m and -k have left some out
def pytest_collection_modifyitems(config, items):
    if config.getoption("--in-turn"):
        taken = rotation.in_turn(items, rotation.number()[0])
        config.hook.pytest_deselected(items=[item for item in items if item not in set(taken)])
        items[:] = taken


def pytest_unconfigure():
    if STARTED_HERE:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch):
    """Takes away what a command that ran before has done to the log: caplog would see nothing."""
    monkeypatch.setattr(logs.log, "handlers", [])
    monkeypatch.setattr(logs.log, "propagate", True)


@pytest.fixture
def one_device():
    with runs.on_one_device():
        yield
