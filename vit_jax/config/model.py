"""Options of the network."""

import dataclasses

from vit_jax.config.options import GIVEN, NOT_NONE, Section, option

# Values of `when`: an option that has no effect without them is refused.
LEARNED = ("learned_1d", "learned_2d")
RESNET = {"model.resnet_units": NOT_NONE}  # (): the stem reads them too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(
    Section,
    kind="model",
    chooser="architecture",
    components=("vit", "resnet", "axial_vit", "axial_resnet"),
):
    """The network; sizes left at None come from `variant`."""

    variant: str | None = option(
        None, "Size by name, such as ViT-B/16 or R50+ViT-B/32; fills the sizes left at none."
    )
    architecture: str | None = option(
        None, "Kind of network; none: that of the variant, else vit.", kind="model"
    )
    resnet_units: tuple[int, ...] | None = option(
        None,
        "Bottleneck units per stage of the ResNet (before an encoder); (): only its stem.",
        at_least=1,
    )
    resnet_width: float | None = option(
        None,
        "Factor on the widths of the ResNet; none: the variant's, else 1.",
        above=0,
        when=RESNET,
    )
    resnet_version: str = option(
        "v1",
        "ResNet units: v1 with activation after the sum, or v2 with activation before it.",
        choices=("v1", "v2"),
        when=RESNET,
    )
    resnet_pool: str = option(
        "zeros",
        "Padding of v2's max-pool: zeros as in BiT's code, or none as in big_vision's.",
        choices=("zeros", "nothing"),
        when={"model.resnet_version": ("v2",)},
    )
    resnet_epsilons: str = option(
        "version",
        "Epsilons of GroupNorm and weight standardization: the version's own, or timm's.",
        choices=("version", "timm"),
        when=RESNET,
    )
    patch_size: tuple[int, int] | None = option(
        None, "Patch height and width in pixels, or in positions of the ResNet's map.", at_least=1
    )
    width: int | None = option(None, "Token width D.", at_least=1, at_most=10**6)
    depth: int | None = option(None, "Number of encoder layers.", at_least=1, at_most=10_000)
    mlp_dim: int | None = option(None, "Hidden width of the MLP.", at_least=1, at_most=10**7)
    heads: int | None = option(None, "Number of attention heads; must divide width.", at_least=1)
    mlp: str = option(
        "plain",
        "MLP of a layer: two dense layers, or SwiGLU (SiLU of a gate times fc1); width mlp_dim.",
        choices=("plain", "swiglu"),
    )
    layer_scale: float | None = option(
        None,
        "Initial value of LayerScale, a learned factor on every branch; none: no LayerScale.",
        above=0,
    )
    registers: int = option(
        0,
        "Register tokens between class token and patches, without positions.",
        at_least=0,
        at_most=10_000,
    )
    distillation: bool = option(
        False, "Whether a distillation token, with a position of its own, follows the class token."
    )
    stem_norm: bool = option(
        False,
        "Whether tokens with their positions are normalized before the first layer, as in CLIP.",
    )
    patch_norm: bool = option(
        False, "Whether patches are normalized before positions are added, as in AIMv2."
    )
    qk_norm: bool = option(False, "Whether queries and keys are normalized per head (QK-norm).")
    sub_norm: tuple[str, ...] = option(
        (),
        "Norms before the last dense layer of a layer's attention or MLP (sub-LN), as in EVA-02.",
        choices=("attention", "mlp"),
    )
    biasless: tuple[str, ...] = option(
        (),
        "Dense layers without bias: patch embedding, parts of attention, MLP, or head.",
        choices=("patches", "query", "key", "value", "out", "mlp", "head"),
    )
    num_classes: int | None = option(
        None,
        "Outputs of the head; none: the number of classes of the data.",
        at_least=1,
        at_most=10**7,
    )
    patch_remainder: str = option(
        "refuse",
        "Image sides that are no multiple of the patch: refuse them, or drop the last pixels.",
        choices=("refuse", "drop"),
    )
    pooling: str = option(
        "token",
        "Input of the head: class or first token, mean, maximum, both, attention, or several.",
        choices=("token", "first", "gap", "max", "gap_max", "map", "token_gap", "distilled"),
    )
    pooled_layers: int = option(
        1,
        "Last layers whose class tokens the head sees side by side, 4 in DINOv2's larger probes.",
        at_least=1,
        when={"model.pooling": ("token", "token_gap")},
    )
    pooling_heads: int | None = option(
        None,
        "Heads of the pooling's attention, 8 in Perception Encoder; none: those of the layers.",
        at_least=1,
        when={"model.pooling": ("map",)},
    )
    pooling_mlp_dim: int | None = option(
        None,
        "Hidden width of the pooling's MLP; none: mlp_dim.",
        at_least=1,
        at_most=10**7,
        when={"model.pooling": ("map",)},
    )
    pooling_prefix: bool = option(
        False,
        "Whether the pooling attends to the tokens before the patches too, as in that.",
        when={"model.pooling": ("map",)},
    )
    class_token: bool | None = option(
        None, "Whether there is a class token before the patches; none: if pooling reads it."
    )
    position: str = option(
        "learned_1d",
        "Position embedding: none, learned by index or row and column, relative, or fixed sin-cos.",
        choices=(
            *("none", "learned_1d", "learned_2d", "relative"),
            *("sincos_1d", "sincos_2d", "sincos_2d_mae"),
        ),
    )
    rotary: float | None = option(
        None,
        "Base of rotary position embeddings (RoPE), 100 in DINOv3; none: no rotary positions.",
        at_least=1,
    )
    rotary_span: str = option(
        "separate",
        "Side that rotary positions span from -1 to 1: each its own, or the longer or shorter; "
        "patches: they count those from 0 in any grid.",
        choices=("separate", "max", "min", "patches"),
        when={"model.rotary": GIVEN},
    )
    rotary_grid: tuple[int, int] | None = option(
        None,
        "Pretraining grid for rotary positions counted from 0, 16,16 in EVA-02; none: -1 to 1.",
        at_least=1,
        when={"model.rotary": GIVEN},
    )
    rotary_learned: bool = option(
        False,
        "Whether each head of each layer learns its frequencies, beginning with those of the base.",
        when={"model.rotary": GIVEN},
    )
    rotary_offset: float = option(
        0.0,
        "Added to the row and column of a patch before it turns, 1 in Perception Encoder.",
        when={"model.rotary": GIVEN},
    )
    relative_bias: str = option(
        "none",
        "Learned attention bias by the offset between patches: none, per layer, or shared.",
        choices=("none", "layers", "shared"),
    )
    class_position: bool = option(
        True,
        "Whether the class token has a learned position; big_vision's has none.",
        when={"model.position": LEARNED},
    )
    position_resize: str = option(
        "aligned",
        "Resizing of learned positions: bilinear with aligned corners (Google), or another.",
        choices=(
            "aligned",
            "bicubic",
            "antialiased_bicubic",
            "bicubic_offset",
            "antialiased_bilinear",
        ),
        when={"model.position": LEARNED, "model.relative_bias": ("layers", "shared")},
    )
    position_place: str = option(
        "stem",
        "Where positions are added: after the stem, or to each layer's input, own or shared ones.",
        choices=("stem", "layers", "shared"),
    )
    representation_size: int | None = option(
        None,
        "Width of the dense layer before the head (pre_logits); none: no such layer.",
        at_least=1,
    )
    representation_activation: str = option(
        "tanh",
        "Activation of the layer before the head; tanh as in Google's code.",
        choices=("tanh", "relu", "silu"),
        when={"model.representation_size": GIVEN},
    )
    init: str = option(
        "google",
        "Initialization as in the code of Google, timm and DINOv2, DeiT and DINO, MAE, or BEiT; "
        "mimetic: Google's, but attention starts like that of trained ViTs.",
        choices=("google", "timm", "deit", "mae", "beit", "mimetic"),
    )
    # Without it, a sigmoid begins with every class at one half, which is a large loss of thousands.
    head_bias: float = option(
        0.0, "Initial bias of the head; -10 suits sigmoid loss on many classes."
    )
    activation: str = option(
        "gelu",
        "Activation of the MLPs; model.gelu selects the form of GELU.",
        choices=("gelu", "silu", "relu"),
        when={"model.mlp": ("plain",), "model.pooling": ("map",)},
    )
    gelu: str = option(
        "tanh",
        "GELU form: tanh as in Google's code, erf as in timm, quick (a sigmoid) as in CLIP.",
        choices=("tanh", "erf", "quick"),
        when={"model.activation": ("gelu",)},
    )
    norm: str = option(
        "layer",
        "Normalization: LayerNorm, or RMSNorm, which does not subtract the mean and has no bias.",
        choices=("layer", "rms"),
    )
    # Flax's default, with which Google's weights were trained; PyTorch's is 1e-5.
    norm_epsilon: float = option(1e-6, "Epsilon of LayerNorm and RMSNorm.", above=0)
    norm_place: str = option(
        "tokens",
        "Input of the last LayerNorm: the tokens, the pooled features (timm's fc_norm), or none.",
        choices=("tokens", "pooled", "none"),
    )
    dropout: float = option(0.0, "Dropout rate in the paper's four places.", at_least=0, below=1)
    stochastic_depth: float = option(
        0.0,
        "Stochastic depth rate of the last layer; earlier layers scale linearly from 0.",
        at_least=0,
        below=1,
    )
    # The TPU compiler puts the second form at 15 % more bytes moved and 0.4 GiB more memory.
    attention: str = option(
        "explicit",
        "Implementation: explicit einsums, or jax.nn.dot_product_attention with XLA or cuDNN.",
        choices=("explicit", "xla", "cudnn"),
        free=True,
    )
    # Unrolled whole, a scan is within 2.5 % of a plain loop by the TPU compiler's estimate.
    unroll: int | None = option(
        None,
        "Layers unrolled per scan step: 1 compiles fastest; none: all while training, else 1.",
        at_least=1,
        free=True,
    )
    remat: str = option(
        "none",
        "Activations recomputed in the backward pass: none, of attention, all, all but matmuls.",
        choices=("none", "attention", "full", "dots", "dots_no_batch"),
        free=True,
    )
    dtype: str = option(
        "auto",
        "Compute type; auto: bfloat16 on TPU and GPU, float32 on CPU; bfloat16_matmul: float32, "
        "except the products of dense layers (fast on CPUs with AVX512-BF16). Parameters: float32.",
        choices=("auto", "float32", "bfloat16", "bfloat16_matmul"),
    )
