"""Images in, batches out: sources (random access), decoding, transforms, and the pipeline.

The order of examples and their augmentation are functions of (seed, epoch, index) alone; how many
threads, processes or hosts load them changes nothing but the speed.
"""
