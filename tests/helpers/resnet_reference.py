"""A ResNet in numpy float64, written from the papers, and a counter of its products."""

import itertools

import numpy as np

import vit_reference
from vit_jax.utils import tree_utils


def windows(x, size, stride, same, fill=0.0):
    """Yields (i, j, what row i and column j of a square window see), (B, h, w, C) each."""
    spans = []
    for length in x.shape[1:3]:
        out = -(-length // stride)
        total = max((out - 1) * stride + size - length, 0) if same else size - 1
        low = total // 2 if same else size // 2
        high = max((out - 1) * stride + size - length - low, 0)
        spans.append((out, (low, high)))
    (rows, vertical), (columns, horizontal) = spans
    padded = np.pad(x, ((0, 0), vertical, horizontal, (0, 0)), constant_values=fill)
    for i, j in itertools.product(range(size), repeat=2):
        yield i, j, padded[:, i:, j:][:, ::stride, ::stride][:, :rows, :columns]


def standardize(kernel, version):
    kernel = kernel - kernel.mean((0, 1, 2))
    variance = (kernel**2).mean((0, 1, 2))
    scale = np.sqrt(variance) + 1e-5 if version == "v1" else np.sqrt(variance + 1e-10)
    return kernel / scale


def convolve(x, kernel, version, stride=1):
    kernel = standardize(kernel, version)
    seen = windows(x, kernel.shape[0], stride, same=version == "v1")
    return np.sum([part @ kernel[i, j] for i, j, part in seen], axis=0)


def group_norm(x, scale, bias, version):
    grouped = x.reshape(*x.shape[:3], 32, -1)
    centerd = grouped - grouped.mean((1, 2, 4), keepdims=True)
    variance = (centerd**2).mean((1, 2, 4), keepdims=True)
    epsilon = 1e-6 if version == "v1" else 1e-5
    return (centerd / np.sqrt(variance + epsilon)).reshape(x.shape) * scale + bias


def unit(p, x, version, stride):
    def norm(name, x):
        return group_norm(x, p[f"{name}/scale"], p[f"{name}/bias"], version)

    def conv(name, x, stride=1):
        return convolve(x, p[f"{name}/kernel"], version, stride)

    def relu(x):
        return np.maximum(x, 0)

    shortcut = x
    if version == "v1":
        if "conv_proj/kernel" in p:
            shortcut = norm("gn_proj", conv("conv_proj", x, stride))
        x = relu(norm("gn1", conv("conv1", x)))
        x = relu(norm("gn2", conv("conv2", x, stride)))
        return relu(norm("gn3", conv("conv3", x)) + shortcut)
    x = relu(norm("gn1", x))
    if "conv_proj/kernel" in p:
        shortcut = conv("conv_proj", x, stride)
    x = relu(norm("gn2", conv("conv1", x)))
    x = relu(norm("gn3", conv("conv2", x, stride)))
    return conv("conv3", x) + shortcut


def backbone(model, params, images):
    """The last map in float64; v2 pads with zeros before its max-pool, or with nothing."""
    version = model.resnet_version
    p = {name: np.asarray(leaf, np.float64) for name, leaf in tree_utils.flatten(params).items()}
    x = convolve(np.asarray(images, np.float64), p["conv_root/kernel"], version, stride=2)
    if version == "v1":
        x = np.maximum(group_norm(x, p["gn_root/scale"], p["gn_root/bias"], version), 0)
    fill = 0.0 if version == "v2" and model.resnet_pool == "zeros" else -np.inf
    seen = windows(x, 3, 2, same=version == "v1", fill=fill)
    x = np.max([part for _, _, part in seen], axis=0)
    for stage, units in enumerate(model.resnet_units, start=1):
        for number in range(units):
            where = f"stage{stage}/{'rest' if number else 'first'}/"
            leaves = {n.removeprefix(where): v for n, v in p.items() if n.startswith(where)}
            if number:
                leaves = {name: leaf[number - 1] for name, leaf in leaves.items()}
            x = unit(leaves, x, version, stride=2 if stage > 1 and not number else 1)
    if version == "v2":
        x = np.maximum(group_norm(x, p["gn_final/scale"], p["gn_final/bias"], version), 0)
    return x


def forward(model, params, images):
    """Logits, pre_logits and the last map of a ResNet, float64."""
    features = backbone(model, params["resnet"], images)
    x = features.mean((1, 2))
    if model.representation_size:
        x = np.tanh(x @ params["pre_logits"]["kernel"] + params["pre_logits"]["bias"])
    return x @ params["head"]["kernel"] + params["head"]["bias"], x, features


def macs(jaxpr):
    """The multiply-accumulates of a program, without those with a convolution's padding."""
    total = vit_reference.macs(jaxpr)
    for equation, times in vit_reference.equations(jaxpr):
        if equation.primitive.name != "conv_general_dilated":
            continue
        x, kernel = (value.aval.shape for value in equation.invars)
        out = equation.outvars[0].aval.shape  # all NHWC, the kernel HWIO
        inside = 1
        for axis, stride, (low, _) in zip(
            (0, 1), equation.params["window_strides"], equation.params["padding"], strict=True
        ):
            met = np.add.outer(np.arange(out[1 + axis]) * stride - low, np.arange(kernel[axis]))
            inside *= int(((met >= 0) & (met < x[1 + axis])).sum())
        every = out[1] * kernel[0] * out[2] * kernel[1]
        total -= times * out[0] * (every - inside) * kernel[2] * kernel[3]
    return total
