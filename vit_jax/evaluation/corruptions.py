"""ImageNet-C: every corruption at every severity, and their mean corruption error."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.data.datasets import SEVERITIES
from vit_jax.evaluation.runner import Evaluator

# AlexNet's top-1 error on each corruption, averaged over the severities, which normalizes the mean
# corruption error (Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
# Corruptions and Perturbations"; the values are those of github.com/hendrycks/robustness). It
# excludes the other four corruptions of TFDS.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


class Corruptions:
    """Evaluates parameters on the available ImageNet-C sets."""

    def __init__(self, evaluators: Mapping[str, Evaluator]) -> None:
        """Takes an evaluator for each set, keyed by names such as `fog_3`."""
        self._evaluators = evaluators

    def __call__(self, params: Any, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns each set's results as `fog_3/top1`, and `mce` if all 75 sets are available."""
        results: dict[str, float] = {}
        for name, evaluator in self._evaluators.items():
            one = evaluator(params, stop=stop)
            if one is None:
                return None
            results |= {f"{name}/{key}": value for key, value in one.items()}
        top1 = {name: results[f"{name}/top1"] for name in self._evaluators}
        needed = {f"{kind}_{severity}" for kind in ALEXNET for severity in SEVERITIES}
        return results | ({"mce": mean_corruption_error(top1)} if needed <= set(top1) else {})


def mean_corruption_error(top1: Mapping[str, float]) -> float:
    """Returns the mean over corruptions of error / AlexNet's error: 1 matches AlexNet.

    `top1` holds each set's accuracy, keyed by names such as `fog_3`.
    """
    each = [
        np.mean([1 - top1[f"{kind}_{severity}"] for severity in SEVERITIES]) / alexnet
        for kind, alexnet in ALEXNET.items()
    ]
    return float(np.mean(each))
