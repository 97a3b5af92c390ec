"""Filters, position embeddings, attention and features of a model, as arrays and figures."""
