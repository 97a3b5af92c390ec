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
from vit_jax.weights.families.google import norm
from vit_jax.weights.family import NO_HEAD, Family, Files, Hints
from vit_jax.weights.mapping import ArrayLayout, ArraySpecs, ModelSpec, Rule, array_shape, depth
from vit_jax.weights.readers import WeightsError

TOKENS = "encoder/ToTokenSequence_0"
BLOCK = "encoder/transformer/encoderblock_{layer}"
ATTENTION, GATED = "MultiHeadDotProductAttention_0", "FFNSwiGluFused_0"
CODE = "as in TIPS's code; the file does not say"
UNSAID = ("model.gelu", "model.norm_epsilon", "data.mean", "data.std", "data.resampling")
UNSAID += ("data.eval_crop",)
PATCHES = f"{TOKENS}/posembed_input"


class Tips(Family):
    """The image encoder, which has no head."""

    project = "google"
    anchors = (f"{TOKENS}/embedding/kernel",)

    def recognizes(self, arrays: ArraySpecs, files: Files) -> bool:
        """Whether the arrays are such an encoder."""
        return f"{TOKENS}/embedding/kernel" in arrays

    def read_spec(self, arrays: ArraySpecs, hints: Hints) -> ModelSpec:
        """Infers the model from names and shapes; raises WeightsError."""
        # Positions of another image size are resized as in any file.
        height, width, channels, features = array_shape(arrays, f"{TOKENS}/embedding/kernel", 4)
        block = BLOCK.format(layer=0)
        gated = f"{block}/{GATED}/Dense_0/kernel" in arrays
        mlp = GATED if gated else "MlpBlock_0"
        tokens = array_shape(arrays, f"{TOKENS}/cls", 3)[1]
        if tokens != 2:
            raise WeightsError(f"contains {tokens} class tokens; TIPS has 2")
        _, rows, columns, _ = array_shape(arrays, PATCHES, 4)
        model = models.complete(
            config.Model(
                patch_size=(height, width),
                width=features,
                depth=depth(arrays, r"encoder/transformer/encoderblock_(\d{1,3})/"),
                mlp_dim=array_shape(arrays, f"{block}/{mlp}/Dense_0/kernel", 2)[1],
                heads=array_shape(arrays, f"{block}/{ATTENTION}/query/kernel", 3)[1],
                mlp="swiglu" if gated else "plain",
                registers=1,
                num_classes=1,
                class_position=False,
                position_resize="antialiased_bilinear",
            )
        )
        return ModelSpec(
            model=model,
            data=config.Data(
                image_size=(rows * height, columns * width),
                channels=channels,
                mean=(0.0,),
                std=(1.0,),
                resampling="antialiased_bilinear",
                eval_crop="resize",
            ),
            assumed=dict.fromkeys(UNSAID[1:] if gated else UNSAID, CODE),
            fresh=NO_HEAD,
        )

    def rules(self, arrays: ArraySpecs | None, spec: ModelSpec) -> Iterator[Rule]:
        """Yields the rules to read a file, and to write one."""
        grid = models.grid(spec.model, spec.data.image_size)
        table = ArrayLayout(
            lambda shape: (1, *grid, shape[-1]),
            lambda array, shape: array.reshape(shape),
            lambda array: array.reshape(1, *grid, array.shape[-1]),
        )
        yield Rule(f"{TOKENS}/embedding/kernel", "embedding/kernel")
        yield Rule(f"{TOKENS}/embedding/bias", "embedding/bias")
        yield Rule(f"{TOKENS}/cls", "cls", part=0, parts=2, axis=1)
        yield Rule(f"{TOKENS}/cls", "registers", part=1, parts=2, axis=1)
        yield Rule(PATCHES, "position/table", table)
        for number in (1, 2):
            yield from norm(f"{BLOCK}/LayerNorm_{number - 1}", f"encoder/norm{number}")
        gated = spec.model.mlp == "swiglu"
        mlp, names = (GATED, ("gate", "fc1", "fc2")) if gated else ("MlpBlock_0", ("fc1", "fc2"))
        for part in ("kernel", "bias"):
            for name in ("query", "key", "value", "out"):
                target = f"encoder/attention/{name}/{part}"
                yield Rule(f"{BLOCK}/{ATTENTION}/{name}/{part}", target)
            for number, name in enumerate(names):
                yield Rule(f"{BLOCK}/{mlp}/Dense_{number}/{part}", f"encoder/mlp/{name}/{part}")
        yield from norm("encoder/encoder_norm", "encoder_norm")
        yield Rule("head/kernel", "head/kernel")  # which no file has
        yield Rule("head/bias", "head/bias")

    def expresses(self, spec: ModelSpec) -> bool:
        """Whether a model has the tokens of TIPS, which Google's ViT has not."""
        model = spec.model
        return (
            model.registers == 1
            and spec.headless
            and model.position == "learned_1d"
            and models.has_class_token(model)
            and not model.class_position
            and model.layer_scale is None
        )
