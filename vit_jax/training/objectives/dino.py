"""DINO: a student learns the outputs of its own average, the teacher, for other views.

After Caron et al. (2021) and the authors' code (facebookresearch/dino, Apache-2.0). Both networks
assign views of an image to K prototypes. The teacher sees two large views, the student those and
several small ones, and learns the teacher's assignment of every view but its own. Two remedies keep
all images from the same assignment, both over the whole batch: the mean of the teacher's logits is
subtracted, or Sinkhorn-Knopp shares prototypes evenly among images (SwAV, DINOv2).

With `patch_loss`, the student sees some large views with masked patches, and learns the teacher's
assignment of those patches too, after iBOT (Zhou et al. 2022; bytedance/ibot, Apache-2.0) and
DINOv2. With `gram`, the cosines between the student's patches stay near those of an earlier
teacher, after the paper of DINOv3 (Siméoni et al. 2025).

B images, V views (the large ones first), K prototypes, D features; P patches of a large view, of
which M at most are masked.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config, models
from vit_jax.config import components
from vit_jax.data.pipeline import View
from vit_jax.models import variants
from vit_jax.models.classifier import OBJECTIVE
from vit_jax.models.layers import constrain_batch, dot_general
from vit_jax.models.variants import required
from vit_jax.models.vit import take_rows
from vit_jax.training import schedules, streams
from vit_jax.training.normalization import normalize_pixels
from vit_jax.training.objectives.objective import Batch, Inputs, Objective, Setup
from vit_jax.utils.tree_utils import Tree
from vit_jax.weights import adapting

GLOBAL = ("global_1", "global_2")  # entries of a batch
LOCAL = "local"
LAST = "prototypes"  # the head's last layer
PATCHES = "patches"  # the head of patches, where they have their own
MASK = "mask_token"
GRAM = "gram"  # the earlier teacher, in the state, and how far patches are from it
ITERATIONS = 3  # of Sinkhorn-Knopp, as in SwAV and DINOv2
# By default TPUs multiply in bfloat16, whose 8 bits hardly tell cosines near 1 apart.
HIGHEST = jax.lax.Precision.HIGHEST

# Blocks of a mask: the range of their aspect ratio, the misfits in a row that end a mask (as in
# iBOT), and the draws in all.
ASPECTS, MISSES, DRAWS = (0.3, 1 / 0.3), 10, 100

# Below these shares of their maximum, measures indicate collapse.
INFORMATION, SPREAD = 0.05, 0.05


@components.register("objective", "dino")
class Dino(Objective):
    """Self-distillation without labels; its arguments are in `config.Dino`."""

    needs_labels = False
    averages = True
    shown = ("information", "feature_std", "prototypes")
    measures = (*shown, "teacher_entropy", "mean_entropy", "rank", "collapsed")

    def __init__(self, setup: Setup, **options: Any) -> None:
        super().__init__(setup)
        self.options = own = config.Dino(**options)
        self.whole_batch = own.centering == "sinkhorn" or own.koleo > 0
        if own.patch_loss or own.gram:
            self._check_patches()
        if own.patch_loss:
            self.measures = (*self.measures, "patch_loss")
        if own.gram:
            self.measures = (*self.measures, GRAM)
        self._gram_start, self._gram_every = map(setup.steps, (own.gram_start, own.gram_every))
        # Small views are of another size, to which positions are resized inside the program.
        self.network = adapting.any_size(self.model)
        steps = self.durations.steps
        self._momentum = schedules.half_cosine(own.momentum, own.momentum_end, steps)
        self._temperature = ramp(
            own.teacher_temperature_start,
            own.teacher_temperature,
            setup.steps(own.teacher_temperature_warmup),
        )
        # The authors' cancel_gradients_last_layer; parameters that wait do not decay either.
        frozen = setup.steps(own.freeze_last_layer)
        last = (LAST, f"{PATCHES}/{LAST}") if own.patch_head and own.patch_loss else (LAST,)
        self.waits = {f"{OBJECTIVE}/{name}": frozen for name in last} if frozen else {}

    def _check_patches(self) -> None:
        model, own = self.model.config, self.options
        name = "patch_loss" if own.patch_loss else "gram"
        given = f"objective.{name}={getattr(own, name):g}"
        if not variants.find_architecture(model).droppable:
            raise config.ConfigError(
                f"{given}: needs patches, and {variants.KEY}={model.architecture} has none; set 0"
            )
        if model.norm_place == "pooled":
            raise config.ConfigError(
                f"{given}: compares normalized patches, and model.norm_place=pooled normalizes "
                f"their mean; set model.norm_place=tokens, or objective.{name}=0"
            )
        if own.patch_loss and not self._most_masked:
            raise config.ConfigError(
                f"objective.mask_ratio={config.show(self.options.mask_ratio)}: masks none of the "
                f"{self.model.patches} patches; raise it, or set objective.patch_loss=0"
            )

    @property
    def _most_masked(self) -> int:
        """M, the largest number of masked patches of a view."""
        return int(self.options.mask_ratio[1] * self.model.patches)

    @property
    def views(self) -> tuple[View, ...]:
        """Two large views, augmented differently, and the small ones."""
        own, data = self.options, self.cfg.data
        small = own.small_size(data, self.model.config.patch_size or (1, 1))
        first, second = (self._view(i, data.image_size, own.global_area) for i in range(2))
        found = (View(GLOBAL[0], first), View(GLOBAL[1], second))
        if not own.local_views:
            return found
        return (*found, View(LOCAL, self._view(2, small, own.local_area), own.local_views))

    def _view(self, kind: int, size: tuple[int, int], area: tuple[float, float]) -> config.Data:
        """The options of `data` for a view: the first large one (0), the second (1), small (2)."""
        own, data = self.options, self.cfg.data
        changes = (
            ("color_jitter", own.jitter),
            ("gray", own.gray),
            ("blur", own.blur[kind]),
            ("solarize", own.solarize[kind]),
        )
        made = [config.Transform(name=n, probability=p) for n, p in changes if p]
        return dataclasses.replace(
            data, image_size=size, crop_area=area, transforms=(*made, *data.transforms)
        )

    def init(self, key: jax.Array) -> models.Params:
        """The head: dense layers, then prototypes, columns whose direction alone counts.

        Kernels are normal(0.02), but those of prototypes uniform, as the authors' code draws them.
        With `patch_loss`, also the embedding of masked patches, zeros, and a head of their own.
        """
        own = self.options
        params = self._head(key, self._features)
        if own.patch_loss:
            width = required(self.model.config.width)
            params[MASK] = jnp.zeros((1, 1, width))
            if own.patch_head:
                params[PATCHES] = self._head(jax.random.fold_in(key, 1), width)
        return params

    def _head(self, key: jax.Array, width: int) -> models.Params:
        own = self.options
        widths = [width, *[own.head_hidden] * (own.head_layers - 1), own.head_bottleneck]
        *keys, last = jax.random.split(key, own.head_layers + 1)
        params: models.Params = {
            f"dense_{i}": {
                "kernel": 0.02 * jax.random.normal(keys[i], (widths[i], widths[i + 1])),
                "bias": jnp.zeros(widths[i + 1]),
            }
            for i in range(own.head_layers)
        }
        bound = own.head_bottleneck**-0.5
        shape = (own.head_bottleneck, own.prototypes)
        params[LAST] = {"kernel": jax.random.uniform(last, shape, minval=-bound, maxval=bound)}
        if not own.norm_last_layer:
            params[LAST]["length"] = jnp.ones(own.prototypes)
        return params

    @property
    def _features(self) -> int:
        """D, the width of pooled features."""
        shape = (1, *self.model.image_size, self.model.channels)
        pixels = jax.ShapeDtypeStruct(shape, jnp.float32)
        out = jax.eval_shape(self.network.apply, self.model.shapes(), pixels)[1]
        return out["pre_logits"].shape[-1]

    def init_state(self, params: models.Params) -> Mapping[str, Tree]:
        """The mean of the teacher's logits, consecutive collapsed steps, an earlier teacher."""
        kept: dict[str, Tree] = {"collapsed": jnp.zeros((), jnp.int32)}
        if self.options.centering == "mean":
            kept["center"] = jnp.zeros(self.options.prototypes)
            if self.options.patch_loss:
                kept["patch_center"] = jnp.zeros(self.options.prototypes)
        if self.options.gram:
            kept[GRAM] = _network(params)
        return kept

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Draws which patches of the large views the student does not see: `masked` (B, 2, P)."""
        if not self.options.patch_loss:
            return batch
        # A key for each large view of each row of the global batch: masks depend on neither devices
        # nor microbatches.
        rows = jnp.arange(2 * self.cfg.train.batch_size, dtype=jnp.int32).reshape(-1, 2)
        key = streams.key(self.cfg.seed, streams.OBJECTIVE, step)
        grid = variants.grid(self.model.config, self.model.image_size)
        fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))
        drawn = fold(key, constrain_batch(rows))
        one = functools.partial(
            mask,
            grid=grid,
            ratio=self.options.mask_ratio,
            probability=self.options.mask_probability,
        )
        masks = jax.vmap(jax.vmap(lambda key: one(jax.random.uniform(key, (DRAWS + 1, 4)))))(drawn)
        return batch | {"masked": masks.reshape(*rows.shape, -1)}

    def decay(self, step: jax.Array) -> jax.Array:
        """The teacher's momentum: half a cosine from `momentum` to `momentum_end`."""
        return jnp.asarray(self._momentum(step))

    def forward(self, params: models.Params, batch: Batch, inputs: Inputs) -> Tree:
        """Logits of the `student` (B, V, K) and the `teacher` (B, 2, K), and their features.

        `features` (B, 2, D) are the teacher's, `own` (B, 2, D) the student's, of the large views.
        """
        assert inputs.average is not None
        # Both in one pass: they have one size.
        large = jnp.stack([batch[name] for name in GLOBAL], axis=1)
        keys = (None, None) if inputs.key is None else jax.random.split(inputs.key)
        masked = batch.get("masked")
        own, seen = self._encode(params, large, keys[0], masked)
        student = [self._assign(params, own)]
        if LOCAL in batch:
            small = batch[LOCAL]
            small = small if small.ndim == 5 else small[:, None]  # of a group of one
            student.append(self._assign(params, self._encode(params, small, keys[1])[0]))
        # No key: in the authors' code, drop path is for the student alone.
        features, answered = self._encode(inputs.average, large, None)
        found = {
            "student": jnp.concatenate(student, axis=1),
            "teacher": self._assign(inputs.average, features),
            "own": own,
            "features": features,
        }
        if self.options.gram:

            def distance() -> jax.Array:
                return gram_distance(seen, self._encode(inputs.state[GRAM], large, None)[1])

            # The earlier teacher costs a forward pass of its own: none before its first step.
            found[GRAM] = (
                jax.lax.cond(
                    inputs.step < self._gram_start, lambda: jnp.zeros(len(large)), distance
                )
                if self._gram_start
                else distance()
            )
        if masked is None:
            return found
        return found | self._of_patches(params, inputs.average, seen, answered, masked)

    def _of_patches(
        self,
        student: models.Params,
        teacher: models.Params,
        seen: jax.Array,
        answered: jax.Array,
        masked: jax.Array,
    ) -> dict[str, jax.Array]:
        """Logits of the masked patches by the student and the teacher, (B, 2, M, K), and weights.

        `patch_weight` (B, 2, M) adds up to 1 for each view that is masked, else to 0;
        `patch_mean` (B, K) is the teacher's mean logits of all patches of the large views.

        `seen` and `answered` (B, 2, P, D) are patches of student and teacher; `masked` (B, 2, P)
        bool says which ones the student did not see.
        """
        most, shape = self._most_masked, masked.shape[:2]
        # At most M, whose product may round to one less than that of the drawn share does.
        count = jnp.minimum(jnp.sum(masked, axis=-1, keepdims=True), most)
        # The masked ones first; the rest of M weigh nothing.
        index = jnp.argsort(~masked, axis=-1, stable=True)[..., :most].astype(jnp.int32)
        valid = (jnp.arange(most)[None, None] < count).astype(jnp.float32)
        weight = valid / jnp.maximum(count, 1).astype(jnp.float32)

        def rows(tokens: jax.Array) -> jax.Array:
            flat = tokens.reshape(-1, *tokens.shape[2:])
            return take_rows(flat, index.reshape(-1, most)).reshape(*shape, most, -1)

        own, other = (p[OBJECTIVE] for p in (student, teacher))
        if self.options.patch_head:
            own, other = own[PATCHES], other[PATCHES]
        units = bottleneck(other, answered, self.model)
        return {
            "patch_student": head(own, rows(seen), self.model),
            "patch_teacher": prototype_logits(other, rows(units), self.model),
            "patch_weight": weight,
            # The logits of the mean are the mean of the logits, which would be P x K.
            "patch_mean": prototype_logits(other, jnp.mean(units, axis=(1, 2))),
        }

    def _encode(
        self,
        params: models.Params,
        views: jax.Array,
        key: jax.Array | None,
        masked: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Features (B, n, D) float32 and patches (B, n, P, D) of views (B, n, H, W, C)."""
        pixels = normalize_pixels(views.reshape(-1, *views.shape[2:]), self.cfg.data)
        if masked is None:
            out = self.network.apply(params, pixels, key=key)[1]
        else:
            flat, token = masked.reshape(len(pixels), -1), params[OBJECTIVE][MASK]
            out = self.network.encode_masked(params, pixels, flat, token, key=key)
        features = out["pre_logits"].reshape(*views.shape[:2], -1)
        if not (self.options.patch_loss or self.options.gram):
            return features, features[:, :, :0]
        patches = out["tokens"][:, variants.prefix_tokens(self.model.config) :]
        return features, patches.reshape(*views.shape[:2], *patches.shape[1:])

    def _assign(self, params: models.Params, features: jax.Array) -> jax.Array:
        """Logits (..., K) float32 of features (..., D)."""
        return head(params[OBJECTIVE], features, self.model)

    def loss(self, outputs: Tree, inputs: Inputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The cross-entropy, and the inputs of `summarize`."""
        own, teacher = self.options, outputs["teacher"]
        temperature = self._temperature(inputs.step)
        if own.centering == "sinkhorn":
            targets = sinkhorn(teacher.reshape(-1, own.prototypes) / temperature)
            targets = targets.reshape(teacher.shape)
        else:
            center = inputs.state["center"][None, None]
            targets = jax.nn.softmax((teacher - center) / temperature)
        loss = cross_entropy(targets, outputs["student"] / own.student_temperature)
        if own.koleo:
            # Each large view by itself, as in DINOv2: nearest to a view is the other one of its
            # image.
            loss += own.koleo * sum(koleo(outputs["own"][:, view]) for view in range(2))
        patches = {}
        if own.gram:
            patches[GRAM] = jnp.mean(outputs[GRAM])
            loss += own.gram * patches[GRAM]
        if own.patch_loss:
            masked = self._patch_loss(outputs, inputs, temperature)
            loss += own.patch_loss * masked
            patches |= {
                "patch_loss": masked,
                "patch_center": jnp.mean(outputs["patch_mean"], axis=0),
            }
        targets = targets.reshape(-1, own.prototypes)
        units = _unit(outputs["features"].reshape(-1, outputs["features"].shape[-1]))
        entropy = -jnp.sum(jax.scipy.special.xlogy(targets, targets), axis=-1)
        first = jax.nn.one_hot(jnp.argmax(targets, axis=-1), own.prototypes)
        return loss, patches | {
            "center": jnp.mean(teacher, axis=(0, 1)),
            "teacher_entropy": jnp.mean(entropy),
            "targets": jnp.mean(targets, axis=0),
            "assigned": jnp.mean(first, axis=0),
            "mean": jnp.mean(units, axis=0),
            "second_moment": jnp.einsum("bd,be->de", units, units, precision=HIGHEST) / len(units),
        }

    def _patch_loss(
        self, outputs: dict[str, jax.Array], inputs: Inputs, temperature: jax.typing.ArrayLike
    ) -> jax.Array:
        """The mean over large views of the cross-entropy of their masked patches, ().

        A view that is not masked counts as 0, as in iBOT and DINOv2.
        """
        own, teacher, weight = self.options, outputs["patch_teacher"], outputs["patch_weight"]
        if own.centering == "sinkhorn":
            flat = teacher.reshape(-1, own.prototypes) / temperature
            targets = sinkhorn(flat, weight.reshape(-1, 1) > 0).reshape(teacher.shape)
        else:
            center = inputs.state["patch_center"][None, None, None]
            targets = jax.nn.softmax((teacher - center) / temperature)
        logs = jax.nn.log_softmax(outputs["patch_student"] / own.student_temperature)
        return -jnp.sum(weight[..., None] * targets * logs) / (2 * len(weight))

    def summarize(self, measures: dict[str, jax.Array], inputs: Inputs) -> dict[str, jax.Array]:
        """Measures of how much images differ in the teacher's outputs and features.

        `mean_entropy` is the entropy of the teacher's mean output, `teacher_entropy` the mean
        entropy of its outputs; their difference, the information in an output about its image, is
        shown as `information`, relative to its maximum. `feature_std` is the deviation of a feature
        of length-1 vectors, times the root of D: 1 at best. `rank` is the number of directions in
        which features spread, by the squared eigenvalues of their covariance: a lower bound of
        RankMe's kind. `prototypes` counts those that rank first for some image of the batch,
        `collapsed` the steps in a row in which images do not differ.
        """
        mean = measures["targets"]
        spread = jnp.maximum(-jnp.sum(jax.scipy.special.xlogy(mean, mean)), 0.0)
        # Measures of microbatches are averaged, so the covariance comes from means, not from
        # features.
        covariance = measures["second_moment"] - jnp.outer(measures["mean"], measures["mean"])
        variances = jnp.maximum(jnp.diagonal(covariance), 0.0)
        # All features the same: a rank of 0 instead of 0 / 0.
        squares = jnp.maximum(jnp.sum(jnp.square(covariance)), 1e-30)
        # A batch has two answers an image, so no more of them can differ.
        most = math.log(min(self.options.prototypes, 2 * self.cfg.train.batch_size))
        information = (spread - measures["teacher_entropy"]) / most
        std = jnp.mean(jnp.sqrt(variances)) * math.sqrt(len(variances))
        same = (information < INFORMATION) | (std < SPREAD)
        return measures | {
            "mean_entropy": spread,
            "information": information,
            "feature_std": std,
            "rank": jnp.square(jnp.sum(variances)) / squares,
            "prototypes": jnp.sum(measures["assigned"] > 0, dtype=jnp.float32),
            "collapsed": jnp.where(same, inputs.state["collapsed"] + 1, 0).astype(jnp.float32),
        }

    def update(
        self,
        state: Tree,
        params: models.Params,
        measures: Mapping[str, jax.Array],
        step: jax.Array,
        average: models.Params | None,
    ) -> Tree:
        """The mean of the teacher's logits after a batch, for the next, and the rest of the state.

        The earlier teacher of `gram` becomes the new one after `gram_start` steps, then after every
        `gram_every`.
        """
        kept = {"collapsed": measures["collapsed"].astype(jnp.int32)}
        momentum = self.options.center_momentum
        for name in ("center", "patch_center"):
            if name in state:
                kept[name] = momentum * state[name] + (1 - momentum) * measures[name]
        if GRAM in state:
            assert average is not None
            # `average` is that after this step, so the steps taken are one more.
            since, every = step + 1 - self._gram_start, self._gram_every
            due = (since == 0) | ((since > 0) & (since % every == 0) if every else False)
            kept[GRAM] = jax.tree.map(
                functools.partial(jnp.where, due), _network(average), state[GRAM]
            )
        return kept

    def warning(self, metrics: Mapping[str, float]) -> tuple[str, bool] | None:
        """Describes a collapse of `collapse_steps` steps and its remedies."""
        own, count = self.options, int(metrics["collapsed"])
        if count < own.collapse_steps:
            return None
        mean, most = metrics["mean_entropy"], math.log(own.prototypes)
        if metrics["feature_std"] < SPREAD:
            what = "the teacher sees the same features in every image"
            remedy = "a lower optimizer.lr, a longer schedule.warmup or a higher objective.momentum"
        elif mean > most / 2:
            what = "the teacher gives every image the same flat answer"
            remedy = (
                "a lower objective.teacher_temperature, or a longer "
                "objective.teacher_temperature_warmup from a lower one"
            )
        else:
            what = "the teacher gives every image the same few prototypes"
            remedy = (
                "objective.centering=sinkhorn, fewer objective.prototypes or a lower optimizer.lr"
            )
        text = (
            f"collapse for {count:,} steps: {what} (entropy of its mean answer {mean:.2f} of "
            f"{most:.2f}, deviation of features {metrics['feature_std']:.3f} of 1); try {remedy}"
        )
        return text, own.stop_on_collapse

    def flops(self, passes: float) -> float | None:
        """FLOPs of the student, and of the teachers' forward passes on the large views.

        Of patches, the student's head sees M of each large view, the teacher's all P up to its
        bottleneck.
        """
        own = super().flops(passes)
        teacher = [self.forward_flops(view) for view in self.views[:2]]
        if own is None or None in teacher:
            return None
        own += sum(filter(None, teacher)) + 2 * 2 * self.own_matrices
        if self.options.gram:
            own += sum(filter(None, teacher))
        if not self.options.patch_loss:
            return own
        last = self.options.head_bottleneck * self.options.prototypes
        dense, most = self._matrices(required(self.model.config.width)) - last, self._most_masked
        macs = 3 * most * (dense + last) + self.model.patches * dense + most * last
        return own + 2 * 2 * macs

    @property
    def own_matrices(self) -> int:
        """The number of weights in the matrices of the head of views."""
        return self._matrices(self._features)

    def _matrices(self, width: int) -> int:
        shapes = jax.eval_shape(functools.partial(self._head, width=width), jax.random.key(0))
        return sum(layer["kernel"].size for layer in shapes.values())


def ramp(start: float, end: float, steps: int) -> optax.Schedule:
    """`step -> value`: numpy.linspace from `start` at step 0 to `end` at the last of `steps`."""
    if steps < 2:
        return lambda step: jnp.float32(end)
    return lambda step: (
        start + (end - start) * jnp.clip(jnp.asarray(step, jnp.float32) / (steps - 1), 0.0, 1.0)
    )


def head(params: models.Params, x: jax.Array, model: models.Classifier) -> jax.Array:
    """Logits (..., K) float32 of features (..., D): cosines with prototypes, times their lengths.

    Dense layers compute as those of the model; lengths and logits are float32.
    """
    return prototype_logits(params, bottleneck(params, x, model), model)


def bottleneck(params: models.Params, x: jax.Array, model: models.Classifier) -> jax.Array:
    """The head's unit vectors (..., b) float32, which are compared with prototypes."""
    dtype, before, x = model.dtype, x.shape[:-1], x.reshape(-1, x.shape[-1])
    count = sum(name.startswith("dense_") for name in params)
    for i in range(count):
        layer = params[f"dense_{i}"]
        x = _multiply(x, layer["kernel"], model, dtype) + layer["bias"].astype(dtype)[None]
        # The exact GELU is torch's default; that of jax is the tanh form.
        x = jax.nn.gelu(x, approximate=False) if i < count - 1 else x
    return _unit(x.astype(jnp.float32)).reshape(*before, -1)


def prototype_logits(
    params: models.Params, x: jax.Array, model: models.Classifier | None = None
) -> jax.Array:
    """Logits (..., K) float32 of vectors (..., b); in float32 throughout without a model."""
    last = params[LAST]
    kernel = last["kernel"].astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.sum(jnp.square(kernel), axis=0))
    if "length" in last:
        scale *= last["length"]
    # The product is scaled, not the kernel: XLA for CPUs would fuse that into the product and do it
    # again for every tile, in a tenth of the time of a step (ViT-S/16, 16 images).
    logits = _multiply(x, kernel, model, jnp.dtype("float32"))
    return logits * jnp.broadcast_to(scale, logits.shape)


def _multiply(
    x: jax.Array, kernel: jax.Array, model: models.Classifier | None, result: jnp.dtype
) -> jax.Array:
    """The product (..., K) of x (..., D) and a kernel (D, K), as in dense layers of the model."""
    multiply, dtype = jax.lax.dot_general, jnp.dtype("float32")
    if model is not None:
        multiply, dtype = dot_general(model.config), model.dtype
    last = (((x.ndim - 1,), (0,)), ((), ()))
    return multiply(x.astype(dtype), kernel.astype(dtype), last, preferred_element_type=result)


def cross_entropy(targets: jax.Array, logits: jax.Array) -> jax.Array:
    """The mean over pairs of different views, (), of targets (B, 2, K) and logits (B, V, K)."""
    pairs = -jnp.einsum(
        "bik,bvk->iv", targets, jax.nn.log_softmax(logits), precision=HIGHEST
    ) / len(targets)
    # Large views come first in both, so the diagonal pairs a view with itself.
    other = 1 - np.eye(*pairs.shape, dtype=np.float32)
    return jnp.sum(pairs * other) / other.sum()


def mask(
    drawn: jax.Array, grid: tuple[int, int], ratio: tuple[float, float], probability: float
) -> jax.Array:
    """Masked patches of a view, in blocks, (h, w) bool; none in views that are not drawn.

    As iBOT's code draws them, after BEiT: blocks are added until their patches are a share of all,
    drawn between two, and a block that would add none or too many is drawn again.

    Args:
      drawn: (DRAWS + 1, 4), uniform in [0, 1): whether and how much, then size, aspect and place.
      grid: h and w, patches of a view.
      ratio: of masked patches, at least and at most.
      probability: of a mask.
    """
    height, width = grid
    least = (min(grid) // 3) ** 2  # patches of the smallest block
    share = ratio[0] + drawn[0, 1] * (ratio[1] - ratio[0])
    wanted = jnp.where(drawn[0, 0] < probability, share * height * width, 0.0)
    rows, columns = (jnp.arange(n, dtype=jnp.float32) for n in grid)
    low, high = (math.log(aspect) for aspect in ASPECTS)

    def add(
        carry: tuple[jax.Array, jax.Array], one: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        found, misses = carry
        left = wanted - jnp.sum(found, dtype=jnp.float32)
        area = least + one[0] * (left - least)
        aspect = jnp.exp(low + one[1] * (high - low))
        h, w = jnp.round(jnp.sqrt(area * aspect)), jnp.round(jnp.sqrt(area / aspect))
        top = jnp.floor(one[2] * (height - h + 1))
        side = jnp.floor(one[3] * (width - w + 1))
        down, across = (rows >= top) & (rows < top + h), (columns >= side) & (columns < side + w)
        block = down[:, None] & across[None]
        new = jnp.sum(block & ~found, dtype=jnp.float32)
        fits = (h < height) & (w < width) & (new > 0) & (new <= left) & (misses < MISSES)
        return (found | (block & fits), jnp.where(fits, 0, misses + 1)), None

    start = jnp.zeros(grid, bool), jnp.int32(0)
    return jax.lax.scan(add, start, drawn[1:])[0][0]


def sinkhorn(logits: jax.Array, counts: jax.Array | None = None) -> jax.Array:
    """Assignments (N, K) of N views to K prototypes, by logits of the same shape.

    Those of a view sum to 1, those of a prototype to about N / K. Computed in logarithms, which do
    not overflow. With `counts` (N, 1) bool, prototypes are shared among these views alone.
    """
    where = None if counts is None else jnp.broadcast_to(counts, logits.shape)
    for _ in range(ITERATIONS):
        shared = jax.nn.logsumexp(logits, axis=0, keepdims=True, where=where)
        # Of no view it is minus infinity, which would make NaN of all, though none counts.
        logits -= shared if counts is None else jnp.where(jnp.any(counts), shared, 0.0)
        # Views last: the weights of each are then a distribution, which a cross-entropy needs.
        logits -= jax.nn.logsumexp(logits, axis=1, keepdims=True)
    return jnp.exp(logits)


def koleo(features: jax.Array) -> jax.Array:
    """Minus the mean log-distance between images and their nearest neighbors, of features (B, D).

    After Sablayrolles et al. (2019); of vectors of length 1, and over the whole batch.
    """
    units = _unit(features.astype(jnp.float32))
    cosines = jnp.einsum("bd,cd->bc", units, units, precision=HIGHEST)
    away = cosines - 2 * jnp.eye(len(units))  # not oneself
    # A product: the gradient of indexing sums in no fixed order on GPUs.
    selected = jax.nn.one_hot(jnp.argmax(away, axis=1), len(units))
    nearest = jnp.einsum("bc,cd->bd", selected, units, precision=HIGHEST)
    # Torch's distance adds its epsilon to every difference, and the loss once more.
    distance = jnp.sqrt(jnp.sum(jnp.square(units - nearest + 1e-8), axis=1))
    return -jnp.mean(jnp.log(distance + 1e-8))


def gram_distance(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """The mean squared difference of the cosines between patches (B, n, P, D) of a view, (B,)."""
    own, other = (_unit(patches.astype(jnp.float32)) for patches in (student, teacher))
    own, other = (jnp.einsum("bnpd,bnqd->bnpq", x, x, precision=HIGHEST) for x in (own, other))
    return jnp.mean(jnp.square(own - other), axis=(1, 2, 3))


def _network(params: models.Params) -> models.Params:
    return {name: part for name, part in params.items() if name != OBJECTIVE}


def _unit(x: jax.Array) -> jax.Array:
    """Vectors (..., D) of length 1; those shorter than 1e-12 stay short."""
    # Not by a norm: its gradient at a vector of zeros is NaN.
    squares = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
