"""Small configs for preflight, and reports with round numbers."""

import runs
from vit_jax import preflight
from vit_jax.preflight import program


def tiny(**sections):
    """A prepared config of two layers."""
    sections["model"] = {"num_classes": 10} | sections.get("model", {})
    return preflight.prepare_config(runs.configure(**sections))


def create_report(**changes):
    """A report with round numbers: 1e12 FLOPs of 1e13 per second, 2e9 bytes of 1e10, ..."""
    values = {
        "name": "a", "topology": "v3-8", "settings": program.Settings(1, "none", 2, 1),
        "devices": 8, "cores": 8, "batch": 4, "fits": True, "memory": 16 * 2.0**30,
        "peak": 2**30, "exceeds": None, "params": 2**28, "optimizer": 2**29,
        "activations": 2**28, "model_flops": 1e12, "compiler_flops": 1.5e12,
        "bytes_accessed": 2e9, "compiler_seconds": 0.25,
        "collectives": {"all-reduce": {"count": 2, "bytes": 10**9}},
        "steps": 86_400, "global_batch": 32, "peak_flops": 1e13, "bandwidth": 1e10,
        "links": 1e11, "compile_seconds": 3.0,
    }  # fmt: skip
    return program.Report(**values | changes)
