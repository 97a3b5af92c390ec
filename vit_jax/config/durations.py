"""Lengths of training, in steps, epochs or examples."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Duration:
    """A length of training such as `150 epochs`, converted to steps once, by `steps`."""

    amount: float
    unit: str

    UNITS = ("steps", "epochs", "examples")

    def __str__(self) -> str:
        # 17 digits give any float64 back.
        return f"{self.amount:.17g} {self.unit}"

    @classmethod
    def parse(cls, value: object) -> "Duration":
        """Reads `500`, `'500 steps'`, `'1.5 epochs'` or `'1e6 examples'`; raises ValueError."""
        if isinstance(value, Duration):
            return value
        words = str(value).split()
        amount, unit = [*words, "steps"][:2]
        unit = unit if unit.endswith("s") else unit + "s"
        if len(words) not in (1, 2) or unit not in cls.UNITS:
            raise ValueError
        number = float(amount)
        if not math.isfinite(number):
            raise ValueError
        return cls(number, unit)

    def steps(self, batch_size: int, examples: int) -> int:
        """Whole steps, rounded up, for a global batch and an epoch of `examples`."""
        seen = {"steps": batch_size, "epochs": examples, "examples": 1}[self.unit]
        # Rounded first, as 0.07 * 100 is 7.000000000000001 and would be 8 steps.
        return math.ceil(round(self.amount * seen / batch_size, 9))
