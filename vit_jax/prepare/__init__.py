"""Data sets made ready for training: downloaded, converted, packed, de-duplicated, verified.

What comes out is a folder that TFDS reads without TensorFlow, under `data_dir/NAME/VERSION`, and it
gets its name only when it is whole: a command that was stopped goes on where it was.
"""
