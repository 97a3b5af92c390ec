"""A training run around its steps: process, directory, checkpoints and log."""
