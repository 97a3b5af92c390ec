"""Packs the paper's datasets from their official archives, exactly as TFDS does.

Needs no TensorFlow: features, versions and class names come from TFDS's builders, and this package
reads the archives. Each dataset has a recipe, which `build` executes.
"""
