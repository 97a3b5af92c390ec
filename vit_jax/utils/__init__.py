"""Errors and their texts, paths local and remote, trees of arrays, limits."""
