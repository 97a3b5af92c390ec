"""Options of the compiler: which a device gets, and what happens to those it does not know."""

import types

import jax
import jax.numpy as jnp
import pytest

import runs
from vit_jax import config
from vit_jax.training import build, compiler_options


def test_what_the_user_sets_stays(monkeypatch):
    name = "xla_enable_async_all_gather"
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--a=1 --{name}=false")
    found = compiler_options.for_device(types.SimpleNamespace(device_kind="TPU v3"))
    assert found == {k: v for k, v in compiler_options.OPTIONS["v3"].items() if k != name}


def test_a_compiler_without_an_option_compiles_without_it():
    lowered = jax.jit(lambda x: x + 1).lower(jnp.float32(1))
    options = compiler_options.OPTIONS["v3"]  # unknown on a CPU, every one
    assert compiler_options.compile_with(lowered, options)(jnp.float32(1)) == 2
    known = {"xla_backend_optimization_level": 0} | options
    assert compiler_options.compile_with(lowered, known)(jnp.float32(1)) == 2


def test_a_known_option_with_a_wrong_value_is_an_error():
    lowered = jax.jit(lambda x: x + 1).lower(jnp.float32(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_backend_optimization_level"):
        compiler_options.compile_with(lowered, {"xla_backend_optimization_level": "high"})


def test_the_checker_is_never_left_out_without_a_word():
    lowered = jax.jit(lambda x: x + 1).lower(jnp.float32(1))
    with pytest.raises(config.ConfigError, match=r"train\.sdc_checker=true: this version"):
        compiler_options.compile_with(lowered, compiler_options.SDC_CHECKER)
    with pytest.raises(config.ConfigError, match=r"only the TPU compiler .* this device is cpu"):
        compiler_options.sdc_checker(jax.devices("cpu")[0])
    for kind in compiler_options.KINDS:
        device = types.SimpleNamespace(device_kind=kind)
        assert compiler_options.sdc_checker(device) == compiler_options.SDC_CHECKER


def test_a_step_on_a_cpu_takes_less_memory_than_in_the_order_of_the_compiler(monkeypatch):
    sizes = {"patch_size": 2, "width": 32, "depth": 3, "mlp_dim": 128, "num_classes": 10}
    cfg = runs.configure(model=sizes | {"unroll": 3, "dropout": 0.0}, train={"batch_size": 64})
    trainer = build.build(cfg, 200, devices=jax.devices()[:1])

    def temporaries() -> int:
        return trainer.compile_step().memory_analysis().temp_size_in_bytes

    ours = temporaries()
    monkeypatch.setattr(compiler_options, "CPU", {})
    assert ours < 0.97 * temporaries()
