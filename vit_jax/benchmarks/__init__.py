"""Measurements on this machine, as ratios against a named alternative in the same run."""
