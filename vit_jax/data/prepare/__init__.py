"""Prepares datasets for training: downloads, converts, packs, de-duplicates, verifies.

The result is a folder `data_dir/NAME/VERSION` that TFDS reads without TensorFlow. It gets this name
only once complete; an interrupted command resumes where it stopped.
"""
