#!/usr/bin/env python3
"""How far AdamW with 8-bit state gets from AdamW with f32 state, in the libraries that have it.

This script shares no code with the project. Its figures are kept in states.txt, and the plugin's
8-bit state must not be further from f32 than the libraries' (tests/plugin/test_states.c).

    pip install torch numpy torchao bitsandbytes
    TORCHDYNAMO_DISABLE=1 python3 states.py > states.txt     the figures
    TORCHDYNAMO_DISABLE=1 python3 states.py --check FILE     compares a file with the libraries

Weights and gradients are functions of an index. A line is either `weight INDEX VALUE`, an f32
weight after STEPS steps, or `distance LIBRARY VALUE`: the norm of the difference of all weights
from those, divided by the norm of those. --check takes the libraries that are installed.
"""
import importlib
import importlib.metadata
import sys

import numpy as np
import torch

NUMEL, STEPS = 16384, 100
HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
LIBRARIES = {"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}


def mixed(what):
    """A number from -0.5 up to 0.5 for each element, in 16 bits."""
    x = np.arange(NUMEL, dtype=np.uint32) * np.uint32(0x9E3779B1)
    x += np.uint32(what * 0x7FEB352D & 0xFFFFFFFF)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return (x >> np.uint32(16)).astype(np.float64) / 65536 - 0.5


def gradient(step):
    """Noise with large values that are rare, around a mean, of eight magnitudes. Exact in f64."""
    u = mixed(step)
    size = 2.0 ** -(np.arange(NUMEL) // 512 % 8)
    return ((4 * u * u * u + mixed(1000) / 16) * size).astype(np.float32)


def trained(optimizer):
    p = torch.nn.Parameter(torch.tensor((mixed(2000) / 16).astype(np.float32)))
    made = optimizer([p], **HYPER)
    for step in range(1, STEPS + 1):
        p.grad = torch.tensor(gradient(step))
        made.step()
    return p.detach().numpy().astype(np.float64)


def figures():
    exact = trained(torch.optim.AdamW)
    lines = {f"weight {i}": exact[i] for i in range(0, NUMEL, NUMEL // 16)}
    for name, module in LIBRARIES.items():
        try:
            rule = importlib.import_module(module).AdamW8bit
        except ImportError:
            continue
        far = np.linalg.norm(trained(rule) - exact) / np.linalg.norm(exact)
        lines[f"distance {name}"] = far
    return lines


def main():
    found = figures()
    if sys.argv[1:2] != ["--check"]:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *LIBRARIES)]
        print("#", ", ".join(versions))
        for what, value in found.items():
            print(f"{what} {value:.9g}")
        return 0
    with open(sys.argv[2], encoding="utf-8") as file:
        words = [line.rsplit(" ", 1) for line in file if not line.startswith("#")]
    kept = {what: float(value) for what, value in words}
    passed = failed = skipped = 0
    for what, value in kept.items():
        if what not in found:
            skipped += 1
            print(f"skipped: {what} is not installed")
            continue
        near = abs(found[what] - value) <= (1e-6 if what.startswith("weight") else 0.02 * value)
        passed += near
        failed += not near
        if not near:
            print(f"FAILED: {what}: {found[what]:.9g}, expected {value:.9g}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
