"""Measurements on this machine, as ratios to a named alternative in the same run."""
