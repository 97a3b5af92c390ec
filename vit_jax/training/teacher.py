"""A frozen teacher: its parameters are an argument of the step, split over all devices."""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import config, models
from vit_jax.training import mixup, normalization, sharding
from vit_jax.utils import tree_utils


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A frozen model and how it sees images.

    Attributes:
      model: the model.
      data: its preprocessing.
    """

    model: models.Classifier
    data: config.Data

    def shapes(self, mesh: Mesh, options: config.Mesh) -> models.Params:
        """ShapeDtypeStructs of its parameters, sharded as `put` does."""
        cast = jax.eval_shape(self.model.cast, self.model.shapes())
        return sharding.placed(cast, mesh, options, sharding.UPDATE)

    def put(self, params: models.Params, mesh: Mesh, options: config.Mesh) -> models.Params:
        """Moves its parameters to the devices, split over all; each process has all of them."""
        places = tree_utils.flatten(self.shapes(mesh, options))

        def one(name: str, leaf: np.ndarray) -> jax.Array:
            host = jax.device_get(leaf)
            place = places[name]
            # Cast part by part: cast whole, an array would be in host memory twice.
            return jax.make_array_from_callback(
                place.shape, place.sharding, lambda part: host[part].astype(place.dtype)
            )

        return tree_utils.map_named(one, params)

    def apply(
        self, params: models.Params, images: jax.Array, mix: mixup.Mix | None, mesh: config.Mesh
    ) -> dict[str, jax.Array]:
        """`logits` and the intermediates before them; no gradient reaches `params`.

        Args:
          params: as from `put`, in a step.
          images: uint8 (B, H, W, C), of the student's size.
          mix: as for the student.
          mesh: options of the run.
        """
        # Gathered where they are read: between steps each device holds its part alone.
        params = sharding.constrain(params, mesh, sharding.COMPUTE)
        pixels = normalization.normalize_pixels(images, self.data)
        # Mixed in the student's size, then resized: the teacher sees the same mixture.
        if mix is not None:
            pixels = mixup.blend(pixels, mix.pixels)
        size = self.model.image_size
        if pixels.shape[1:3] != size:
            shape = (pixels.shape[0], *size, pixels.shape[3])
            pixels = jax.image.resize(pixels, shape, "bilinear")
        logits, out = self.model.apply(params, pixels)
        return {**out, "logits": logits}
