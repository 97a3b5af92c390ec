"""Distillation: a student learns what a frozen teacher computes of the same pixels.

The teacher sees every image as the student does, after crops, flips, mixup and CutMix (Beyer et al.
2022), resized to its own size and normalized as it was trained. What they are compared by fits any
two widths: logits by the Kullback-Leibler divergence at a temperature (Hinton et al. 2015),
features by the cosines between the images of a batch (Tung and Mori 2019), tokens by those between
the patches of an image. The teacher's parameters are an argument of the step, split over all
devices in the compute type, and gathered as those of the student.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.config import ConfigError
from vit_jax.models import variants
from vit_jax.training import mixup, normalization, sharding
from vit_jax.utils import tree_utils

MEASURE = "distillation"


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A frozen model and how it sees images.

    Attributes:
      model: the model.
      data: its preprocessing.
    """

    model: models.Classifier
    data: config.Data

    def shapes(self, mesh: Mesh, options: config.Mesh) -> Any:
        """Returns its parameters as ShapeDtypeStructs with the places that `put` gives them."""
        cast = jax.eval_shape(self.model.cast, self.model.shapes())
        return sharding.placed(cast, mesh, options, sharding.UPDATE)

    def put(self, params: models.Params, mesh: Mesh, options: config.Mesh) -> models.Params:
        """Returns its parameters on the devices, split over all; each process has all of them."""
        places = tree_utils.flatten(self.shapes(mesh, options))

        def one(name: str, leaf: Any) -> jax.Array:
            host = jax.device_get(leaf)
            place = places[name]
            return jax.make_array_from_callback(
                place.shape, place.sharding, lambda part: host[part].astype(place.dtype)
            )

        return tree_utils.map_named(one, params)

    def apply(
        self, params: models.Params, images: jax.Array, mix: mixup.Mix | None, mesh: config.Mesh
    ) -> dict[str, jax.Array]:
        """Returns `logits` and what lies before them, without gradients.

        Args:
          params: as from `put`, in a step.
          images: uint8 (B, H, W, C), of the student's size.
          mix: as for the student.
          mesh: options of the run.
        """
        params = sharding.constrain(params, mesh, sharding.COMPUTE)
        pixels = normalization.normalize_pixels(images, self.data)
        if mix is not None:
            pixels = mixup.blend(pixels, mix.pixels)
        size = self.model.image_size
        if pixels.shape[1:3] != size:
            shape = (pixels.shape[0], *size, pixels.shape[3])
            pixels = jax.image.resize(pixels, shape, "bilinear")
        logits, out = self.model.apply(params, pixels)
        return jax.lax.stop_gradient({**out, "logits": logits})


def check(cfg: config.Config, student: models.Classifier, teacher: Teacher) -> None:
    """Raises ConfigError for a teacher that cannot teach this student."""
    chosen, key = cfg.distill, f"distill.teacher={cfg.distill.teacher}"
    if teacher.data.channels != cfg.data.channels:
        raise ConfigError(
            f"{key}: sees images of {teacher.data.channels} channels; set "
            f"data.channels={teacher.data.channels}"
        )
    if chosen.target == "logits" and teacher.model.config.num_classes != cfg.model.num_classes:
        raise ConfigError(
            f"{key}: has {teacher.model.config.num_classes} classes, the student "
            f"{cfg.model.num_classes}; name one of the same classes, or set "
            "distill.target=features or tokens"
        )
    for who, model in (("the teacher", teacher.model), ("the student", student)):
        lacks = models.family(model.config).lacks(model.config, "features")
        if chosen.target == "tokens" and lacks:
            raise ConfigError(f"distill.target=tokens: {who}: {lacks}; set features or logits")


def divergence(
    options: config.Distill,
    student: models.Classifier,
    teacher: Teacher,
    student_out: dict[str, jax.Array],
    teacher_out: dict[str, jax.Array],
) -> jax.Array:
    """The distance of the student's outputs from the teacher's, the mean over images, float32.

    Args:
      options: of the run.
      student: the student.
      teacher: the teacher.
      student_out: outputs of the student, `logits` among them.
      teacher_out: outputs of the teacher, likewise.
    """
    if options.target == "logits":
        return _kl_divergence(student_out["logits"], teacher_out["logits"], options.temperature)
    if options.target == "features":
        own, wanted = (_cosines(out["pre_logits"][None]) for out in (student_out, teacher_out))
    else:
        grid = _grid(student)
        own = _cosines(_patches(student, student_out["tokens"], grid))
        wanted = _cosines(_patches(teacher.model, teacher_out["tokens"], grid))
    return jnp.mean(jnp.square(own - wanted))


def _kl_divergence(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """KL(teacher, student) of logits (B, K), times the temperature squared.

    Gradients shrink by that square.
    """
    log_p, log_q = (jax.nn.log_softmax(x / temperature) for x in (teacher, student))
    each = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
    return temperature**2 * jnp.mean(each)


def _cosines(x: jax.Array) -> jax.Array:
    """Returns the cosines between rows, (G, N, N) float32, of x (G, N, D)."""
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-12))
    return jnp.einsum("gnd,gmd->gnm", x, x, precision=jax.lax.Precision.HIGHEST)


def _grid(model: models.Classifier) -> tuple[int, int]:
    return variants.grid(model.config, model.image_size)


def _patches(model: models.Classifier, tokens: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """Returns the tokens of patches (B, P, D) float32, resized to another grid."""
    rows, columns = _grid(model)
    tokens = tokens[:, variants.prefix_tokens(model.config) :].astype(jnp.float32)
    if (rows, columns) == grid:
        return tokens
    number, _, width = tokens.shape
    square = tokens.reshape(number, rows, columns, width)
    return jax.image.resize(square, (number, *grid, width), "bilinear").reshape(number, -1, width)
