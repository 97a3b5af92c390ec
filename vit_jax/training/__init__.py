"""Training: losses, schedules, the optimizer, sharding, the pure step and the loop around it."""
