"""Counterpart of `input_worker`: the same batches by tf.data, in a Python with TensorFlow.

It imports nothing from this package and uses the same line protocol. RandAugment, where it is asked
for, is big_vision's, from a checkout; that takes TensorFlow Addons.
"""

import json
import os
import pathlib
import resource
import sys
import time

BATCH = 256


def randaugment(operations: int, magnitude: int, checkout: str):
    """big_vision's RandAugment, a function of a uint8 image."""
    sys.path.insert(0, checkout)
    from big_vision.pp.archive import autoaugment  # pyright: ignore[reportMissingImports]

    return lambda image: autoaugment.distort_image_with_randaugment(image, operations, magnitude)


def dataset(names: str, dct: str, augment):
    """An endless tf.data.Dataset of uint8 batches.

    `names` is a file with the paths of images, `dct` TensorFlow's `dct_method`, `augment` a
    function of a uint8 image.
    """
    import tensorflow as tf  # pyright: ignore[reportMissingImports]

    def view(path):
        encoded = tf.io.read_file(path)
        # Without boxes, crops come from the whole image.
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            tf.zeros([0, 0, 4]),
            aspect_ratio_range=(0.75, 4 / 3),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.io.decode_and_crop_jpeg(encoded, window, channels=3, dct_method=dct)
        return augment(tf.cast(tf.image.resize(pixels, (224, 224), method="bilinear"), tf.uint8))

    paths = pathlib.Path(names).read_bytes().splitlines()  # TensorFlow's texts are bytes
    options = tf.data.Options()
    options.deterministic = False  # its fastest; ours has one order whatever happens
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    views = files.map(view, num_parallel_calls=tf.data.AUTOTUNE)
    batches = views.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return batches.with_options(options)


def main(cores: str, names: str, dct: str, augment: str, checkout: str) -> None:
    """Answers until standard input ends."""
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    # Before TensorFlow is imported; it would take the memory of a GPU that it does not need.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    function = lambda image: image  # noqa: E731
    if augment:
        operations, magnitude = map(int, augment.split(","))
        function = randaugment(operations, magnitude, checkout)
    batches = dataset(names, dct, function)
    for line in sys.stdin:
        iterator = batches.as_numpy_iterator()
        next(iterator)
        began, busy = time.perf_counter(), time.process_time()
        images = sum(len(next(iterator)) for _ in range(int(line)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
        # Otherwise its threads go on filling buffers while another program has its turn.
        del iterator
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {"images": images, "seconds": seconds, "cpu": cpu, "peak": peak}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
