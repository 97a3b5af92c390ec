"""Training objectives. Each is a component; a plug-in adds one in one file."""

from vit_jax.training.objectives.creation import create_objective as create_objective
from vit_jax.training.objectives.dino import Dino as Dino
from vit_jax.training.objectives.distillation import Distillation as Distillation
from vit_jax.training.objectives.mae import MaskedAutoencoder as MaskedAutoencoder
from vit_jax.training.objectives.masked_patches import MaskedPatches as MaskedPatches
from vit_jax.training.objectives.objective import Batch as Batch
from vit_jax.training.objectives.objective import Inputs as Inputs
from vit_jax.training.objectives.objective import Objective as Objective
from vit_jax.training.objectives.objective import Setup as Setup
from vit_jax.training.objectives.supervised import Supervised as Supervised
