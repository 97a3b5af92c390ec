"""Loads data: random-access sources, decoding, transforms, and the batch pipeline.

Order and augmentation of examples are functions of (seed, epoch, index) only; the number of
threads, processes or hosts changes only the speed.
"""
