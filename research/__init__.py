"""Experiments on vit_jax and with it: findings, fault campaigns, mutation tests. Not installed."""
