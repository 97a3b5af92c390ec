"""Google's TIPS and TIPSv2 (google-deepmind/tips): .npz files of its image encoder in Scenic.

encoder/ToTokenSequence_0/embedding, .../cls, .../posembed_input
encoder/transformer/encoderblock_0/MultiHeadDotProductAttention_0, .../FFNSwiGluFused_0
encoder/encoder_norm

Layers and activations are those of big_vision's ViT; the largest has SwiGLU. Two class tokens
without positions stand before the patches. The first, of an image as a whole, is read as the class
token, the second as a register. Its files for PyTorch have the names of Meta's DINOv2, which
`timm_vit` reads.
"""

from collections.abc import Iterator

from vit_jax import config, models
from vit_jax.weights.arrays import WeightsError
from vit_jax.weights.families import google
from vit_jax.weights.family import NO_HEAD, Family, Files, Hints
from vit_jax.weights.mapping import ArraySpecs, ModelSpec, Rule, Shapes, array_shape, reshaped

TOKENS = "encoder/ToTokenSequence_0"
BLOCK = "encoder/transformer/encoderblock_{layer}"
CODE = "as in TIPS's code; the file does not say"
UNSAID = ("model.gelu", "model.norm_epsilon", "data.mean", "data.std", "data.resampling")
UNSAID += ("data.eval_crop",)
PATCHES = f"{TOKENS}/posembed_input"


class Tips(Family):
    """The image encoder, which has no head."""

    project = "google"
    anchors = (f"{TOKENS}/embedding/kernel",)

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        return self.anchors[0] in arrays

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        # Positions of another image size are resized as in any file.
        shapes = Shapes(arrays, self.rules(arrays, None))
        options = shapes.encoder() | {
            "patch_remainder": "refuse",
            "class_position": False,
            "position_resize": "antialiased_bilinear",
        }
        model = shapes.model(**options)
        tokens = array_shape(arrays, f"{TOKENS}/cls", 3)[1]
        if tokens != 2:
            raise WeightsError(f"contains {tokens} class tokens; TIPS has 2")
        _, rows, columns, _ = array_shape(arrays, PATCHES, 4)
        height, width = model.patch_size or (1, 1)
        return ModelSpec(
            model=model,
            data=config.Data(
                image_size=(rows * height, columns * width),
                channels=shapes.channels,
                mean=(0.0,),
                std=(1.0,),
                resampling="antialiased_bilinear",
                eval_crop="resize",
            ),
            # SwiGLU has no GELU, the first of these, to assume.
            assumed=dict.fromkeys(UNSAID[model.mlp == "swiglu" :], CODE),
            fresh=NO_HEAD,
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec | None) -> Iterator[Rule]:
        grid = models.grid(spec.model, spec.data.image_size) if spec else (1, 1)
        table = reshaped(lambda shape: (1, *grid, shape[-1]))
        yield Rule(f"{TOKENS}/cls", "cls", part=0, parts=2, axis=1)
        yield Rule(f"{TOKENS}/cls", "registers", part=1, parts=2, axis=1)
        yield Rule(PATCHES, "position/table", table)
        yield from google.rules(
            (
                (f"{TOKENS}/embedding", "embedding"),
                (f"{BLOCK}/LayerNorm_0", "encoder/norm1"),
                (f"{BLOCK}/LayerNorm_1", "encoder/norm2"),
                *((f"{BLOCK}/FFNSwiGluFused_0/Dense_{n}", f"encoder/mlp/{name}")
                  for n, name in enumerate(("gate", "fc1", "fc2")) if _gated(arrays, spec)),
                *google.layers(BLOCK, "encoder", 0, 0),
                ("encoder/encoder_norm", "encoder_norm"),
            )
        )  # fmt: skip

    def expresses(self, spec: ModelSpec) -> bool:
        # These tokens are those of TIPS alone: Google's ViT has no registers.
        model = spec.model
        return (
            model.registers == 1
            and spec.headless
            and model.position == "learned_1d"
            and models.has_class_token(model)
            and not model.class_position
            and model.layer_scale is None
        )


def _gated(arrays: ArraySpecs | None, spec: ModelSpec | None) -> bool:
    if arrays is None:
        return spec is not None and spec.model.mlp == "swiglu"
    return f"{BLOCK.format(layer=0)}/FFNSwiGluFused_0/Dense_0/kernel" in arrays
