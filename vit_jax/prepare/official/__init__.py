"""The paper's data sets packed from the archives that their authors publish, as TFDS packs them.

No TensorFlow: features, versions and class names are those of TFDS's builders, and the archives are
read here. `recipes` has a recipe for each data set, `build` follows it.
"""
