"""TPU slices by name, the facts about their chips, and their devices without the hardware."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

from vit_jax import config

GIB = 2**30


class Chip(NamedTuple):
    """Figures for one chip of a generation, from Google's Cloud TPU documentation."""

    cores: int  # TensorCores; core-days count these, as the paper does
    devices: int  # jax devices: v2, v3 and tpu7x show every core, the others the whole chip
    memory: float  # HBM, GiB
    flops: float  # bfloat16 peak, FLOP/s
    bandwidth: float  # HBM, bytes/s
    links: float  # all inter-chip links together, bytes/s
    axes: int  # of the torus
    cpus: int  # vCPUs of the host, two to a core, for each of its chips


CHIPS = {
    "v2": Chip(2, 2, 16, 46e12, 700e9, 1984e9 / 8, 2, 24),
    "v3": Chip(2, 2, 32, 123e12, 900e9, 2624e9 / 8, 2, 24),
    "v4": Chip(2, 1, 32, 275e12, 1228e9, 2400e9 / 8, 3, 60),
    "v5e": Chip(1, 1, 16, 197e12, 819e9, 1600e9 / 8, 2, 28),
    "v5p": Chip(2, 1, 95, 459e12, 2765e9, 4800e9 / 8, 3, 52),
    "v6e": Chip(1, 1, 32, 918e12, 1640e9, 3584e9 / 8, 2, 45),
    "tpu7x": Chip(2, 2, 192, 2307e12, 7380e9, 4800e9 / 8, 3, 56),
}
SINGLE = ("v5e", "v6e")  # sold by the chip too; `launch/tpu.sh` takes the same sizes
EXAMPLES = "v3:8x8, v3-128, v5e-16, v5p:4x4x4, tpu7x:2x2x1, cpu or gpu"


# libtpu 0.0.42 recurses so deeply on BiT ResNets and hybrids for v6e that 1 MiB overflows.
STACK = 2**30
STACK_FLAGS = (
    "default_thread_stack_size",
    "fibers_default_thread_stack_size",
    "xla_internal_thread_stack_size_bytes",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Devices to compile for; unknown figures are None."""

    name: str
    devices: tuple[Any, ...]
    cores: int
    memory: float | None = None  # per device, bytes
    flops: float | None = None  # per device, FLOP/s
    bandwidth: float | None = None  # per device, bytes/s
    links: float | None = None  # per device, bytes/s

    @property
    def platform(self) -> str:
        """The platform of the devices: tpu, cpu or gpu."""
        return self.devices[0].platform


def parse_topology(name: str) -> tuple[str, tuple[int, ...]]:
    """The generation and the chips along each axis of `v3:8x8` or `v3-128`.

    The number after a dash is Google's: TensorCores for v2 to v4 and v5p, chips for v5e and v6e.
    Slices of tpu7x (Ironwood) are named by their chips along each axis only.
    Raises ConfigError for a name that is neither.
    """
    typed = name.lower().replace("litepod", "e")  # v5litepod-16 is gcloud's name of v5e-16
    match = re.fullmatch(r"(v\d[a-z]?|tpu7x)(?::(\d+(?:x\d+)+)|-(\d+))", typed, re.ASCII)
    if match is None or match[1] not in CHIPS:
        raise config.ConfigError(
            f"--topology={name}: no such slice; generations: {', '.join(CHIPS)}; "
            f"examples: {EXAMPLES}"
        )
    generation, chip = match[1], CHIPS[match[1]]
    if match[2]:
        shape = tuple(int(side) for side in match[2].split("x"))
        if len(shape) != chip.axes or not all(shape):
            raise config.ConfigError(
                f"--topology={name}: a {generation} slice has {chip.axes} axes, such as "
                f"{generation}:{'x'.join(['4'] * chip.axes)}"
            )
        return generation, shape
    if generation == "tpu7x":
        raise config.ConfigError(
            f"--topology={name}: name it by its chips along each axis, such as tpu7x:2x2x1"
        )
    count = int(match[3])
    chips, left = divmod(count, chip.cores)
    least = 0 if generation in SINGLE else 2
    # Google's sizes: powers of two from 4 chips, or a single one of some generations.
    if left or chips < 2**least or chips == 2 or chips & (chips - 1):
        powers = [n for n in range(least, 9) if n != 1]
        sizes = ", ".join(f"{generation}-{chip.cores * 2**n}" for n in powers)
        raise config.ConfigError(f"--topology={name}: no such size; known: {sizes}, ...")
    return generation, _shape(chips, chip.axes)


def count_chips(name: str, devices: int) -> int:
    """The chips of a slice; on this machine, its devices."""
    return devices if name in ("cpu", "gpu") else math.prod(parse_topology(name)[1])


def _shape(chips: int, axes: int) -> tuple[int, ...]:
    """The most nearly cubic shape of a power of two of chips, shortest side first."""
    power = int(math.log2(chips))
    least, more = divmod(power, axes)
    shape = [2 ** (least + (axis >= axes - more)) for axis in range(axes)]
    if chips == 1:
        return (1,) * axes
    if chips == 4:  # one host
        shape = [2, 2, 1][:axes]
    return tuple(shape)


def open_slice(name: str) -> Slice:
    """Describes a slice by libtpu; `cpu` and `gpu` mean the devices of this machine.

    Raises ConfigError for an unknown name, without libtpu, or without a GPU.
    """
    if name in ("cpu", "gpu"):
        return _local(name)
    generation, shape = parse_topology(name)
    if importlib.util.find_spec("libtpu") is None:
        raise config.ConfigError(
            f"--topology={name}: needs the TPU compiler; pip install 'vit_jax[tpu]'"
        )
    # Without this, libtpu searches for TPU hosts and logs warnings; here it only compiles.
    for key, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": "v3-8",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
        "LIBTPU_INIT_ARGS": " ".join(f"--{flag}={STACK}" for flag in STACK_FLAGS),
    }.items():
        # What the user has set stays, such as LIBTPU_INIT_ARGS with other flags.
        os.environ.setdefault(key, value)
    import jax
    from jax.experimental import topologies

    chip = CHIPS[generation]
    layout = f"{generation}:{'x'.join(map(str, shape))}"
    # A v4 shows both cores of a chip as one device; the compiler has to be told.
    options: dict[str, object] = {"chip_config_name": "megacore"} if generation == "v4" else {}
    if math.prod(shape) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)  # by default a host has four
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=layout, **options
        ).devices
    except jax.errors.JaxRuntimeError as error:
        raise config.ConfigError(
            f"--topology={name}: libtpu knows no {layout}: "
            f"{str(error).splitlines()[0].partition(': ')[2]}"
        ) from error
    assert len(described) == math.prod(shape) * chip.devices
    return Slice(
        name=name,
        devices=tuple(described),
        cores=math.prod(shape) * chip.cores,
        memory=chip.memory / chip.devices * GIB,
        flops=chip.flops / chip.devices,
        bandwidth=chip.bandwidth / chip.devices,
        links=chip.links / chip.devices,
    )


def _local(platform: str) -> Slice:
    import jax

    from vit_jax.runtime import device  # imports jax

    try:
        devices = tuple(jax.devices(platform))
    except RuntimeError as error:
        raise config.ConfigError(
            f"--topology={platform}: JAX finds no such device on this machine"
        ) from error
    memory = device.memory(devices[0])
    # All CPU devices of a process share the memory of the machine.
    if platform == "cpu" and memory is not None:
        memory /= len(devices)
    return Slice(name=platform, devices=devices, cores=len(devices), memory=memory)
