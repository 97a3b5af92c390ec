"""A loaded model: its preprocessing, predictions and features."""

import collections
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models, weights
from vit_jax.data import class_matching, decoding, image_inputs, native_aspect, transforms
from vit_jax.data.image_inputs import ImageInputs
from vit_jax.evaluation import runner
from vit_jax.runtime import logs
from vit_jax.training import losses, normalization
from vit_jax.training.build import create_model
from vit_jax.utils import messages, tree_utils
from vit_jax.weights import adapting
from vit_jax.weights.family import NO_HEAD

BATCH = 32  # images at a time in `predict`; a power of two
WAITING = 8  # batches of images that wait for others of their shape
RUNS = ("run", "adapter")  # values of `LoadedModel.kind`: weights that were trained here
DIVERGED = "the model's outputs are not finite; its training has diverged"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One image: its best classes with probabilities, numbers, or why there are none.

    Attributes:
      image: a path, or the position in the images given, such as `images[0]`.
      top: classes and probabilities, the most probable first.
      numbers: of a head of numbers: the name of each and its value, in the units it was trained on.
      truth: the true class or numbers, if known.
      error: why the image could not be read, or its outputs are no numbers.
    """

    image: str
    top: tuple[tuple[str, float], ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()
    truth: str | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its parameters, class names and preprocessing; `load` returns one.

    Attributes:
      config: the complete config, with the number of classes.
      params: float32 arrays, nested by name.
      classes: the name of each output.
      kind: `run`, `adapter` of one, or the format of the weights.
      notes: how the arrays of another project were used.
      assumed: what its files leave open, and what was assumed; a line for each reason.
      fresh: parameters that the checkpoint lacks, and why.
      step: the step of a run's checkpoint.
      checkpoint: the folder of a run's checkpoints.
      selection: why it is this one, such as `step 60, the best by validation/top1 (0.6120); ...`.
      temperature: what logits are divided by before they are probabilities, where a validation
        split has fitted one (`evaluation.metrics=calibration`).
      projection: the head of self-distillation, where `load` was asked for it by `wanted`.
    """

    config: config.Config
    params: models.Params
    classes: tuple[str, ...]
    kind: str
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)
    step: int | None = None
    checkpoint: pathlib.Path | None = None
    selection: str = ""
    temperature: float | None = None
    projection: models.Params | None = None

    def __repr__(self) -> str:
        return (
            f"LoadedModel({self.config.name}: {self.model.num_params:,} parameters, "
            f"{len(self.classes)} classes, images {(*self.model.image_size, self.model.channels)})"
        )

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The classes as people read them: of several called crane, one is `crane (134)`."""
        times = collections.Counter(self.classes)
        return tuple(
            f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(self.classes)
        )

    @functools.cached_property
    def model(self) -> models.Classifier:
        """The network as functions of its parameters."""
        return create_model(self.config)

    def preprocess(self, images: ImageInputs) -> jax.Array:
        """Images as `apply` takes them: resized, cropped and normalized as in evaluation.

        Args:
          images: a path, the bytes of a file, a Pillow image, an array (H, W), (H, W, C) or
            (B, H, W, C) of any size, or a list of these. Values are of 8 or 16 bits, or from 0 to
            1.

        Returns:
          float32 (B, H, W, C).

        Raises BadImage for a file that cannot be decoded, or another type or shape; and, with
        `data.aspect=native`, for images whose views have several shapes.

        Examples:
            >>> import numpy as np
            >>> import vit_jax
            >>> model = vit_jax.load("runs/digits")
            >>> model.preprocess(np.zeros((20, 30, 3), np.uint8)).shape
            (1, 8, 8, 1)
        """
        views = self._views(images)
        if several := sorted({view.shape[:2] for view in views})[1:]:
            raise decoding.BadImage(
                f"images: have views of {len(several) + 1} shapes; give them one at a time, or set "
                "data.aspect=fixed"
            )
        return normalization.normalize_pixels(jnp.asarray(np.stack(views)), self.config.data)

    def _views(self, images: ImageInputs) -> list[np.ndarray]:
        views = []
        for name, image in image_inputs.read_images(images, self.config.data):
            try:
                views.append(self.view(image))
            except decoding.BadImage as error:
                raise decoding.BadImage(f"{name}: {error}") from error
        if not views:
            raise decoding.BadImage("images: is empty; expected at least one image")
        return views

    def apply(
        self,
        params: models.Params,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Logits (B, K) and intermediates by name; a pure function, for jit and grad.

        Args:
          params: parameters like `self.params`.
          images: normalized float images (B, H, W, C); see `preprocess`.
          key: dropout key; None: no dropout.
          capture: whether to return attention weights.

        Examples:
            >>> import numpy as np
            >>> import vit_jax
            >>> images = np.zeros((2, 20, 30, 3), np.uint8)
            >>> model = vit_jax.load("runs/digits")
            >>> logits, out = model.apply(model.params, model.preprocess(images))
            >>> logits.shape, out["pre_logits"].shape
            ((2, 10), (2, 16))
        """
        return self.model.apply(params, images, key=key, capture=capture)

    def predict(self, images: ImageInputs, *, top: int = 3) -> list[Prediction]:
        """The `top` classes of each image, or its numbers; `images` as in `preprocess`.

        A file that cannot be decoded has an `error` instead. Raises WeightsError for a model
        without a head.

        Examples:
            >>> import numpy as np
            >>> import vit_jax
            >>> images = np.zeros((2, 20, 30, 3), np.uint8)
            >>> (first, second) = vit_jax.load("runs/digits").predict(images, top=2)
            >>> first.image, len(first.top)
            ('images[0]', 2)
        """
        named = image_inputs.read_images(images, self.config.data)
        return list(self.classify(((name, image, None) for name, image in named), top))

    def embed(self, images: ImageInputs, *, features: str = "pre_logits") -> np.ndarray:
        """Features of images, float32.

        Args:
          images: as in `preprocess`.
          features: `pre_logits`, the head's input, (B, D); or `tokens`, (B, N, D).

        Examples:
            >>> import numpy as np
            >>> import vit_jax
            >>> images = np.zeros((2, 20, 30, 3), np.uint8)
            >>> vit_jax.load("runs/digits").embed(images).shape
            (2, 16)
        """
        # Raises before images are read.
        feature_shape(self.model, features)
        found = self.features(self._views(images), features)
        check_finite(found)
        return found

    def features(self, views: np.ndarray | Sequence[np.ndarray], kind: str) -> np.ndarray:
        """Features as `embed`, of images (H, W, C) as the model sees them, before normalization."""
        function = functools.partial(_features, self.model, self.config.data, kind, self.params)
        return np.stack([row for (row,) in _rows(function, views, self._sequence)])

    def classify(
        self, images: Iterable[tuple[str, bytes | np.ndarray, str | None]], top: int
    ) -> Iterator[Prediction]:
        """Yields a prediction for each (name, encoded or uint8 HWC image, true class or None)."""
        self.require_head()
        config.check_count("--top", top)
        # Where shapes differ, views wait for others of their shape.
        several = self.config.data.aspect == "native" and self._sequence is None
        most = BATCH * (WAITING if several else 1)
        images = iter(images)
        # In parts: a folder of images need not fit into memory.
        while part := list(itertools.islice(images, most)):
            yield from self._classify(part, top)

    def _classify(
        self, images: Sequence[tuple[str, bytes | np.ndarray, str | None]], top: int
    ) -> Iterator[Prediction]:
        views: dict[int, np.ndarray] = {}
        errors: dict[int, str] = {}
        for place, (_, image, _) in enumerate(images):
            try:
                views[place] = self.view(image)
            except decoding.BadImage as error:
                errors[place] = str(error)
        # top_k refuses more than there are.
        cfg, count = self.config, min(top, len(self.classes))
        temperature = self.temperature or 1.0  # by which a division changes no bit
        function = functools.partial(
            _best, self.model, cfg.data, count, cfg.loss, temperature, self.params
        )
        if isinstance(cfg.loss, config.Regression):
            function = functools.partial(_outputs, self.model, cfg.data, self.params)
        found = dict(zip(views, _rows(function, list(views.values()), self._sequence), strict=True))
        for place, (name, _, truth) in enumerate(images):
            if place in errors:
                yield Prediction(image=name, error=errors[place])
                continue
            if not np.isfinite(found[place][0]).all():
                yield Prediction(image=name, error=DIVERGED)
                continue
            if isinstance(cfg.loss, config.Regression):
                # In float64, as `evaluate` scales its tables: an image has the same number in both.
                (row,) = losses.scaled(found[place][0][None].astype(np.float64), cfg.loss)
                pairs = tuple(zip(self.classes, row.tolist(), strict=True))
                yield Prediction(image=name, numbers=pairs, truth=truth)
                continue
            best = zip(*found[place], strict=True)
            pairs = tuple((self.names[index], float(value)) for value, index in best)
            yield Prediction(image=name, top=pairs, truth=truth)

    def scaled(self, logits: losses.Array) -> losses.Array:
        """Logits divided by the temperature, if there is one."""
        return logits if self.temperature is None else logits / self.temperature

    def view(self, image: bytes | np.ndarray) -> np.ndarray:
        """The preprocessed pixels of an image, (H, W, C) uint8 or uint16; raises BadImage."""
        data = self.config.data
        view = decoding.load_view(image, data)
        for transform in self._transforms:
            view = transform(view, np.random.default_rng(0))  # evaluation draws nothing
        return view

    @functools.cached_property
    def _transforms(self) -> Sequence[transforms.Transform]:
        data = self.config.data
        if self._sequence is not None:
            return (native_aspect.FitPatches.for_evaluation(data, self._sequence[1:]),)
        if data.aspect == "native":
            return (
                native_aspect.FitNearest(
                    runner.native_shapes(self.model), transforms.eval_resampling(data)
                ),
            )
        return transforms.eval_transforms(data)

    @property
    def _sequence(self) -> tuple[int, int, int] | None:
        """Patches of padded views, and height and width of a patch; None for whole images."""
        longest, patch = self.config.data.padded, self.config.model.patch_size
        return None if longest is None or patch is None else (longest, *patch)

    @property
    def _numbered(self) -> bool:
        return self.classes == class_names((), self.config)

    @property
    def projects(self) -> bool:
        """Whether the head looks like CLIP's projection, whose outputs are an image's embedding.

        That has no bias; in timm's files, one of zeros.
        """
        foreign, head = self.kind not in RUNS, self.params.get("head", {})
        return foreign and self._numbered and not np.any(np.asarray(head.get("bias", 0)))

    @property
    def spec(self) -> weights.ModelSpec:
        """The model as `weights` describes one."""
        # As files without a head are described.
        if not self.config.needs_labels or "head/kernel" in self.fresh:
            return weights.ModelSpec(
                model=dataclasses.replace(self.config.model, num_classes=1),
                data=self.config.data,
                mae=self.config.mae,
                fresh=self.fresh or NO_HEAD,
            )
        return weights.ModelSpec(
            model=self.config.model,
            data=self.config.data,
            classes=() if self._numbered else self.classes,
            loss=self.config.loss.meaning,
        )

    def with_classes(self, classes: Sequence[str], where: str, *, remedy: str) -> "LoadedModel":
        """This model with the outputs of these classes, by name; says what it assumes.

        Arguments as in `class_matching.match`; raises UnmatchedError, or as `with_outputs`.
        """
        numbers = isinstance(self.config.loss, config.Regression)
        what = ("column", "columns") if numbers else ("class", "classes")
        return self.with_outputs(
            class_matching.match(self.classes, classes, where, remedy=remedy, what=what)
        )

    def with_outputs(self, outputs: Sequence[int]) -> "LoadedModel":
        """This model with some outputs of its head, in the given order, and no others.

        Raises WeightsError for a model whose head is not `head/`, and so cannot be taken apart.
        """
        # The same object tells callers that nothing has changed.
        if list(outputs) == list(range(len(self.classes))):
            return self
        flat, places = tree_utils.flatten(self.params), np.array(outputs)
        # DeiT's distilled models have two heads, whose outputs are averaged.
        heads = [name for name in flat if name.startswith(("head/", "head_dist/"))]
        if not heads or any(flat[name].shape[-1] != len(self.classes) for name in heads):
            raise weights.WeightsError(
                f"{self.config.name}: has no head/ of {len(self.classes)} outputs, whose classes "
                "could be taken by name; use data with the same classes in the same order"
            )
        kept = {name: np.asarray(flat[name])[..., places] for name in heads}
        model = dataclasses.replace(self.config.model, num_classes=len(outputs))
        loss = self.config.loss
        if isinstance(loss, config.Regression):
            mean, std = (
                one and tuple(one[output] for output in outputs) for one in (loss.mean, loss.std)
            )
            loss = dataclasses.replace(loss, mean=mean, std=std)
        return dataclasses.replace(
            self,
            config=dataclasses.replace(self.config, model=model, loss=loss),
            params=tree_utils.nest(flat | kept),
            classes=tuple(self.classes[output] for output in outputs),
        )

    def for_columns(self) -> "LoadedModel":
        """This model with an output for each of `data.targets`, in their order, by name."""
        columns = self.config.data.targets
        if not columns:
            return self
        remedy = "rename the columns as the head's, or train a new head"
        return self.with_classes(columns, f"data.targets={config.show(columns)}", remedy=remedy)

    def rescaled(self, mean: Sequence[float], std: Sequence[float]) -> "LoadedModel":
        """This model of numbers with another `loss.mean` and `loss.std`, and the same predictions.

        The head is changed by as much, in float64, rounded once. Raises WeightsError where it is
        not `head/` with a bias.
        """
        loss = self.config.loss
        assert isinstance(loss, config.Regression)
        before = [np.asarray(one) for one in (loss.mean or (0.0,), loss.std or (1.0,))]
        count = len(self.classes)
        mean, std = (
            tuple(np.broadcast_to(np.asarray(x, np.float64), count).tolist()) for x in (mean, std)
        )
        if (loss.mean, loss.std) == (mean, std):
            return self
        flat = tree_utils.flatten(self.params)
        heads = [name for name in flat if name.startswith(("head/", "head_dist/"))]
        if not any(name.endswith("/bias") for name in heads):
            raise weights.WeightsError(
                f"{self.config.name}: has no head/bias, which another scale of its numbers needs"
            )
        changed: dict[str, np.ndarray] = {}
        # Equal predictions: (W x + b) std + mean = (W' x + b') std' + mean'.
        for name in heads:
            own = np.asarray(flat[name], np.float64) * before[1]
            if name.endswith("/bias"):
                own += before[0] - np.asarray(mean)
            changed[name] = (own / np.asarray(std)).astype(np.float32)
        loss = dataclasses.replace(loss, mean=mean, std=std)
        return dataclasses.replace(
            self,
            config=dataclasses.replace(self.config, loss=loss),
            params=tree_utils.nest(flat | changed),
        )

    def require_head(self) -> None:
        """Raises WeightsError where there is no head to name classes with.

        Warns of one that looks like a projection, which knows none either.
        """
        self.require_classes()
        if (why := self.fresh.get("head/kernel")) is not None:
            lacks, place = "holds no head", self.config.name
            if self.config.distillation is not None:  # a run
                lacks, place = why, "DIR, its run directory"
            raise weights.WeightsError(
                f"{self.config.name}: {lacks}, so it knows no classes; train one: "
                f"vit_jax train NAME --config.init_from={place}"
            )
        if self.projects:
            line = "its head, without bias or names, is taken for one of classes; wrong if it is "
            line += "CLIP's projection, whose outputs are an image's embedding"
            logs.warn_of_assumptions(self.config.name, [line])

    def require_classes(self) -> None:
        """Raises WeightsError where the model was trained without labels: it has no head."""
        if not self.config.needs_labels:
            objective = self.config.objective.name
            raise weights.WeightsError(
                f"{self.config.name}: learned by objective.name={objective}, so it knows no "
                "classes; fine-tune it: vit_jax train NAME --config.init_from=DIR, its run "
                "directory"
            )


class NotFinite(config.ConfigError):
    """Outputs of a model that are not all finite."""

    def __init__(self) -> None:
        super().__init__(DIVERGED)


def check_finite(*outputs: np.ndarray) -> None:
    """Raises NotFinite for outputs of a model that are not all finite."""
    if not all(np.isfinite(array).all() for array in outputs):
        raise NotFinite


def class_names(classes: Sequence[str], cfg: config.Config) -> tuple[str, ...]:
    """A name for every output of the head: those known, as text, then numbers."""
    more = range(len(classes), cfg.model.num_classes or 0)
    return (*map(messages.printable, classes), *(f"class {index}" for index in more))


def feature_shape(model: models.Classifier, features: str) -> tuple[int, ...]:
    """The shape of one image's features; raises ConfigError where there are none."""
    images = jax.ShapeDtypeStruct((1, *model.image_size, model.channels), jnp.float32)
    _, out = jax.eval_shape(model.apply, model.shapes(), images)
    if features not in ("pre_logits", "tokens"):
        raise config.ConfigError(f"features={features}: must be pre_logits or tokens")
    if features == "tokens" and isinstance(model, adapting.AnySize):
        raise config.ConfigError(
            "--features=tokens: with data.aspect=native their number differs; set pre_logits"
        )
    if features not in out:
        found = models.find_architecture(model.config)
        reason = found.lacks(model.config, "features") or "the network returns none"
        raise config.ConfigError(f"--features={features}: {reason}; set pre_logits")
    return out[features].shape[1:]


def _rows(
    function: Callable[[runner.Batch], tuple[jax.Array, ...]],
    views: np.ndarray | Sequence[np.ndarray],
    sequence: tuple[int, int, int] | None = None,
) -> list[tuple[np.ndarray, ...]]:
    """The results of `function` for each view, in order; views of one shape share batches.

    With `sequence`, patches and their height and width, views are padded to sequences of these.
    """
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, view in enumerate(views):
        shape = view.shape if sequence is None else (*sequence, view.shape[2])
        by_shape.setdefault(shape, []).append(place)
    rows: dict[int, tuple[np.ndarray, ...]] = {}
    for shape, places in by_shape.items():
        for first in range(0, len(places), BATCH):
            part = places[first : first + BATCH]
            # A single image costs no padding, and a shape compiles at most twice: 32 and the rest.
            size = 1 << (len(part) - 1).bit_length()
            images = np.zeros((size, *shape), views[part[0]].dtype)
            batch = {"image": images}
            if sequence is None:
                images[: len(part)] = [views[place] for place in part]
            else:
                batch["grids"] = np.ones((size, 2), np.int32)
                for row, place in enumerate(part):
                    batch["grids"][row] = native_aspect.write_patches(views[place], images[row])
            outputs = map(np.asarray, function(batch))
            # Results behind those of `part` are of padding.
            rows |= zip(part, zip(*outputs, strict=True), strict=False)
    return [rows[place] for place in range(len(views))]


# Frozen and hashable: model and options select a compiled program.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _features(
    model: models.Classifier,
    data: config.Data,
    kind: str,
    params: models.Params,
    batch: runner.Batch,
) -> tuple[jax.Array]:
    _, out = normalization.apply_to_pixels(model, data, params, batch)
    return (out[kind].astype(jnp.float32),)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(
    model: models.Classifier, data: config.Data, params: models.Params, batch: runner.Batch
) -> tuple[jax.Array]:
    return (normalization.apply_to_pixels(model, data, params, batch)[0],)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _best(
    model: models.Classifier,
    data: config.Data,
    count: int,
    loss: config.Loss,
    temperature: jax.typing.ArrayLike,
    params: models.Params,
    batch: runner.Batch,
) -> tuple[jax.Array, jax.Array]:
    """The highest probabilities and their classes, (B, count) each."""
    logits, _ = normalization.apply_to_pixels(model, data, params, batch)
    return losses.most_probable(logits / temperature, loss, count)
