"""Which parts of an image speak for a class: four maps, and the curves that test them.

    gradient rollout      Chefer et al. 2021 (ICCV): attention times gradient, through all layers
    Grad-CAM              Selvaraju et al. 2017, of the tokens that the last layer attends to
    integrated gradients  Sundararajan et al. 2017, from a black image
    rollout               Abnar and Zuidema 2020: attention alone, the same for every class

All gradients are those of the logit. Letters as in `models.layers`; views are (B, H, W, C) uint8 or
uint16, preprocessed and not yet normalized.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import config, models
from vit_jax.inference import loaded_model
from vit_jax.inference.inspect import measures
from vit_jax.inference.inspect.measures import CannotAnswer
from vit_jax.models import variants
from vit_jax.models.variants import required
from vit_jax.models.vit import ViT
from vit_jax.training import losses, normalization
from vit_jax.weights import WeightsError

GRADIENT_ROLLOUT, GRAD_CAM, INTEGRATED, ROLLOUT, RANDOM = (
    "gradient rollout",
    "Grad-CAM",
    "integrated gradients",
    "rollout",
    "random order",
)
STEPS = 32  # of the integral
POINTS = 16  # of a curve
BATCH = 16  # images of a curve at a time
ORDERS = 3  # random ones, whose areas are averaged
BLUR = (11 / 224, 5 / 224)  # kernel and deviation of the insertion's first image, of the side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """The probability of a class as cells are deleted or inserted in the order of a map.

    Attributes:
      shares: (n,) of the cells that are gone, or there, from 0 to 1.
      deletion: (n,) probabilities while the most salient cells become the mean color.
      insertion: (n,) probabilities while they come into a blurred image.
    """

    shares: np.ndarray
    deletion: np.ndarray
    insertion: np.ndarray

    @property
    def areas(self) -> tuple[float, float]:
        """Areas under deletion, where less is better, and insertion, where more is."""
        deleted, inserted = (np.trapezoid(y, self.shares) for y in (self.deletion, self.insertion))
        return float(deleted), float(inserted)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of curves over the same shares."""
    deletion = np.mean([one.deletion for one in curves], axis=0)
    insertion = np.mean([one.insertion for one in curves], axis=0)
    return Curve(shares=curves[0].shares, deletion=deletion, insertion=insertion)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """The maps of one image for one class.

    Attributes:
      label: the class, an output of the head.
      probability: of the class.
      maps: (rows, columns) float64 by name; more is more salient. Without `gradient rollout` and
        `rollout` where tokens do not attend to each other.
      pixels: (H, W) float32, integrated gradients summed over channels.
      gap: the sum of the integrated gradients minus `rise`.
      rise: by how much the logit exceeds that of a black image.
      curves: by name of the map, and of random orders, whose mean it is.
    """

    label: int
    probability: float
    maps: Mapping[str, np.ndarray]
    pixels: np.ndarray
    gap: float
    rise: float
    curves: Mapping[str, Curve]


def explain(
    opened: loaded_model.LoadedModel,
    view: np.ndarray,
    label: int | None = None,
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Explanation:
    """The maps of an image (H, W, C) for a class, and their curves.

    Without a label, the class is the most probable one. `seed` draws the random orders.
    """
    cfg = opened.config
    pixels = np.asarray(normalization.normalize_pixels(jnp.asarray(view[None]), cfg.data))
    logits = _scaled_logits(opened, pixels)
    first = np.asarray(losses.probabilities(logits, cfg.loss))[0]
    loaded_model.check_finite(first)
    if label is None:
        _, best = losses.most_probable(jnp.asarray(logits), cfg.loss, 1)
        label = int(best[0, 0])
    maps = class_maps(opened, view, [label])[0]
    black = normalization.normalize_pixels(jnp.zeros_like(view[None]), cfg.data)
    found, rise = integrated_gradients(opened, pixels, np.asarray(black), label, steps)
    each = found[0].sum(axis=-1)
    maps[INTEGRATED] = _cells(each, cfg)
    if attends(cfg.model):
        (weights,) = measures.attention_weights(opened, view[None])
        rolled = measures.output_attention(measures.rollout(weights), cfg)[0]
        maps[ROLLOUT] = rolled.astype(np.float64)
    blurred = normalization.normalize_pixels(jnp.asarray(_blur(view)[None]), cfg.data)
    measure = functools.partial(_curve, opened, pixels[0], np.asarray(blurred)[0], label)
    curves = {name: measure(one) for name, one in maps.items()}
    rng = np.random.default_rng(seed)
    shape = next(iter(maps.values())).shape
    # What a map has to be better than.
    several = [measure(rng.permutation(math.prod(shape)).reshape(shape)) for _ in range(ORDERS)]
    curves[RANDOM] = mean_curve(several)
    return Explanation(
        label=label,
        probability=float(first[label]),
        maps=maps,
        pixels=each,
        gap=float(each.sum(dtype=np.float64)) - rise,
        rise=rise,
        curves=curves,
    )


def require(opened: loaded_model.LoadedModel) -> None:
    """Raises CannotAnswer for a model without a head of classes, or without a map."""
    try:
        opened.require_head()
    except WeightsError as error:
        raise CannotAnswer(str(error)) from error
    if opened.config.loss.meaning == "mse":
        raise CannotAnswer("the model predicts numbers, and has no classes")
    measures.require(opened.config.model, "saliency")
    if attends(opened.config.model):
        measures.require_attention(opened)


def attends(model: config.Model) -> bool:
    """Whether tokens attend to each other, so that there is a rollout."""
    return models.find_architecture(model).lacks(model, "attention") is None


def _model(opened: loaded_model.LoadedModel) -> models.Classifier:
    """The network as a small program, which compiles within seconds."""
    cfg = opened.config
    return measures.explicit_model(cfg) if attends(cfg.model) else opened.model


def find_class(classes: tuple[str, ...], name: str | int) -> int:
    """The output with a name, else with an index; raises ConfigError.

    Case does not matter, and one of several names between commas is enough.
    """
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise config.ConfigError(f"--class={name!r}: must be the name or the index of a class")
    if not isinstance(name, str):
        if not 0 <= name < len(classes):
            raise config.ConfigError(
                f"--class={name}: the model has no such class, of 0 to {len(classes) - 1}"
            )
        return name
    wanted = name.casefold()
    # The strictest reading first; an index comes last, as classes may be called by numbers.
    for match in (
        [i for i, one in enumerate(classes) if one == name],
        [i for i, one in enumerate(classes) if one.casefold() == wanted],
        [i for i, one in enumerate(classes) if wanted in one.casefold().split(", ")],
    ):
        if len(match) > 1:
            raise config.ConfigError(
                f"--class={name}: is the name of outputs {', '.join(map(str, match))}; name one"
            )
        if match:
            return match[0]
    if name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < len(classes):
        return int(name)
    raise config.ConfigError(
        f"--class={name}: the model has no such class, of 0 to {len(classes) - 1}"
        f"{config.suggest(name, classes)}"
    )


# Maps


def class_maps(
    opened: loaded_model.LoadedModel, view: np.ndarray, labels: list[int]
) -> list[dict[str, np.ndarray]]:
    """Grad-CAM and, with attention, gradient rollout of a view (H, W, C) for each class.

    The maps are (rows, columns) float64. Attention of a plug-in that does not read `gate`, so that
    nothing is known of its gradients, has no gradient rollout.
    """
    cfg = opened.config
    grid, prefix = variants.grid(cfg.model, cfg.data.image_size), variants.prefix_tokens(cfg.model)
    found = []
    # The label is traced, so all classes share one compiled program.
    for label in labels:
        last, gated, pooled = _gradients(_model(opened), cfg.data, opened.params, view[None], label)
        # Patches come last, behind the class token and registers.
        activations, gradients = (
            part.reshape(1, -1, part.shape[-1])[:, -math.prod(grid) :]
            for part in np.asarray(last, np.float64)
        )
        maps = {GRAD_CAM: grad_cam(activations, gradients)[0].reshape(grid)}
        if gated is not None and (gated.any() or not variants.is_plugged_in(cfg.model)):
            relevance = gradient_rollout(np.asarray(gated, np.float64))
            if pooled is None:
                own = measures.output_attention(relevance, cfg)[0]
            else:
                first = variants.first_pooled(cfg.model)
                onto = pooled_relevance(relevance, np.asarray(pooled, np.float64), first)
                own = onto[0, prefix:].reshape(grid)
            maps = {GRADIENT_ROLLOUT: own} | maps
        found.append(maps)
    return found


def grad_cam(activations: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """ReLU of the features (B, P, F), weighted by their mean gradients (B, P, F); (B, P)."""
    importance = gradients.mean(axis=1, keepdims=True)
    return np.maximum((activations * importance).sum(axis=-1), 0.0)


def gradient_rollout(gated: np.ndarray) -> np.ndarray:
    """Relevance of tokens to tokens beyond their own, (B, N, N).

    Layer by layer R becomes R + A R from R = I, with A the mean over heads of what is positive of
    attention times gradient (Chefer et al. 2021, "Generic Attention-model Explainability",
    equations 5 and 6). The identity is taken off at the end. `gated` is attention times gradient
    (L, B, H, N, N).
    """
    identity = np.eye(gated.shape[-1])
    relevance = np.broadcast_to(identity, (gated.shape[1], *identity.shape))
    for layer in gated:
        relevance = relevance + np.maximum(layer, 0.0).mean(axis=1) @ relevance
    return relevance - identity


def pooled_relevance(relevance: np.ndarray, pooled: np.ndarray, first: int) -> np.ndarray:
    """Relevance of tokens (B, N) to a probe that attends to those from `first` on.

    The rule for attention between two sequences (ibid., equations 8 to 10), of which the probe is
    one: rows of the relevance of tokens to tokens are divided by their sums, and the identity is
    added. `pooled` is attention times gradient of the probe, (B, H, 1, N - first), which does not
    see the tokens before `first`.
    """
    total = relevance.sum(axis=-1, keepdims=True)
    rows = relevance / np.where(total > 0, total, 1.0) + np.eye(relevance.shape[-1])
    return (np.maximum(pooled, 0.0).mean(axis=1) @ rows[:, first:])[:, 0]


@jax.custom_vjp
def _tap(x: jax.Array, slot: jax.Array) -> jax.Array:
    """x; the gradient of `slot` (2, *x.shape) float32 is x and the gradient of x."""
    del slot
    return x


_tap.defvjp(
    lambda x, slot: (x, x),
    lambda x, gradient: (gradient, jnp.stack([x, gradient]).astype(jnp.float32)),
)


class _Tapped(nnx.Module):
    def __init__(self, inner: Callable[[jax.Array], jax.Array], slot: jax.Array) -> None:
        self.inner, self.slot = inner, nnx.Param(slot)

    def __call__(self, *given: Any, **named: Any) -> jax.Array:
        return _tap(self.inner(*given, **named), self.slot[...])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gradients(
    model: models.Classifier,
    data: config.Data,
    params: models.Params,
    views: jax.Array,
    label: jax.typing.ArrayLike,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Gradients of the logit of a class.

    Returns:
      The last map and its gradient, (2, B, h, w, F) or (2, B, N, D); attention times gradient
      (L, B, H, N, N), if tokens attend to each other; and that of attention pooling
      (B, H, 1, N), of the tokens that it sees, if there is one.
    """
    images = normalization.normalize_pixels(jnp.asarray(views), data)
    options, (batch, *_) = model.config, images.shape
    *parents, last = path = _last_map(model, params)
    # A plug-in may have another network, of which nothing else is known.
    layered = isinstance(model.bind(params), ViT)
    stacked = layered and parents[:1] == ["encoder"]
    tokens = model.patches + variants.prefix_tokens(options)
    # The layers of an encoder are one module in a loop: the slot has a row for each of them.
    if stacked:
        shape = (required(options.depth), 2, batch, tokens, required(options.width))
    else:
        shape = (2, *_map_shape(model, params, images, path))
    slots = {"last": jnp.zeros(shape, jnp.float32)}
    if layered and attends(options):
        layers, heads = required(options.depth), required(options.heads)
        # A gate multiplies the attention weights, so its gradient at 1 is attention times gradient.
        slots["gates"] = jnp.ones((layers, batch, heads, tokens, tokens), jnp.float32)
        if options.pooling == "map":
            heads = options.pooling_heads or heads
            seen = tokens - variants.first_pooled(options)
            slots["pooling"] = jnp.ones((batch, heads, 1, seen), jnp.float32)

    def logit(slots: dict[str, jax.Array]) -> jax.Array:
        network = model.bind(params)
        if "gates" in slots:
            network.encoder.attention.gate = nnx.Param(slots["gates"])
        if "pooling" in slots:
            network.pooling.attention.gate = nnx.Param(slots["pooling"])
        parent = functools.reduce(getattr, parents, network)
        setattr(parent, last, _Tapped(getattr(parent, last), slots["last"]))
        return network(images)[0][:, label].sum()

    found = jax.grad(logit)(slots)
    last_map = found["last"][-1] if stacked else found["last"]
    return last_map, found.get("gates"), found.get("pooling")


def _last_map(model: models.Classifier, params: models.Params) -> list[str]:
    """The path of the module whose output Grad-CAM reads; raises ConfigError if there is none."""
    path = [str(name) for name in models.find_architecture(model.config).last_map(model.config)]
    try:
        found = functools.reduce(getattr, path, model.bind(params))
    except AttributeError:
        found = None
    if not path or not callable(found):
        raise config.ConfigError(
            f"model.architecture={model.config.architecture}: its last_map is {'/'.join(path)}; "
            "must be the path of a module of its network"
        )
    return path


class _Noted(nnx.Module):
    def __init__(self, inner: Callable[..., jax.Array], note: Callable[[Any], None]) -> None:
        self.inner, self.note = inner, note

    def __call__(self, *given: Any, **named: Any) -> jax.Array:
        found = self.inner(*given, **named)
        self.note(getattr(found, "shape", ()))
        return found


def _map_shape(
    model: models.Classifier, params: models.Params, images: jax.Array, path: list[str]
) -> tuple[int, ...]:
    """The shape of the output of a module; raises ConfigError if it is no map of the grid."""
    shapes: list[tuple[int, ...]] = []

    def call(params: models.Params, images: jax.Array) -> jax.Array:
        network = model.bind(params)
        parent = functools.reduce(getattr, path[:-1], network)
        setattr(parent, path[-1], _Noted(getattr(parent, path[-1]), shapes.append))
        return network(images)[0]

    jax.eval_shape(call, params, images)
    shape = shapes[-1] if shapes else ()
    if len(shape) not in (3, 4) or math.prod(shape[1:-1]) < model.patches:
        raise config.ConfigError(
            f"model.architecture={model.config.architecture}: its last_map, {'/'.join(path)}, is "
            f"{shape}; must be (B, h, w, F) or (B, N, D), with {model.patches} patches"
        )
    return shape


def integrated_gradients(
    opened: loaded_model.LoadedModel, pixels: np.ndarray, black: np.ndarray, label: int, steps: int
) -> tuple[np.ndarray, float]:
    """Integrated gradients by the midpoint rule, and the rise of the logit that they explain.

    Pixels are images (B, H, W, C); the path is a line to them from `black`, in `steps` steps. Both
    are normalized.

    Returns:
      (B, H, W, C) float32, and the rise, summed over images.
    """
    arguments = _model(opened), opened.params, label
    # Not one program with a loop: on CPUs XLA has no fast gradient of convolutions in a loop.
    total = sum(
        np.asarray(_slope(*arguments, black + (step + 0.5) / steps * (pixels - black))[1])
        for step in range(steps)
    )
    rise = float(_slope(*arguments, pixels)[0]) - float(_slope(*arguments, black)[0])
    return (pixels - black) * total / np.float32(steps), rise


@functools.partial(jax.jit, static_argnums=0)
def _slope(
    model: models.Classifier, params: models.Params, label: jax.typing.ArrayLike, images: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The logit of a class, summed over images, and its gradient (B, H, W, C)."""
    # Images do not affect each other, so the gradient of the sum is that of each logit.
    return jax.value_and_grad(lambda x: model.apply(params, x)[0][:, label].sum())(images)


def _cells(pixels: np.ndarray, cfg: config.Config) -> np.ndarray:
    """Sums (rows, columns) of pixels (H, W) over the cells of the grid."""
    rows, columns = variants.grid(cfg.model, cfg.data.image_size)
    height, width = variants.covered(cfg.model, cfg.data.image_size)
    part = pixels[:height, :width].astype(np.float64)
    mean = cv2.resize(part, (columns, rows), interpolation=cv2.INTER_AREA)
    # INTER_AREA gives means of cells; sums are wanted.
    return mean * (height * width / (rows * columns))


# Curves


def _curve(
    opened: loaded_model.LoadedModel,
    pixels: np.ndarray,
    blurred: np.ndarray,
    label: int,
    salient: np.ndarray,
) -> Curve:
    """Deletion and insertion (Petsiuk et al. 2018, RISE) by the cells of a map (rows, columns).

    Deleted cells become the mean color, 0 once normalized. Of equal cells the first comes first.
    The image (H, W, C), and the blurred one that insertion begins with, are normalized.
    """
    cfg, cells = opened.config, salient.size
    rank = np.empty(cells, np.int64)
    # The inverse of the order: how many cells leave before each.
    rank[np.argsort(-salient.ravel(), kind="stable")] = np.arange(cells)
    height, width = variants.covered(cfg.model, cfg.data.image_size)
    rows, columns = salient.shape
    # Pixels that fill no whole patch go with the last cell of their row or column.
    y = np.minimum(np.arange(pixels.shape[0]) * rows // height, rows - 1)
    x = np.minimum(np.arange(pixels.shape[1]) * columns // width, columns - 1)
    ranks = rank.reshape(rows, columns)[y[:, None], x[None], None]
    # A grid of few cells repeats counts.
    counts = np.unique(np.rint(np.linspace(0, cells, POINTS)).astype(np.int64))
    taken = ranks[None] < counts[:, None, None, None]
    deleted, inserted = np.where(taken, np.float32(0), pixels), np.where(taken, pixels, blurred)
    logits = _scaled_logits(opened, np.concatenate([deleted, inserted]))
    found = np.asarray(losses.probabilities(logits, cfg.loss))[:, label]
    return Curve(
        shares=counts / cells, deletion=found[: len(counts)], insertion=found[len(counts) :]
    )


def _blur(view: np.ndarray) -> np.ndarray:
    """A view blurred by the authors' Gaussian, scaled from 224 pixels to its side."""
    kernel, deviation = (share * min(view.shape[:2]) for share in BLUR)
    size = 2 * max(round((kernel - 1) / 2), 1) + 1
    # OpenCV drops the axis of a single channel.
    return cv2.GaussianBlur(view, (size, size), deviation).reshape(view.shape)


def _scaled_logits(opened: loaded_model.LoadedModel, images: np.ndarray) -> np.ndarray:
    """Logits (n, K), by the temperature, of normalized images (n, H, W, C), BATCH at a time."""
    found = []
    for first in range(0, len(images), BATCH):
        part = images[first : first + BATCH]
        # Repeated up to BATCH, so that one shape is compiled.
        logits = _logits(_model(opened), opened.params, np.resize(part, (BATCH, *part.shape[1:])))
        found.append(np.asarray(opened.scaled(logits))[: len(part)])
    return np.concatenate(found)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model: models.Classifier, params: models.Params, images: jax.Array) -> jax.Array:
    return model.apply(params, images)[0]
