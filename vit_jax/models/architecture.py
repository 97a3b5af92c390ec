"""The interface of an architecture, without jax.

A plug-in subclasses `Architecture` and registers it with `components.register("model", NAME)`.
`model.architecture=NAME` then selects it, and its constructor's arguments are options of `model`.
Only `network` is required. It imports jax inside, so that listing models stays fast.
"""

from typing import TYPE_CHECKING, Any

from vit_jax import config

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from flax import nnx

Params = dict[str, Any]  # float32 arrays, nested by name


class Architecture:
    """An architecture: its sizes, checks and FLOPs, its network, and what can be inspected in it.

    Every method takes the options of a model; all but `complete` take complete ones.

    Attributes:
      maskable: whether masked patch prediction can train it.
      droppable: whether its layers take some of the patches alone, as in a masked autoencoder.
      weights: the layout of its weights in other projects' files: `vit`, `bit`, or none.
      unread: options of `model` that it ignores; setting one is then an error.
    """

    maskable: bool = False
    droppable: bool = False
    weights: str | None = None
    unread: tuple[str, ...] = ()

    def complete(self, model: config.Model) -> config.Model:
        """Fills in sizes left at None."""
        return model

    def validate_model(self, model: config.Model, image_size: tuple[int, int]) -> None:
        """Raises ConfigError for options that do not fit each other or the images."""

    def multiple(self, model: config.Model) -> tuple[int, int]:
        """Height and width in pixels that image sides must be multiples of."""
        return 1, 1

    def grid(self, model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches, or of the last map; raises ConfigError if there is no grid.

        Needed for attention figures.
        """
        raise config.ConfigError(f"model.architecture={model.architecture}: has no grid of tokens")

    def covered(self, model: config.Model, image_size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the pixels that patches cover."""
        return image_size

    def flops(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        masked: config.MaskedPatches | config.Mae | None,
    ) -> int | None:
        """FLOPs of the forward pass of one image, two per multiply-accumulate.

        With `masked`, those of that objective. None leaves out MFU and other numbers that need
        FLOPs.
        """
        return None

    def shrink(
        self, model: config.Model, image_size: tuple[int, int]
    ) -> tuple[config.Model, tuple[int, int]]:
        """A tiny model of the same parts, and an image size for it, for `--smoke`."""
        return model, image_size

    def reads_in_compute_type(self, name: str) -> bool:
        """Whether the network reads a parameter only after a cast to the compute dtype.

        Devices then gather it in that dtype.

        Args:
          name: of the parameter, its keys joined by slashes.
        """
        return False

    def initial(self, model: config.Model, params: Params, key: "jax.Array") -> Params:
        """Initial parameters, nested by name, from those that the network begins with.

        Args:
          model: complete options.
          params: as the network's own initializers draw them.
          key: for further random values.
        """
        return params

    def lacks(self, model: config.Model, figure: str) -> str | None:
        """Why `inspect` cannot draw a figure; None if it can.

        Args:
          model: complete options.
          figure: `filters`: `filters` names the array. `posemb`: the network has a method
            `position_tables()` that returns (T, P, D) float32. `attention`: the network returns
            `attention` (L, B, H, N, N) when called with `capture`, and the options set depth and
            heads. `features`: the network returns `tokens` (B, N, D), those of patches last; N is
            their number, plus one where `model.pooling` reads a class token. `saliency`: `last_map`
            names a module, and there is a grid; a ViT whose attention reads `gate` has gradient
            rollout too.
        """
        nouns = {
            "filters": "first-layer filters",
            "posemb": "position embedding",
            "attention": "attention weights",
            "features": "features of patches",
            "saliency": "map for Grad-CAM",
        }
        return f"model.architecture={model.architecture} declares no {nouns[figure]}"

    def filters(self, model: config.Model) -> tuple[str, ...]:
        """Path in the parameters of the filters (h, w, C, D) that see pixels."""
        raise NotImplementedError

    def last_map(self, model: config.Model) -> tuple[str, ...]:
        """Path in the network of the module whose output Grad-CAM reads.

        It is (B, h, w, F), or (B, N, D) with the patches last; where layers are stacked, it is that
        of the last one.
        """
        raise NotImplementedError

    def network(
        self,
        model: config.Model,
        image_size: tuple[int, int],
        channels: int,
        dtype: "jnp.dtype",
        masked: config.MaskedPatches | None,
        *,
        rngs: "nnx.Rngs",
    ) -> "nnx.Module":
        """The `nnx.Module`, whose only state is `nnx.Param`s of float32.

        It is called as `network(images, key=None, capture=False)` with images (B, H, W, C) and
        returns logits (B, model.num_classes) float32 and a dict with `pre_logits` (B, D) float32,
        what the head sees. An objective without labels sets num_classes to None: then there is no
        head, and logits are (B, 0).
        """
        raise NotImplementedError
