"""Findings about images that would spoil a run, and the list of images to leave out."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vit_jax.data.source import UNKNOWN
from vit_jax.evaluation import probe
from vit_jax.inference.doctor import COSINE, KINDS, LEFT_OUT, duplicates
from vit_jax.inference.doctor.listing import Listing
from vit_jax.inference.doctor.reading import Images
from vit_jax.runtime.progress import Bar
from vit_jax.training import sharding
from vit_jax.utils import messages

NEIGHBORS = 10  # whose mean distance says how unlike others an image is
FENCE = 3.0  # interquartile ranges above the upper quartile: Tukey's outer fence
REFERENCES = 20_000  # images that all are compared with, drawn from more
ROWS = 1024  # compared at a time
LEAST_ACCURACY = 0.7  # of the probe; below, its label errors are called guesses
MOST_CLASSES = 1000  # of the probe, whose probabilities take 4 bytes a class and image
LONG = 3.0  # times the short side
SHORT = 32  # pixels


class Finding(NamedTuple):
    """What is wrong with an image, by its path below the folder: one of KINDS, and why."""

    image: str
    kind: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examination:
    """All that was found.

    Attributes:
      checkpoint: whose features were compared.
      findings: by kind, in the order of KINDS, worst first, each with the index of its image.
      groups: indices of images that show the same picture, the one to keep first; largest group
        first.
      suggested: the class that each image with a likely wrong label seems to be of, and its
        probability, by index.
      accuracy: of the cross-validated probe, or None.
      judged: (M,) indices of the images whose labels were checked.
      probabilities: (M, K) of their classes, by heads trained without the image.
      notes: what was assumed, and what could not be checked.
      leave_out: kinds that the fix list has.
      cosine: the least of the features of near duplicates.
    """

    listing: Listing
    images: Images
    checkpoint: str
    findings: Mapping[str, list[tuple[int, Finding]]]
    groups: list[list[int]]
    suggested: Mapping[int, tuple[str, float]]
    accuracy: float | None
    judged: np.ndarray
    probabilities: np.ndarray
    notes: list[str]
    leave_out: tuple[str, ...]
    cosine: float

    @property
    def left_out(self) -> dict[str, str]:
        """The paths of the fix list, sorted, each with its reasons."""
        reasons: dict[str, list[str]] = {}
        for kind in KINDS:
            for _, finding in self.findings[kind] if kind in self.leave_out else ():
                reasons.setdefault(finding.image, []).append(f"{kind}: {finding.reason}")
        return {path: "; ".join(reasons[path]) for path in sorted(reasons)}

    @property
    def kept_elsewhere(self) -> dict[str, list[str]]:
        """The images of the fix list that another list keeps, with the splits they leave."""
        listing = self.listing
        out = {at for kind in self.leave_out for at, _ in self.findings[kind]}
        kept = {path for at, path in enumerate(listing.paths) if at not in out}
        found: dict[str, list[str]] = {}
        for at in sorted(out, key=lambda at: listing.split[at]):
            if listing.paths[at] in kept:
                found.setdefault(listing.paths[at], []).append(listing.splits[listing.split[at]])
        return found


def examine(
    listing: Listing,
    images: Images,
    checkpoint: str,
    leave_out: tuple[str, ...] = LEFT_OUT,
    cosine: float = COSINE,
) -> Examination:
    """Finds every kind of problem in images that were read."""
    found = _Findings(listing, images)
    roots = duplicates.group_duplicates(images.prints, images.features, cosine)
    # Unreadable images have prints of zeros, by which they would be copies of each other.
    roots[~images.readable] = np.flatnonzero(~images.readable)
    groups = found.add_copies(roots)
    found.add_files()
    # One image of each picture: copies would be each other's neighbors, and judge each other.
    single = np.flatnonzero(images.readable & (roots == np.arange(len(roots))))
    found.add_outliers(single)
    conflicts = {number for number, _ in found.by_kind["conflict"]}
    # Nothing says which label of a conflict is right, so these would teach the probe wrong ones.
    judged, probabilities = found.add_labels(single[~np.isin(single, list(conflicts))])
    accuracy = found.accuracy
    if accuracy is not None and accuracy < LEAST_ACCURACY:
        found.notes.append(
            f"a probe of these features is right on {accuracy:.0%} of the images: label errors are "
            "guesses; a larger checkpoint tells classes apart better"
        )
    return Examination(
        listing=listing,
        images=images,
        checkpoint=checkpoint,
        findings=found.by_kind,
        groups=groups,
        suggested=found.suggested,
        accuracy=accuracy,
        judged=judged,
        probabilities=probabilities,
        notes=found.notes,
        leave_out=leave_out,
        cosine=cosine,
    )


class _Findings:
    """Findings collected by kind."""

    def __init__(self, listing: Listing, images: Images) -> None:
        self._listing, self._images = listing, images
        self.by_kind: dict[str, list[tuple[int, Finding]]] = {kind: [] for kind in KINDS}
        self.suggested: dict[int, tuple[str, float]] = {}
        self.notes: list[str] = []
        self.accuracy: float | None = None

    def add(self, number: int, kind: str, reason: str) -> None:
        """Adds a finding about an image."""
        finding = Finding(self._listing.paths[number], kind, reason)
        self.by_kind[kind].append((number, finding))

    def add_files(self) -> None:
        """Broken files, and files of unusual size, shape or mode."""
        for number, error in sorted(self._images.errors.items()):
            self.add(number, "broken", error)
        # Empty texts are modes that are not known.
        usual = collections.Counter(filter(None, self._images.modes)).most_common(1)
        sizes = self._images.sizes
        for number in np.flatnonzero(self._images.readable).tolist():
            height, width = sizes[number].tolist()
            if min(height, width) < SHORT:
                self.add(number, "tiny", f"{width} x {height} pixels")
            if max(height, width) > LONG * min(height, width):
                self.add(number, "aspect", f"{width} x {height} pixels")
            mode = self._images.modes[number]
            if mode and mode != usual[0][0]:
                self.add(number, "mode", f"{mode}; most are {usual[0][0]}")

    def add_copies(self, roots: np.ndarray) -> list[list[int]]:
        """Adds copies to the first image of their group; returns the groups, best image first."""
        listing, images = self._listing, self._images
        pixels = images.sizes.prod(axis=1)
        order = np.argsort(roots, kind="stable")
        # Sorted by root, a group is a run of equal ones.
        starts = np.flatnonzero(np.diff(roots[order], prepend=-1))
        groups = [part.tolist() for part in np.split(order, starts[1:]) if len(part) > 1]
        for group in groups:
            # Those of the last split stay, so that a test set keeps its images; then the largest.
            group.sort(key=lambda i: (-listing.split[i], -pixels[i], listing.paths[i]))
        groups.sort(key=len, reverse=True)
        for best, *others in groups:
            for number in others:
                same = images.prints["exact"][number] == images.prints["exact"][best]
                reason = f"{'equal pixels to' if same else 'near duplicate of'} {self._named(best)}"
                if listing.split[number] != listing.split[best]:
                    self.add(number, "leak", reason)
                # Of another class it is a conflict; an image without a class has none.
                elif len({*listing.label[[number, best]].tolist(), UNKNOWN}) < 3:
                    self.add(number, "copy", reason)
            self._add_conflicts([best, *others])
        return groups

    def _add_conflicts(self, group: list[int]) -> None:
        """Adds all images of a group with different classes: nothing says which class is right."""
        label = self._listing.label
        # Reversed, so that of each class the first image, the best, stays.
        classes = {int(label[number]): number for number in reversed(group)}
        classes.pop(UNKNOWN, None)
        if len(classes) < 2:
            return
        for number in group:
            other = next(at for one, at in classes.items() if one != label[number])
            self.add(number, "conflict", f"same picture as {self._named(other)}")

    def add_outliers(self, single: np.ndarray) -> None:
        """Images far from their nearest neighbors in features."""
        if len(single) <= 2 * NEIGHBORS:
            self.notes.append(f"outliers need more than {2 * NEIGHBORS} different pictures")
            return
        distances = neighbor_distances(self._images.features[single])
        low, high = np.quantile(distances, (0.25, 0.75))
        fence = high + FENCE * (high - low)
        for place in np.argsort(-distances, kind="stable"):
            if distances[place] <= fence:
                break
            reason = f"distance {distances[place]:.2f}, of most below {fence:.2f}"
            self.add(int(single[place]), "outlier", reason)

    def add_labels(self, single: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Likely label errors; returns the images that were judged, and their probabilities."""
        listing, conflicts = self._listing, self.by_kind["conflict"]
        label, none = listing.label, (np.zeros(0, np.int64), np.zeros((0, 0), np.float32))
        single = single[label[single] >= 0]
        # Each fold of the probe needs an image of every class.
        counts = np.bincount(label[single], minlength=len(listing.classes))
        judged = np.flatnonzero(counts >= probe.PARTS)
        problem = ""
        if not listing.classes:
            problem = "labels, such as a folder for each class"
        elif listing.several:
            problem = "one class for each image"
        elif not 2 <= len(judged) <= MOST_CLASSES:
            copied = "; images with copies in another class do not count" if conflicts else ""
            problem = (
                f"2 to {MOST_CLASSES:,} classes of at least {probe.PARTS} different pictures, and "
                f"there are {len(judged):,}{copied}"
            )
        if problem:
            self.notes.append(f"wrong labels were not looked for: that needs {problem}")
            return none
        if few := [listing.classes[at] for at in np.flatnonzero(counts < probe.PARTS)]:
            self.notes.append(
                f"labels of {few[0]}{messages.more(few)} are not checked: fewer than "
                f"{probe.PARTS} different pictures"
            )
        single = single[np.isin(label[single], judged)]
        # Numbered anew without gaps, as the probe expects; `judged` is sorted.
        labels = np.searchsorted(judged, label[single])
        with Bar("checking labels", probe.PARTS) as progress:
            probabilities = probe.cross_validate(
                self._images.features[single],
                labels,
                len(judged),
                sharding.create_mesh(1),
                say=progress.update,
            )
        found, errors = find_label_errors(labels, probabilities)
        # Worst first: those whose own class is least probable.
        own = probabilities[np.arange(len(labels)), labels]
        for place in np.flatnonzero(errors)[np.argsort(own[errors], kind="stable")].tolist():
            number, name = int(single[place]), listing.classes[judged[found[place]]]
            share = float(probabilities[place, found[place]])
            self.suggested[number] = name, share
            inside = listing.classes[label[number]]
            self.add(number, "label", f"is in {inside}, looks like {name} ({share:.0%})")
        self.accuracy = float((probabilities.argmax(axis=1) == labels).mean())
        return single, probabilities

    def _named(self, number: int) -> str:
        listing = self._listing
        split = listing.splits[listing.split[number]]
        inside = listing.paths[number].startswith(f"{split}/")
        where = "" if inside or len(listing.splits) == 1 else f" ({split})"
        return f"{messages.printable(listing.paths[number])}{where}"


def find_label_errors(
    labels: np.ndarray, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The classes that images confidently belong to, and which labels are likely errors.

    Confident learning (Northcutt, Jiang, Chuang 2021, arXiv 1911.00068): the threshold of a class
    is the mean probability of it among the images that have its label. An image belongs to the
    class of largest probability among those that reach their thresholds. Its label is an error if
    that is another class (the off-diagonal entries of the confident joint), and the label is not
    the most probable class. Every class has an image with its label (N,); probabilities (N, K) are
    predicted without the image's own label.

    Returns classes (N,), the label where no threshold is reached, and errors (N,) bool.
    """
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    thresholds = np.bincount(labels, own, minlength=len(counts)) / counts
    # -1 is below every probability.
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    found = np.where(confident.max(axis=1) < 0, labels, confident.argmax(axis=1))
    return found, (found != labels) & (probabilities.argmax(axis=1) != labels)


def neighbor_distances(features: np.ndarray) -> np.ndarray:
    """The mean of 1 - cosine to the NEIGHBORS nearest others, (N,) float32.

    Of more than REFERENCES images, neighbors are sought among so many, drawn by a fixed seed.
    Features are (N, D) float32 rows of length 1.
    """
    count = len(features)
    drawn = np.arange(count)
    if count > REFERENCES:
        drawn = np.sort(np.random.default_rng(0).choice(count, REFERENCES, replace=False))
    # Where an image is among the references: there it is its own nearest, which must not count.
    column = np.full(count, -1)
    column[drawn] = np.arange(len(drawn))
    references, found = features[drawn], np.empty(count, np.float32)
    # In parts, which bounds the matrix of cosines to 82 MB.
    for start in range(0, count, ROWS):
        rows = np.arange(start, min(start + ROWS, count))
        cosines = features[rows] @ references.T
        own = column[rows] >= 0
        cosines[np.flatnonzero(own), column[rows[own]]] = -np.inf
        # Their order does not matter, so a partition will do.
        nearest = np.partition(cosines, -NEIGHBORS, axis=1)[:, -NEIGHBORS:]
        found[rows] = 1 - nearest.mean(axis=1)
    return found
