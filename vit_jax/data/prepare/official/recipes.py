"""The recipes of all data sets with official archives, by TFDS name."""

from vit_jax.data.prepare.official import (
    arrays,
    caltech,
    cifar,
    classes,
    flowers,
    hdf5,
    imagenet,
    large,
    pets,
    scenes,
    test_sets,
)
from vit_jax.data.prepare.official.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    one.dataset: one
    for one in (
        imagenet.RECIPE,
        *cifar.RECIPES,
        pets.RECIPE,
        flowers.RECIPE,
        caltech.RECIPE,
        *classes.RECIPES,
        *arrays.RECIPES,
        *hdf5.RECIPES,
        *scenes.RECIPES,
        *large.RECIPES,
        *test_sets.RECIPES,
    )
}
