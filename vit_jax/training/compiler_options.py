"""The compiler's options for a step, by kind of device: one table for runs and for preflight."""

import os
import re
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax.config import ConfigError

# Reduce-scatter instead of all-reduce and slice, also where the last axis does not fill a tile.
SCATTER = {
    "xla_tpu_use_minor_sharding_for_major_trivial_input": True,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": "1",
    "xla_tpu_assign_all_reduce_scatter_layout": True,
}
# All-gathers overlapped with matrix products, as v5e does by default.
GATHER = {
    "xla_enable_async_all_gather": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
}
# Collectives on the SparseCores, overlapped with the TensorCores; the default on tpu7x.
OFFLOAD: dict[str, str | bool] = {
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
}
# Gains of each, and options that were tried and lost: docs/preflight.md.
# v4, v5e and tpu7x have none: there they gain nothing, or hide one gather for more memory.
OPTIONS: dict[str, dict[str, str | bool]] = {
    "v3": SCATTER | GATHER,
    "v5p": OFFLOAD,
    "v6e": OFFLOAD,
}
# In the order that XLA takes on CPUs by default, operations that could run at the same time follow
# each other: a step of ViT-S/16 with 16 images has 1,681 MiB of temporaries instead of 976, and
# takes as long on two cores.
CPU: dict[str, str | bool] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
# Silent data corruption; see docs/reliability.md for what it adds to a program.
SDC_CHECKER: dict[str, str | bool] = {
    "xla_tpu_enable_sdc_checker": True,
    "xla_tpu_sdc_check_halt_on_detection": True,
}

# What jax calls a device of a generation.
KINDS = {
    "TPU v2": "v2",
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
}


def for_device(device: Any) -> dict[str, str | bool]:
    """The options for programs of a device, without those that LIBTPU_INIT_ARGS sets."""
    own = os.environ.get("LIBTPU_INIT_ARGS", "")
    options = OPTIONS.get(KINDS.get(device.device_kind, ""), {})
    return {name: value for name, value in options.items() if f"--{name}=" not in own}


def sdc_checker(device: Any) -> dict[str, str | bool]:
    """The options of `train.sdc_checker`; raises ConfigError unless this is a TPU."""
    if device.device_kind not in KINDS:
        raise ConfigError(
            f"train.sdc_checker=true: only the TPU compiler has this checker, and this device is "
            f"{device.device_kind}; train.replay=N works on every device"
        )
    return SDC_CHECKER


def compile_with(
    lowered: jax.stages.Lowered, options: Mapping[str, str | bool]
) -> jax.stages.Compiled:
    """Compiles a program, leaving out options that this version of the compiler lacks.

    No option changes a result: a program without them is only slower. Raises ConfigError if the
    compiler lacks the checker of `train.sdc_checker`.
    """
    options = dict(options)
    # The compiler names one unknown option at a time.
    while True:
        try:
            return lowered.compile(compiler_options=options or None)
        except jax.errors.JaxRuntimeError as error:
            unknown = re.search(r"No such compile option: '(\w+)'", str(error))
            if unknown is not None and unknown[1] in SDC_CHECKER:
                raise ConfigError(
                    "train.sdc_checker=true: this version of the compiler has no "
                    f"{unknown[1]}; install a newer libtpu, or use train.replay=N"
                ) from error
            if unknown is None or options.pop(unknown[1], None) is None:
                raise
