"""What a run leaves behind and comes back from: checkpoints, and foreign weights."""
