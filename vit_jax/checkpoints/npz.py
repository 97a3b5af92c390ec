"""Reads the weights of Google's vision_transformer and big_vision: one .npz file, flat names."""

import math
import pathlib
import re
import zipfile

import jax.numpy as jnp
import numpy as np

from vit_jax import config, models, trees
from vit_jax.checkpoints.record import CheckpointError

# Name in the file -> ours; the first group is the number of a layer, whose arrays we stack on a
# new first axis. Shapes are the same on both sides. Files written before Flax Linen count all
# submodules of a block together (LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2,
# MlpBlock_3), later ones count each kind by itself.
LAYER = r"Transformer/encoderblock_(\d{1,3})/"
RULES = (
    (r"()(embedding/(?:kernel|bias))", r"\2"),
    (r"()cls", "cls"),
    (r"()Transformer/posembed_input/pos_embedding", "position/table"),
    (LAYER + r"LayerNorm_0/(scale|bias)", r"encoder/norm1/\2"),
    (
        LAYER + r"MultiHeadDotProductAttention_[01]/((?:query|key|value|out)/(?:kernel|bias))",
        r"encoder/attention/\2",
    ),
    (LAYER + r"LayerNorm_[12]/(scale|bias)", r"encoder/norm2/\2"),
    (LAYER + r"MlpBlock_[03]/Dense_0/(kernel|bias)", r"encoder/mlp/fc1/\2"),
    (LAYER + r"MlpBlock_[03]/Dense_1/(kernel|bias)", r"encoder/mlp/fc2/\2"),
    (r"()Transformer/(encoder_norm/(?:scale|bias))", r"\2"),
    (r"()((?:pre_logits|head)/(?:kernel|bias))", r"\2"),
)
PREFIX = re.compile(r"opt/target/|params/")

# The largest released ViT takes 2.5 GB; whoever unpacks to more than this means harm.
MAX_BYTES = 32 * 2**30

# By our name and layer (None where there is only one): the name in the file, and the array.
Found = dict[tuple[str, int | None], tuple[str, np.ndarray]]


def load(
    path: str | pathlib.Path, image_size: tuple[int, int] | None = None
) -> tuple[models.Params, config.Model, tuple[int, int]]:
    """Returns parameters (numpy float32), the model they belong to, and its image size.

    Everything follows from names and shapes: class token or average pooling, a tanh layer before
    the head or none; a file without position embeddings is big_vision's with fixed 2-D sin-cos.

    Args:
      path: a .npz file as published, its names with or without `opt/target/` or `params/`.
      image_size: height and width in pixels, needed where the file does not tell: its position
        embeddings are not those of a square image, or it has none.

    Raises CheckpointError, in one line with every problem: a file that is no .npz or is damaged;
    an array that is unknown, missing, doubled, of the wrong shape or type, or not finite.
    """
    problems: list[str] = []
    try:
        found = _rename(_read(pathlib.Path(path)), problems)
        model, size, channels = _infer(found, image_size)
        classifier = models.create(model, image_size=size, channels=channels)
    except config.UserError as error:
        raise CheckpointError(f"{path}: {'; '.join([*problems, str(error)])}") from error
    flat: dict[str, np.ndarray] = {}
    for name, spec in trees.flatten(classifier.shapes()).items():
        if name.startswith("encoder/"):
            depth, *shape = spec.shape
            parts = [_take(found, (name, i), tuple(shape), problems) for i in range(depth)]
            if not problems:
                flat[name] = np.stack(parts)
        else:
            flat[name] = _take(found, (name, None), spec.shape, problems)
    problems += [f"{source} is not part of the model" for source, _ in found.values()]
    if problems:
        raise CheckpointError(f"{path}: {'; '.join(problems)}")
    return trees.nest(flat), model, size


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a .npz file; nothing in it is executed or written to disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}") from error
    except Exception as error:  # BadZipFile, or whatever damage in its directory leads to
        raise CheckpointError(
            "is no .npz file, or only a part of one; download it again"
        ) from error
    size = sum(member.file_size for member in members)
    if size > MAX_BYTES:
        raise CheckpointError(
            f"unpacks to {size / 2**30:.0f} GiB; at most {MAX_BYTES // 2**30} GiB"
        )
    names = [member.filename for member in members]
    if len(set(names)) < len(names) or not all(
        re.fullmatch(r"[\w/.]+", n, re.ASCII) for n in names
    ):
        raise CheckpointError("holds damaged or doubled names; download it again")
    arrays, name = {}, "it"
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = file[name]
    except Exception as error:  # numpy parses headers as Python: damage raises anything
        raise CheckpointError(f"{name} is damaged or no plain array; download it again") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out other members as bytes
            raise CheckpointError(f"{name} is damaged or no plain array; download it again")
    return arrays


def _rename(arrays: dict[str, np.ndarray], problems: list[str]) -> Found:
    found: Found = {}
    for source, array in arrays.items():
        name = PREFIX.sub("", source, count=1) if PREFIX.match(source) else source
        matches = ((re.fullmatch(pattern, name), target) for pattern, target in RULES)
        match, target = next((m for m in matches if m[0]), (None, ""))
        if match is None:
            problems.append(f"{source} is not part of a Vision Transformer")
            continue
        key = (match.expand(target), int(match[1]) if match[1] else None)
        if key in found:
            problems.append(f"{source} and {found[key][0]} are the same array")
        found[key] = (source, array)
    return found


def _infer(
    found: Found, image_size: tuple[int, int] | None
) -> tuple[config.Model, tuple[int, int], int]:
    """Returns model, image size and channels."""
    shapes = {name: array.shape for (name, _), (_, array) in found.items()}

    def shape(name: str, axes: int) -> tuple[int, ...]:
        if len(shapes.get(name, ())) != axes or 0 in shapes[name]:
            raise CheckpointError(f"holds no Vision Transformer: no {name} of {axes} axes")
        return shapes[name]

    height, width, channels, features = shape("embedding/kernel", 4)
    mlp_dim = shape("encoder/mlp/fc1/kernel", 2)[1]
    token, learned = "cls" in shapes, "position/table" in shapes
    pre_logits = "pre_logits/kernel" in shapes
    model = config.Model(
        patch_size=(height, width),
        width=features,
        depth=1 + max(layer for _, layer in found if layer is not None),
        mlp_dim=mlp_dim,
        heads=shape("encoder/attention/query/kernel", 3)[1],
        num_classes=shape("head/kernel", 2)[1],
        pooling="token" if token else "gap",
        position="learned_1d" if learned else "sincos_2d",
        representation_size=shape("pre_logits/kernel", 2)[1] if pre_logits else None,
    )
    if image_size is None:
        if not learned:
            raise CheckpointError("holds no position embeddings; give the image size")
        patches = shape("position/table", 3)[1] - token
        side = math.isqrt(patches)
        if side * side != patches or not patches:
            raise CheckpointError(
                f"holds positions of {patches} patches, no square; give the image size"
            )
        image_size = (side * height, side * width)
    return model, image_size, channels


def _take(
    found: Found, key: tuple[str, int | None], shape: tuple[int, ...], problems: list[str]
) -> np.ndarray:
    """Removes an array from `found` and returns it in float32; says what is wrong with it."""
    name, layer = key
    if key not in found:
        problems.append(f"{name} is missing" + ("" if layer is None else f" in layer {layer}"))
        return np.zeros(())
    source, array = found.pop(key)
    if array.dtype == "V2":  # how numpy, which has no bfloat16, stores it
        array = array.view(jnp.bfloat16)
    if array.shape != shape:
        problems.append(f"{source} is {array.shape}, not {shape}")
    elif array.dtype not in (np.float32, np.float16, jnp.bfloat16):
        problems.append(f"{source} is {array.dtype}, not float32, float16 or bfloat16")
    elif not np.isfinite(array.astype(np.float32)).all():
        problems.append(f"{source} is not finite")
    else:
        return array.astype(np.float32)
    return np.zeros(())
