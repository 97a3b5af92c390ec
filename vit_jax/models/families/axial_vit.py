"""AxialViT: tokens attend within rows, then within columns (ViT, appendix D.6)."""

from typing import Any

from vit_jax import config
from vit_jax.models import flop_count
from vit_jax.models.families.vit import ViTFamily
from vit_jax.models.variants import default_class_token, has_class_token, required


class AxialViTFamily(ViTFamily):
    """AxialViT-B/16 and its kind."""

    weights = None
    # It has no token but those of patches, and attends in lines.
    unread = ("class_position", "registers", "distillation", "rotary", "rotary_span")
    unread += ("rotary_grid", "relative_bias")

    def check_positions(self, model: config.Model) -> None:
        """Raises ConfigError for a class token, which has no row, and relative positions."""
        if has_class_token(model):
            read = default_class_token(model.pooling)
            said = f"pooling={model.pooling}" if read else "class_token=true"
            remedy = "gap" if read else "none"
            raise config.ConfigError(
                f"model.{said}: axial_vit keeps its tokens in rows and columns, without a "
                f"class token; set {remedy}"
            )
        if model.position == "relative":
            raise config.ConfigError(
                "model.position=relative: axial_vit has no relative positions; set learned_1d"
            )

    def layer_macs(self, model: config.Model, grid: tuple[int, int]) -> int:
        """Returns the multiply-accumulates of two encoder blocks, one per axis."""
        n = grid[0] * grid[1] + has_class_token(model)
        return 2 * flop_count.dense(model, n) + 2 * n * sum(grid) * required(model.width)

    def lacks(self, model: config.Model, figure: str) -> str | None:
        """Returns why `inspect` cannot draw a figure."""
        if figure == "attention":
            return "an axial_vit attends within rows and columns, never from any token to any other"
        return super().lacks(model, figure)

    def networks(self) -> tuple[Any, Any]:
        """Returns the network's class, and that of the one with a head for patches."""
        from vit_jax.models.axial import AxialViT
        from vit_jax.models.masked_vit import MaskedAxialViT

        return AxialViT, MaskedAxialViT
