"""Distillation: a student matches the outputs of a frozen teacher for the same pixels.

The teacher sees every image as the student does, after crops, flips, mixup and CutMix (Beyer et al.
2022), resized to its own size and normalized as it was trained. All comparisons fit any two widths:
logits are compared by the Kullback-Leibler divergence at a temperature (Hinton et al. 2015),
features by the cosines between the images of a batch (Tung and Mori 2019), tokens by those between
the patches of an image.
"""

import jax
import jax.numpy as jnp

from vit_jax import config, models
from vit_jax.config import ConfigError, components
from vit_jax.models import variants
from vit_jax.models.variants import required
from vit_jax.training.objectives.objective import Batch, Inputs, Setup
from vit_jax.training.objectives.supervised import Supervised
from vit_jax.training.teacher import Teacher
from vit_jax.utils.tree_utils import Tree

MEASURE = "distillation"


@components.register("objective", "distillation")
class Distillation(Supervised):
    """The loss against labels, mixed with the distance of the student's outputs from a teacher's.

    The distance between features is one number for the whole batch.
    """

    measures = (*Supervised.measures, MEASURE)

    def __init__(
        self, setup: Setup, teacher: str, target: str, weight: float, temperature: float
    ) -> None:
        super().__init__(setup)
        self.target, self.weight, self.temperature = target, weight, temperature
        self.whole_batch = target == "features"
        if setup.teacher is not None:  # a dry run does not load it
            check_teacher(setup.cfg, setup.model, setup.teacher)

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> dict[str, Tree]:
        """Loss and correctness of each image, and its distance from the teacher, or features."""
        outputs, out = self.classify(params, batch, inputs)
        assert self.teacher is not None
        assert inputs.teacher is not None
        wanted = self.teacher.apply(inputs.teacher, batch["image"], inputs.drawn, self.cfg.mesh)
        return outputs | self.compare(out, wanted)

    def compare(self, out: dict[str, jax.Array], wanted: dict[str, jax.Array]) -> dict[str, Tree]:
        """The distance of the student's outputs from the teacher's, for each image.

        `distance` (B,) float32; or `own` and `wanted`, the features (B, D) of both.
        """
        if self.target == "logits":
            distance = _kl_divergence(out["logits"], wanted["logits"], self.temperature)
            return {"distance": distance}
        if self.target == "features":
            return {"own": out["pre_logits"], "wanted": wanted["pre_logits"]}
        assert self.teacher is not None
        grid = _grid(self.model)
        # Both on the student's grid, so that row i is the same place in both.
        own = _cosines(_patches(self.model, out["tokens"], grid))
        other = _cosines(_patches(self.teacher.model, wanted["tokens"], grid))
        return {"distance": jnp.mean(jnp.square(own - other), axis=(1, 2))}

    def distance(self, outputs: dict[str, Tree]) -> jax.Array:
        """The mean distance over images, or over pairs of images, () float32."""
        if self.target != "features":
            return jnp.mean(outputs["distance"])
        own, wanted = (_cosines(outputs[name][None]) for name in ("own", "wanted"))
        return jnp.mean(jnp.square(own - wanted))

    def loss(self, outputs: Tree, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The weighted mean of both losses."""
        loss, measured = super().loss(outputs, inputs)
        distance = self.distance(outputs)
        loss = (1 - self.weight) * loss + self.weight * distance
        return loss, measured | {MEASURE: distance}

    def flops(self, passes: float) -> float | None:
        """FLOPs of the student, and of a forward pass of the teacher."""
        own = super().flops(passes)
        # Nothing differentiates by the teacher's parameters: one forward pass.
        teacher = 0 if self.teacher is None else self.teacher.model.flops
        return None if own is None or teacher is None else own + teacher


def check_teacher(cfg: config.Config, student: models.Classifier, teacher: Teacher) -> None:
    """Raises ConfigError for a teacher that does not fit this student."""
    options = required(cfg.distillation)
    key = f"objective.teacher={options.teacher}"
    if teacher.data.channels != cfg.data.channels:
        raise ConfigError(
            f"{key}: sees images of {teacher.data.channels} channels; set "
            f"data.channels={teacher.data.channels}"
        )
    if options.target == "logits" and teacher.model.config.num_classes != cfg.model.num_classes:
        raise ConfigError(
            f"{key}: has {teacher.model.config.num_classes} classes, the student "
            f"{cfg.model.num_classes}; name one of the same classes, or set "
            "objective.target=features or tokens"
        )
    for who, model in (("the teacher", teacher.model), ("the student", student)):
        lacks = models.find_architecture(model.config).lacks(model.config, "features")
        if options.target == "tokens" and lacks:
            raise ConfigError(f"objective.target=tokens: {who}: {lacks}; set features or logits")


def _kl_divergence(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """KL(teacher, student) of each image (B,), logits (B, K), times the temperature squared.

    Gradients shrink by that square.
    """
    log_p, log_q = (jax.nn.log_softmax(x / temperature) for x in (teacher, student))
    each = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
    return temperature**2 * each


def _cosines(x: jax.Array) -> jax.Array:
    """Cosines between rows, (G, N, N) float32, of x (G, N, D)."""
    x = x.astype(jnp.float32)
    # The floor keeps the gradient of a row of zeros finite.
    x = x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-12))
    # By default TPUs multiply in bfloat16, whose 8 bits hardly tell cosines near 1 apart.
    return jnp.einsum("gnd,gmd->gnm", x, x, precision=jax.lax.Precision.HIGHEST)


def _grid(model: models.Classifier) -> tuple[int, int]:
    return variants.grid(model.config, model.image_size)


def _patches(model: models.Classifier, tokens: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """The tokens of patches (B, P, D) float32, resized to another grid."""
    rows, columns = _grid(model)
    tokens = tokens[:, variants.prefix_tokens(model.config) :].astype(jnp.float32)
    if (rows, columns) == grid:
        return tokens
    number, _, width = tokens.shape
    square = tokens.reshape(number, rows, columns, width)
    return jax.image.resize(square, (number, *grid, width), "bilinear").reshape(number, -1, width)
