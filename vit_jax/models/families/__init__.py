"""The built-in families of models, one file each."""

from vit_jax.config import components
from vit_jax.models.families.axial_resnet import AxialResNetFamily
from vit_jax.models.families.axial_vit import AxialViTFamily
from vit_jax.models.families.resnet import ResNetFamily
from vit_jax.models.families.vit import ViTFamily

for _name, _family in {
    "vit": ViTFamily,
    "resnet": ResNetFamily,
    "axial_vit": AxialViTFamily,
    "axial_resnet": AxialResNetFamily,
}.items():
    components.register("model", _name)(_family)
