"""Durable checkpoints: saving, verification and recovery."""
