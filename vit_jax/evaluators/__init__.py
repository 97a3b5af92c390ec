"""Evaluators: parameters in, numbers out."""
