"""Adapts weights to another task or image size (ViT, section 3.2, B.1.1)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config, models
from vit_jax.config import options
from vit_jax.models import variants
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.models.positions import OFFSET, fixed, interpolation
from vit_jax.utils import tree_utils
from vit_jax.weights import mapping
from vit_jax.weights.arrays import WeightsError

MASKED = ("mask_token", "prediction/")  # of masked patch prediction
HEAD = ("head/", "head_dist/", "pre_logits/", *MASKED)
# Tokens that a model may lack.
APART = {"cls": "class token", "distillation": "distillation token", "registers": "registers"}
# Options fixed by the pretrained weights: they change the function or the parameter set.
NUMERICS = (
    *("activation", "gelu", "norm_epsilon", "norm_place", "class_position", "resnet_epsilons"),
    *("resnet_pool", "mlp", "layer_scale", "registers", "distillation", "norm", "stem_norm"),
    *("patch_norm", "pooling_heads", "pooling_mlp_dim", "pooling_prefix"),
    *("qk_norm", "biasless", "rotary", "rotary_span", "rotary_grid", "sub_norm", "relative_bias"),
    *("rotary_offset", "rotary_learned", "position_resize", "position_place"),
)
TABLELESS = {"none", "sincos_1d", "sincos_2d", "sincos_2d_mae"}  # kinds of `model.position`
# Options that decide which arrays there are, and their shapes; a run keeps its own.
SIZES = ("architecture", "resnet_units", "resnet_width", "resnet_version", "patch_size", "width",
         "depth", "mlp_dim", "heads", "position")  # fmt: skip


def fit_params(
    params: models.Params,
    spec: mapping.ModelSpec,
    target: models.Classifier,
    *,
    keep_head: bool,
) -> tuple[models.Params, mapping.MappingReport]:
    """The initial parameters of `target`, and a report on every array.

    Omits fresh parameters, which keep their initial values; those of a head are zero. Position
    embeddings are resized over the patch grid by the target's `model.position_resize`; the row of a
    class token is copied. The first layer takes other channels as `for_channels` says. Without
    `keep_head` the layers after the encoder are dropped.

    Raises WeightsError, in one line with every difference, if the networks differ.
    """
    source, wanted = tree_utils.flatten(params), tree_utils.flatten(target.shapes())
    # Weights with sine-cosine positions have no table; learned positions then start from those
    # values instead of at random.
    if "position/table" in wanted and (table := fixed_positions(spec)) is not None:
        source["position/table"] = table
    dropped: dict[str, str] = {}
    fresh: dict[str, str] = {}
    resized: dict[str, str] = {}
    kept: dict[str, np.ndarray] = {}
    wrong: list[str] = []
    # Every difference is collected: they mostly have one cause, such as another width, and it shows
    # best from all of them.
    for name, leaf in wanted.items():
        array = source.get(name)
        head = name.startswith(HEAD)
        if head and not keep_head:
            fresh[name] = _whose(name, "the head is new")
        elif array is None and name in APART:
            fresh[name] = f"the weights have no {APART[name]}"
        elif array is None:
            remedy = f", not {leaf.shape}; a new head would fit" if head else ""
            wrong.append(f"{name} is missing{remedy}")
        # Before shapes are compared: 2 x 8 and 4 x 4 patches have tables of one shape.
        elif name.endswith("relative_bias/table") or "position/" in name:
            if "position/" in name:
                kept[name], how = positions(name, array, spec, target)
            else:
                kept[name], how = _biases(array, spec, target)
            if kept[name].shape != leaf.shape:
                wrong.append(f"{name} is {array.shape}, not {leaf.shape}")
            elif how:
                resized[name] = how
        elif array.shape == leaf.shape:
            kept[name] = array
        elif (adapted := for_channels(array, leaf.shape)) is not None:
            kept[name] = adapted
            resized[name] = f"from {array.shape[2]} to {leaf.shape[2]} channels"
        else:
            remedy = "; a new head would fit" if head else ""
            remedy = "; offsets between tokens cannot be resized" if "/offsets/" in name else remedy
            wrong.append(f"{name} is {array.shape}, not {leaf.shape}{remedy}")
    # Whatever the model has no place for is an error unless it is known to be harmless: dropped
    # without a word, the network would compute something else.
    for name in source:
        if name.startswith(f"{OBJECTIVE}/"):
            dropped[name] = "of the objective it was trained by"
        elif name.startswith(HEAD) and name not in kept:
            dropped[name] = _whose(name, "the head of another task")
        elif name in APART and name not in wanted:
            dropped[name] = f"the model has no {APART[name]}"
        elif name not in wanted:
            wrong.append(f"{name} has no place in the model")
    if wrong:
        differing = _other_sizes(spec.model, target.config)
        remedy = differing and f"; set {differing}"
        text = mapping.summary(wrong, 300)
        raise WeightsError(f"the weights do not fit the model: {text}{remedy}")
    return tree_utils.nest(kept), mapping.MappingReport(
        used=len(kept), dropped=dropped, fresh=fresh, resized=resized
    )


def _other_sizes(source: config.Model, target: config.Model) -> str:
    """The size options in which the new model differs from the weights, as settings to paste."""
    keys: list[str] = [*SIZES]
    if "map" in (source.pooling, target.pooling):  # which has arrays of its own
        keys.append("pooling")
    if source.architecture != target.architecture:  # which reads options of its own
        keys = [key for key in keys if getattr(source, key) is not None]
    if source.width is None:
        keys.remove("position")
    pairs = ((key, getattr(source, key), getattr(target, key)) for key in keys)
    return " ".join(f"model.{key}={options.show(had)}" for key, had, has in pairs if had != has)


def for_channels(kernel: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Adapts a kernel (h, w, C, D) of gray or RGB images to another number of channels.

    As timm's `in_chans`: for gray, the sum over the channels. Otherwise new channel c is a copy of
    channel c mod C, scaled by C over the new number of channels, so that an image with equal
    channels gives the same embedding. None if the shapes differ in more than the channels.
    """
    if kernel.ndim != 4 or len(shape) != 4 or kernel.shape[2] not in (1, 3):
        return None
    had, channels = kernel.shape[2], shape[2]
    if (*kernel.shape[:2], channels, kernel.shape[3]) != shape:
        return None
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return kernel[:, :, np.arange(channels) % had] * np.float32(had / channels)


def numerics(
    spec: mapping.ModelSpec, *, keep_head: bool, channels: int = 3, position: str = "learned_1d"
) -> dict[str, object]:
    """The options that the weights determine for any task, by dotted name.

    With `keep_head` the layers after the encoder are used too. Means and deviations of `channels`
    go with `for_channels`, of gray their average. A run whose own `position` has no parameters has
    the weights' instead, if those have none either: nothing else would show the difference.
    """
    model: dict[str, object] = {f"model.{key}": getattr(spec.model, key) for key in NUMERICS}
    if spec.mae is not None:  # which pools nothing, so the next run may normalize what it pools
        del model["model.norm_place"]
    if spec.model.rotary is not None or spec.model.relative_bias != "none":  # positions enough
        model["model.position"] = spec.model.position
    if {position, spec.model.position} <= TABLELESS or spec.model.position_place != "stem":
        model["model.position"] = spec.model.position
    if not keep_head:
        biasless = (part for part in spec.model.biasless if part != "head")
        model["model.biasless"] = tuple(biasless)
    if models.has_class_token(spec.model) and not models.default_class_token(spec.model.pooling):
        model["model.class_token"] = True  # other tokens attend to it even if the head ignores it
    if keep_head:
        keys = [
            "representation_activation",
            *([] if spec.headless else ["pooling", "pooled_layers"]),
        ]
        model |= {f"model.{key}": getattr(spec.model, key) for key in keys}
    return model | {
        f"data.{key}": _each(getattr(spec.data, key), channels) for key in ("mean", "std")
    }


def _each(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(values) in (1, channels):
        return values
    if channels == 1:
        return (sum(values) / len(values),)
    return tuple(values[channel % len(values)] for channel in range(channels))


def resize_grid(
    table: np.ndarray, old: tuple[int, int], new: tuple[int, int], method: str = "aligned"
) -> np.ndarray:
    """Resizes a table of positions, or of biases by offset, (..., rows x columns, D) float32.

    `method` is `model.position_resize`, or `bilinear` or `geometric` of biases.
    """
    *before, _, features = table.shape
    # Every method here is separable: one axis after the other gives what both at once would.
    grid = table.reshape(*before, *old, features).astype(np.float64)
    for axis, (length, wanted) in enumerate(zip(old, new, strict=True), start=len(before)):
        if method == "geometric":
            weights = _geometric(length, wanted)
        else:
            offset = method == "bicubic_offset"
            side, kind = (wanted + OFFSET, "bicubic") if offset else (wanted, method)
            weights = interpolation(np.arange(wanted), side, length, kind, np)
        grid = np.moveaxis(np.tensordot(weights, grid, (1, axis)), 0, axis)
    return grid.reshape(*before, new[0] * new[1], features).astype(np.float32)


def _geometric(old: int, new: int) -> np.ndarray:
    """Weights (new, old) of resized biases, between offsets spaced more widely away from 0.

    Those of BEiT's code and timm's, linear between the offsets. The spacing grows by a factor from
    1.01 on, by which the old offsets span the new ones.
    """
    low, high = 1.01, 1.5
    factor = low
    while high - low > 1e-6:
        factor = (low + high) / 2
        # The sum of the geometric series: how far the old offsets reach.
        wide = (1 - factor ** (old // 2)) / (1 - factor) > new // 2
        low, high = (low, factor) if wide else (factor, high)
    sums = np.cumsum(factor ** np.arange(old // 2))
    known = np.concatenate([-sums[::-1], [0], sums]).astype(np.float32)
    wanted = np.arange(new, dtype=np.float32) - new // 2
    right = np.searchsorted(known, wanted).clip(max=old - 1)
    left = (right - 1).clip(0)
    before, after = (wanted - known[left]).clip(0), (known[right] - wanted).clip(0)
    # An offset that is there already is 0 away from both neighbors, which would be 0 / 0 below.
    alone = (before == 0) & (after == 0)
    before, after = (np.where(alone, 1, part) for part in (before, after))
    weights = np.zeros((new, old))
    for index, share in ((left, after), (right, before)):
        weights[np.arange(new), index] += share / (before + after)
    return weights


def _biases(
    table: np.ndarray, spec: mapping.ModelSpec, target: models.Classifier
) -> tuple[np.ndarray, str]:
    """Relative position biases for the target's grid, and a description of the change.

    Offsets are resized as the projects do that resize positions this way; the rows of other tokens
    are copied.
    """
    old = models.grid(spec.model, spec.data.image_size)
    new = models.grid(target.config, target.image_size)
    if old == new:
        return table, ""
    # Along an axis of n patches, offsets between two of them run from -(n - 1) to n - 1.
    spans = [(2 * rows - 1, 2 * columns - 1) for rows, columns in (old, new)]
    count = spans[0][0] * spans[0][1]
    method = target.config.position_resize
    # In transformers BEiT's biases are resized bilinearly, in timm as in BEiT's own code.
    method = {"bicubic": "bilinear", "antialiased_bicubic": "geometric"}.get(method, method)
    offsets = resize_grid(table[..., :count, :], spans[0], spans[1], method)
    resized = np.concatenate([offsets, table[..., count:, :]], axis=-2)
    return resized, f"from offsets of {old[0]} x {old[1]} to {new[0]} x {new[1]} patches"


def _whose(name: str, head: str) -> str:
    """Why a head array is new or dropped; `head`: the arrays of the classification layer."""
    return "of masked patch prediction" if name.startswith(MASKED) else head


def positions(
    name: str, table: np.ndarray, spec: mapping.ModelSpec, target: models.Classifier
) -> tuple[np.ndarray, str]:
    """A position table for the target's grid, and a description of the changes."""
    old = models.grid(spec.model, spec.data.image_size)
    new = models.grid(target.config, target.image_size)
    method = target.config.position_resize
    had, has = (models.placed_tokens(m) for m in (spec.model, target.config))
    part = name.rpartition("/")[2]
    if part == "cls":  # of a learned_2d: a class token's own
        return table, ""
    if part in ("rows", "columns"):
        axis = ("rows", "columns").index(part)
        if old[axis] == new[axis]:
            return table, ""
        column = resize_grid(table, (old[axis], 1), (new[axis], 1), method)
        return column, f"from {old[axis]} to {new[axis]} {part}"
    patches = table[..., had:, :]
    how = []
    if old != new:
        patches = resize_grid(patches, old, new, method)
        how.append(f"from {old[0]} x {old[1]} to {new[0]} x {new[1]} patches")
    rows = np.zeros_like(table, shape=(*table.shape[:-2], has, table.shape[-1]))
    rows[..., : min(had, has), :] = table[..., : min(had, has), :]
    if bool(had) != bool(has):
        if has:
            how.append("with a row of zeros for the class token")
        elif models.has_class_token(target.config):
            how.append("without the row of the class token")
        else:
            how.append("without a class token")
    elif had != has:
        how.append(f"of the tokens before them {min(had, has)} of {had}")
    return np.concatenate([rows, patches], axis=-2), ", ".join(how)


def fixed_positions(spec: mapping.ModelSpec) -> np.ndarray | None:
    """A table (1, N, D) float32 equal to the fixed positions of a model; None if it has none.

    Rows of the class token and other extra tokens are 0.
    """
    model = spec.model
    table = fixed(model.position, models.grid(model, spec.data.image_size), model.width or 0)
    if table is None:
        return None
    return np.pad(np.asarray(table), ((0, 0), (models.placed_tokens(model), 0), (0, 0)))


class AnySize(models.Classifier):
    """A classifier whose `apply` takes images of other sizes too, multiples of its patches.

    Position embeddings are resized as in fine-tuning; rotary ones are computed for the size. Each
    size is a program of its own under `jit`.
    """

    def apply(
        self,
        params: models.Params,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        capture: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Like `Classifier.apply`; raises ConfigError for unsupported sizes."""
        target = _at(self, (images.shape[1], images.shape[2]))
        matrices = _matrices(self, target.image_size)

        def one(name: str, leaf: jax.Array) -> jax.Array:
            if name not in matrices:
                return leaf
            # At the default precision TPUs would round positions to bfloat16.
            return jnp.einsum("mn,...nd->...md", matrices[name], leaf, precision="highest")

        resized = tree_utils.map_named(one, params) if matrices else params
        return target.apply(resized, images, key=key, capture=capture)

    def check_size(self, size: tuple[int, int]) -> None:
        """Raises ConfigError unless `apply` takes images of this height and width."""
        _matrices(self, size)


def any_size(model: models.Classifier) -> AnySize:
    """The same classifier for images of any size."""
    return AnySize(model.config, model.image_size, model.channels, model.masked)


# Cached, so that the network of a size is traced for its structure once.
@functools.cache
def _at(model: AnySize, size: tuple[int, int]) -> models.Classifier:
    """The classifier of the same network for images of one size."""
    variants.check_model(model.config, size)
    return models.Classifier(model.config, size, model.channels, model.masked)


@functools.cache
def _matrices(model: AnySize, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Interpolation matrices (m, n) float32 for position tables (..., n, D), by parameter name."""
    target = _at(model, size)
    mine, others = (tree_utils.flatten(one.shapes()) for one in (model, target))
    spec = mapping.ModelSpec(model=model.config, data=config.Data(image_size=model.image_size))
    found = {}
    for name, leaf in mine.items():
        if "position/" in name and leaf.ndim > 1:
            # Resizing is linear in the table, so that of an identity is its matrix.
            rows = np.eye(leaf.shape[-2])
            matrix, _ = positions(name, rows, spec, target)
            if not np.array_equal(matrix, rows):  # equally many patches may form another grid
                found[name] = matrix.astype(np.float32)
        elif leaf.shape != others[name].shape:
            raise config.ConfigError(
                f"model.architecture={model.config.architecture}: {name} is of one image size, "
                f"{config.show(model.image_size)}, so no other fits; set data.aspect=fixed, "
                "data.phases=(), and objective.local_views=0 of dino"
            )
    return found
