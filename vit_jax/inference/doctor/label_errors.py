"""Likely label errors by confident learning (Northcutt, Jiang, Chuang 2021, arXiv 1911.00068)."""

import numpy as np


def find(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that images confidently belong to, and which labels are likely errors.

    The threshold of a class is the mean probability of it among the images that have its label. An
    image belongs to the class of largest probability among those that reach their thresholds. Its
    label is an error if that is another class (the off-diagonal entries of the confident joint),
    and the label is not the most probable class.

    Args:
      labels: (N,) classes; every class has an image.
      probabilities: (N, K), each predicted without the image's own label.

    Returns classes (N,), the label where no threshold is reached, and errors (N,) bool.
    """
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    thresholds = np.bincount(labels, own, minlength=len(counts)) / counts
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    found = np.where(confident.max(axis=1) < 0, labels, confident.argmax(axis=1))
    return found, (found != labels) & (probabilities.argmax(axis=1) != labels)
