"""What surrounds the steps of a training run: its process, directory, checkpoints and log."""
