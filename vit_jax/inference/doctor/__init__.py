"""A doctor for images: copies, leaks between splits, wrong labels, outliers and broken files.

`run.py` has the function `doctor`. This module imports nothing, for the command's help.
"""

CHECKPOINT = "cifar10/ViT-6_4-3h"  # comes with the package
# Of near duplicates. On CIFAR-100, 0.8 misses a tenth of the planted copies; neither finds others.
COSINE = 0.7
KINDS = {
    "broken": "cannot be decoded",
    "conflict": "the same picture is in another class too",
    "leak": "a copy of an image of another split",
    "copy": "a copy of an image of the same split and class",
    "label": "likely a wrong label",
    "outlier": "unlike the other images",
    "tiny": "the short side has few pixels",
    "aspect": "very long or tall",
    "mode": "pixels are stored in another way than in most images",
}
LEFT_OUT = ("broken", "conflict", "leak", "copy")  # look at the others first
