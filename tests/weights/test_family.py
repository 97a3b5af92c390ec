"""A family of one's own is one object: registered, its files load and go back."""

import numpy as np
import pytest

import foreign
from containers import write
from vit_jax import config, models, weights
from vit_jax.weights import family, mapping
from vit_jax.weights.families import torch_rules
from vit_jax.weights.families.torch_rules import QKV


class Acme(weights.Family):
    """Acme's ViT, of which every part has another name than in timm."""

    project = "hf"  # whose folders Acme writes
    anchors = ("acme.patches.weight",)
    dropped = (("acme\\.version", "a number of Acme's"),)
    names = (
        ("token", "cls"),
        ("places", "position/table"),
        ("patches", "embedding"),
        *((f"{{layer}}.n{number}", f"encoder/norm{number}") for number in (1, 2)),
        *((f"{{layer}}.{name}", f"encoder/attention/{name}") for name in (*QKV, "out")),
        *((f"{{layer}}.mlp.{name}", f"encoder/mlp/{name}") for name in ("fc1", "fc2")),
        ("norm", "encoder_norm"),
        ("head", "head"),
    )

    def recognizes(self, arrays, files):
        return self.anchors[0] in arrays

    def read_spec(self, arrays, hints):
        fields = hints.files["config.json"]
        shapes = mapping.Shapes(arrays, self.rules(arrays, None))
        model = shapes.model(**shapes.encoder() | {"heads": fields["heads"], "gelu": "erf"})
        side = fields["side"]
        data = config.Data(image_size=(side, side), channels=shapes.channels, eval_crop="resize")
        return weights.ModelSpec(model=model, data=data)

    def rules(self, arrays, spec):
        return torch_rules.rules(self.names, "acme.")

    def expresses(self, spec):
        return spec.model.depth == 2  # all that Acme has

    def files(self, spec):
        fields = {"heads": spec.model.heads, "side": spec.data.image_size[0]}
        return {"config.json": fields}


@pytest.fixture
def acme():
    before = list(family.FAMILIES)
    weights.register(Acme())
    yield
    family.FAMILIES[:] = before


MODEL = config.Model(
    patch_size=(8, 8), patch_remainder="drop", width=16, depth=2, mlp_dim=32, heads=2,
    num_classes=3, gelu="erf",
)  # fmt: skip
SPEC = weights.ModelSpec(
    model=models.complete(MODEL), data=config.Data(image_size=(16, 16), eval_crop="resize")
)


@pytest.mark.usefixtures("acme")
def test_a_registered_family_writes_and_loads(tmp_path):
    params = foreign.parameters(SPEC)
    assert weights.save(params, SPEC, "hf", tmp_path / "acme") == ()
    loaded = weights.load(tmp_path / "acme")
    foreign.equal(loaded.params, params)
    assert (loaded.kind, loaded.spec) == ("hf", SPEC)


@pytest.mark.usefixtures("acme")
def test_a_registered_family_is_found_below_a_prefix(tmp_path):
    arrays = foreign.exported(foreign.parameters(SPEC), SPEC, "hf")
    names = {f"ema.{name}": array for name, array in arrays.items()}
    write(tmp_path / "model.safetensors", names | {"ema.acme.version": np.zeros(1, np.float32)})
    (tmp_path / "config.json").write_text('{"heads": 2, "side": 16}')
    loaded = weights.load(tmp_path)
    assert loaded.report.prefix == "ema."
    assert loaded.report.dropped == {"acme.version": "a number of Acme's"}
