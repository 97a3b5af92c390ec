"""The curves of a run, for its picture and for its report."""

from collections.abc import Callable, Sequence

from vit_jax.pages.charts import Chart, Point, Series


def charts(points: Callable[[str], Sequence[Point]], splits: Sequence[str]) -> list[Chart]:
    """Returns loss, accuracy, learning rate and speed over the steps.

    Args:
      points: gives the (step, value) pairs of a metric such as `train/loss`.
      splits: names of the splits that were evaluated, such as `validation` and `test`.
    """

    def train(key: str, name: str, line: str = "solid") -> Series:
        return Series(name=name, points=points(f"train/{key}"), line=line)

    def measured(key: str, label: str = "", line: str = "solid") -> list[Series]:
        return [
            Series(name=f"{split} {label}".strip(), points=points(f"{split}/{key}"),
                   color=color, line=line, marks=True)
            for color, split in enumerate(splits, start=1)
        ]  # fmt: skip

    accuracies = []
    kinds = (
        ("top1", "top-1", "solid"),
        ("top5", "top-5", "dashed"),
        ("accuracy", "colors", "solid"),
    )
    for key, label, line in kinds:
        accuracies += [train(key, f"train {label}", line), *measured(key, label, line)]
    speed = Series(name="", points=points("speed/images_per_second"))
    losses = [train("loss", "train (augmented)"), *measured("loss")]
    return [
        Chart(title="Loss", series=losses, log_y=True),
        Chart(title="Accuracy", series=accuracies, percent=True, zero=True),
        Chart(title="Learning rate", series=[train("lr", "")], zero=True),
        Chart(title="Images per second", series=[speed], zero=True),
    ]
