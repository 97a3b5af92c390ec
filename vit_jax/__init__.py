"""vit_jax: train Vision Transformers in JAX, on a laptop or a TPU slice, by config name.

A module imports only from rooms to its left; rooms joined by `|` do not know each other:

    options, config, checks, trees, logs, catalog, paper, host, console, backend
      < models | data < checkpoints | weights < training < evaluators < reports
      < opening, run, predict, convert, export, bench, listing, smoke, preflight < commands < cli
"""

__version__ = "0.1.0"
