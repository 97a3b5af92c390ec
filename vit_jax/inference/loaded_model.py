"""A checkpoint in memory: a model with its parameters, classes and preprocessing."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models, weights
from vit_jax.config import Config
from vit_jax.data import decoding, image_inputs, native_aspect, transforms
from vit_jax.evaluation import runner
from vit_jax.training import build, losses, normalization
from vit_jax.utils import messages, tree_utils
from vit_jax.weights import adapting

BATCH = 32  # images at a time in `predict` and `embed`
WAITING = 8  # batches of images of several shapes that wait for others of theirs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One image: its best classes with probabilities, or why it could not be read.

    Attributes:
      image: a path, or the position in the images given, such as `images[0]`.
      top: classes and probabilities, the most probable first.
      truth: the true class, if known.
      error: why the image could not be read.
    """

    image: str
    top: tuple[tuple[str, float], ...] = ()
    truth: str | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its parameters, class names and preprocessing; `load` returns one.

    Attributes:
      config: the complete config, with the number of classes.
      params: float32 arrays, nested by name.
      classes: the name of each output.
      kind: `run`, or the format of the weights.
      notes: how the arrays of another project were used.
      assumed: what its files leave open, and what was assumed; a line for each reason.
      fresh: parameters that the checkpoint lacks, and why.
      step: the step of a run's checkpoint.
      chosen: why it is this one, such as `step 60, the best by validation/top1 (0.6120); ...`.
    """

    config: Config
    params: Any
    classes: tuple[str, ...]
    kind: str
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)
    step: int | None = None
    chosen: str = ""

    def __repr__(self) -> str:
        return (
            f"LoadedModel({self.config.name}: {self.model.num_params:,} parameters, "
            f"{len(self.classes)} classes, images {(*self.model.image_size, self.model.channels)})"
        )

    @functools.cached_property
    def model(self) -> models.Classifier:
        """The network as functions of its parameters."""
        return build.create_model(self.config)

    def preprocess(self, images: Any) -> jax.Array:
        """Returns images as `apply` takes them: resized, cropped and normalized as in evaluation.

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

    def _views(self, images: Any) -> list[np.ndarray]:
        views = []
        for name, image in image_inputs.read_images(images, self.config.data):
            try:
                views.append(self._view(image))
            except decoding.BadImage as error:
                raise decoding.BadImage(f"{name}: {error}") from error
        if not views:
            raise decoding.BadImage("images: is empty; expected at least one image")
        return views

    def apply(
        self,
        params: Any,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns logits (B, K) and intermediates by name; a pure function, for jit and grad.

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

    def predict(self, images: Any, *, top: int = 3) -> list[Prediction]:
        """Returns the `top` classes of each image; `images` as in `preprocess`.

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
        read = image_inputs.read_images(images, self.config.data)
        return list(self.classify(((name, image, None) for name, image in read), top))

    def embed(self, images: Any, *, features: str = "pre_logits") -> np.ndarray:
        """Returns features of images, float32; `images` as in `preprocess`.

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
        check_features(self.model, features)
        views = self._views(images)
        parts, places = [], []
        for place, batch in _alike(views):
            seen = normalization.normalize_pixels(jnp.asarray(batch), self.config.data)
            parts.append(self.features_of(seen, features))
            places += place
        return np.concatenate(parts)[np.argsort(places)]

    def features_of(self, batch: jax.Array, features: str) -> np.ndarray:
        """Returns features, as `embed`, of images that `preprocess` has made ready."""
        parts = []
        for first in range(0, len(batch), BATCH):
            part = batch[first : first + BATCH]
            padded = jnp.pad(part, [(0, BATCH - len(part)), (0, 0), (0, 0), (0, 0)])
            parts.append(np.asarray(_embed(self.model, features, self.params, padded))[: len(part)])
        return np.concatenate(parts)

    def classify(
        self, images: Iterable[tuple[str, bytes | np.ndarray, str | None]], top: int
    ) -> Iterator[Prediction]:
        """Yields a prediction for each (name, encoded or uint8 HWC image, true class or None)."""
        self.check_head()
        waiting: list[tuple[str, np.ndarray, str | None]] = []
        for name, image, truth in images:
            try:
                waiting.append((name, self._view(image), truth))
            except decoding.BadImage as error:
                yield Prediction(image=name, error=str(error))
            if len(waiting) == BATCH * (WAITING if self.config.data.aspect == "native" else 1):
                yield from self._classify(waiting, top)
                waiting = []
        if waiting:
            yield from self._classify(waiting, top)

    @functools.cached_property
    def _transforms(self) -> Sequence[transforms.Transform]:
        data = self.config.data
        if data.aspect == "native":
            return (
                native_aspect.FitNearest(
                    runner.native_shapes(self.model), transforms.eval_resampling(data)
                ),
            )
        return transforms.eval_transforms(data)

    def _view(self, image: bytes | np.ndarray) -> np.ndarray:
        data = self.config.data
        view = decoding.load(
            image, channels=data.channels, max_pixels=data.max_pixels, depth=data.depth
        )
        for transform in self._transforms:
            view = transform(view, np.random.default_rng(0))
        return view

    def _classify(
        self, waiting: Sequence[tuple[str, np.ndarray, str | None]], top: int
    ) -> Iterator[Prediction]:
        count, cfg = min(top, len(self.classes)), self.config
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for places, batch in _alike([view for _, view, _ in waiting]):
            # One batch size, one compilation for each shape.
            batch = np.pad(batch, [(0, BATCH - len(places)), (0, 0), (0, 0), (0, 0)])
            best = _top(self.model, cfg.data, count, cfg.loss, self.params, batch)
            found |= dict(zip(places, zip(*map(np.asarray, best), strict=True), strict=False))
        for place, (name, _, truth) in enumerate(waiting):
            pairs = zip(*found[place], strict=True)
            best = tuple((self.classes[index], float(value)) for value, index in pairs)
            yield Prediction(image=name, top=best, truth=truth)

    @property
    def spec(self) -> weights.ModelSpec:
        """The model as `weights` describes one."""
        numbered = self.classes == class_names((), self.config)
        return weights.ModelSpec(
            model=self.config.model,
            data=self.config.data,
            classes=() if numbered else self.classes,
            loss=self.config.loss.name,
            fresh=self.fresh,
        )

    def with_outputs(self, outputs: Sequence[int]) -> "LoadedModel":
        """This model with some outputs of its head, in the given order, and no others.

        Raises WeightsError for a model whose head is not `head/`, and so cannot be taken apart.
        """
        if list(outputs) == list(range(len(self.classes))):
            return self
        flat, places = tree_utils.flatten(self.params), np.array(outputs)
        heads = [name for name in flat if name.startswith(("head/", "head_dist/"))]
        if not heads or any(flat[name].shape[-1] != len(self.classes) for name in heads):
            raise weights.WeightsError(
                f"{self.config.name}: has no head/ of {len(self.classes)} outputs, whose classes "
                "could be taken by name; use data with the same classes in the same order"
            )
        kept = {name: np.asarray(flat[name])[..., places] for name in heads}
        model = dataclasses.replace(self.config.model, num_classes=len(outputs))
        return dataclasses.replace(
            self,
            config=dataclasses.replace(self.config, model=model),
            params=tree_utils.nest(flat | kept),
            classes=tuple(self.classes[output] for output in outputs),
        )

    def check_head(self) -> None:
        """Raises WeightsError where there is no head to name classes with."""
        self.check_whole()
        if "head/kernel" in self.fresh:
            raise weights.WeightsError(
                f"{self.config.name}: holds no head, so it knows no classes; train one: "
                f"vit_jax train NAME --config.init_from={self.config.name}"
            )

    def check_whole(self) -> None:
        """Raises WeightsError where the model fills in patches: it has no other form."""
        if self.config.masked.target is not None:
            raise weights.WeightsError(
                f"{self.config.name}: learned to fill in masked patches, so it knows no classes; "
                "fine-tune it: vit_jax train NAME --config.init_from=DIR, its run directory"
            )


def _alike(views: Sequence[np.ndarray]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yields the places of at most BATCH views of one shape, and these as one array."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, view in enumerate(views):
        by_shape.setdefault(view.shape, []).append(place)
    for places in by_shape.values():
        for first in range(0, len(places), BATCH):
            part = places[first : first + BATCH]
            yield part, np.stack([views[place] for place in part])


def class_names(classes: Sequence[str], cfg: config.Config) -> tuple[str, ...]:
    """Returns a name for every output of the head: those known, as text, then numbers."""
    more = range(len(classes), cfg.model.num_classes or 0)
    return (*map(messages.printable, classes), *(f"class {index}" for index in more))


def check_features(model: models.Classifier, features: str) -> tuple[int, ...]:
    """Returns the shape of one image's features; raises ConfigError where there are none."""
    images = jax.ShapeDtypeStruct((1, *model.image_size, model.channels), jnp.float32)
    _, out = jax.eval_shape(model.apply, model.shapes(), images)
    if features not in ("pre_logits", "tokens"):
        raise config.ConfigError(f"features={features}: must be pre_logits or tokens")
    if features == "tokens" and isinstance(model, adapting.AnySize):
        raise config.ConfigError(
            "--features=tokens: with data.aspect=native every shape has other ones; set pre_logits"
        )
    if features not in out:
        raise config.ConfigError(f"--features={features}: a ResNet has no tokens; set pre_logits")
    return out[features].shape[1:]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _embed(model: models.Classifier, features: str, params: Any, batch: jax.Array) -> jax.Array:
    return model.apply(params, batch)[1][features].astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _top(
    model: models.Classifier,
    data: config.Data,
    k: int,
    loss: config.Loss,
    params: Any,
    batch: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    logits, _ = model.apply(params, normalization.normalize_pixels(jnp.asarray(batch), data))
    return jax.lax.top_k(losses.probabilities(logits, loss), k)
