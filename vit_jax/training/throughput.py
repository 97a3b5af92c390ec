"""How fast a run trains: for its metrics, and for the line that people watch."""

from typing import NamedTuple

import jax

from vit_jax.runtime import logs
from vit_jax.runtime.progress import Field


class Speed(NamedTuple):
    """The rate of a stretch of steps.

    Attributes:
      images: a second, on all devices.
      devices: how many those are.
      waiting: the share of time spent waiting for data.
      mfu: the model's FLOP/s as a share of the devices' peak; None where that is not known.
    """

    images: float
    devices: int
    waiting: float
    mfu: float | None

    @classmethod
    def measured(cls, images: float, waiting: float, flops_per_image: float | None) -> "Speed":
        """Returns the speed of so many images a second on this run's devices."""
        devices, peak = jax.device_count(), logs.peak_flops(jax.devices()[0].device_kind)
        mfu = images * flops_per_image / (peak * devices) if peak and flops_per_image else None
        return cls(images, devices, waiting, mfu)

    def metrics(self) -> dict[str, float]:
        """Returns what is written to metrics.jsonl."""
        values = {
            "data/wait_share": self.waiting,
            "speed/images_per_second": self.images,
            "speed/images_per_second_per_device": self.images / self.devices,
        }
        return values if self.mfu is None else values | {"speed/mfu": self.mfu}

    def fields(self, images_left: float) -> list[Field]:
        """Returns what is shown, with the time that the rest of the run will take."""
        return [
            Field(2, f"{self.images:,.0f} img/s"),
            Field(7, f"{self.images / self.devices:,.0f}/device"),
            Field(6, f"data wait {self.waiting:.0%}"),
            *([] if self.mfu is None else [Field(5, f"MFU {self.mfu:.1%}")]),
            Field(1, f"ETA {logs.duration(images_left / self.images)}"),
        ]
