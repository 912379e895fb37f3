#!/usr/bin/env python3
"""First training losses of the char:4x128x4 model, computed by PyTorch alone.

This script shares no code with the project, only the written definition of the
model, the random numbers, the batches and AdamW. Its losses are kept in
char4_losses.txt, and the project's training must reproduce them closely.

    pip install torch numpy
    python3 char4_losses.py TOKENS.bin [--steps N]

TOKENS.bin holds the training split of tiny Shakespeare by characters in llm.c's
format: 256 int32 (20240520, 1, count, zeros), then count uint16. A line of the
output is the mean loss of a batch before its update, and the norm of all
gradients before clipping.
"""
import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F

V, L, C, H, T, B = 65, 4, 128, 4, 64, 12    # characters, layers, width, heads, window, batch
SEED, WINDOWS = 42, 1000                    # seed of everything, stream of the windows
LR, WARMUP, ADAM = 1e-3, 100, dict(betas=(0.9, 0.99), eps=1e-8)
GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix(x):
    """The finaliser of splitmix64, on an array of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(stream, i):
    """Random words number i (an array) of a stream."""
    key = mix(np.array([SEED], np.uint64) + GAMMA * np.array([stream + 1], np.uint64))
    return mix(key + GAMMA * (i.astype(np.uint64) + np.uint64(1)))


def normal(stream, count, std):
    """Elements 0..count-1 of a stream of normal numbers, as float32."""
    i = np.arange(count, dtype=np.uint64) * np.uint64(2)
    u, v = (((draw(stream, j) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
            for j in (i, i + np.uint64(1)))
    z = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * math.pi * v)
    return torch.from_numpy((z * std).astype(np.float32))


def initial_weights():
    """One tensor per layer, in llm.c's order, without the padding rows of wte."""
    # name, layers (0: one, not in a block), shape, deviation of a matrix or value of a vector
    std, std_proj = 0.02, 0.02 / math.sqrt(2 * L)
    shapes = [("wte", 0, (V, C), std), ("wpe", 0, (T, C), std),
              ("ln1w", L, (C,), 1), ("ln1b", L, (C,), 0),
              ("qkvw", L, (3 * C, C), std), ("qkvb", L, (3 * C,), 0),
              ("attprojw", L, (C, C), std_proj), ("attprojb", L, (C,), 0),
              ("ln2w", L, (C,), 1), ("ln2b", L, (C,), 0),
              ("fcw", L, (4 * C, C), std), ("fcb", L, (4 * C,), 0),
              ("fcprojw", L, (C, 4 * C), std_proj), ("fcprojb", L, (C,), 0),
              ("lnfw", 0, (C,), 1), ("lnfb", 0, (C,), 0)]
    w = {}
    for stream, (name, layers, shape, value) in enumerate(shapes):
        size = (max(layers, 1), *shape)
        whole = (normal(stream, math.prod(size), value).view(size) if len(shape) == 2
                 else torch.full(size, float(value)))
        parts = [p.clone().requires_grad_() for p in whole]
        w[name] = parts if layers else parts[0]
    return w


def loss_of(w, x, y):
    h = w["wte"][x] + w["wpe"]
    for l in range(L):
        n = F.layer_norm(h, (C,), w["ln1w"][l], w["ln1b"][l], 1e-5)
        q, k, v = (a.view(B, T, H, C // H).transpose(1, 2)
                   for a in F.linear(n, w["qkvw"][l], w["qkvb"][l]).split(C, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + F.linear(a.transpose(1, 2).reshape(B, T, C), w["attprojw"][l], w["attprojb"][l])
        n = F.layer_norm(h, (C,), w["ln2w"][l], w["ln2b"][l], 1e-5)
        n = F.gelu(F.linear(n, w["fcw"][l], w["fcb"][l]), approximate="tanh")
        h = h + F.linear(n, w["fcprojw"][l], w["fcprojb"][l])
    h = F.layer_norm(h, (C,), w["lnfw"], w["lnfb"], 1e-5)
    return F.cross_entropy(F.linear(h, w["wte"]).view(B * T, -1), y.reshape(-1))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("tokens")
    p.add_argument("--steps", type=int, default=10, help="at most 100, the warm-up")
    args = p.parse_args()
    header = np.fromfile(args.tokens, np.int32, 256)
    assert header[0] == 20240520 and header[1] == 1, "not a token file"
    tokens = np.fromfile(args.tokens, np.uint16, offset=1024).astype(np.int64)
    assert len(tokens) == header[2], "the token file is cut short"
    assert tokens.max() < V, "these are not the tokens of tiny Shakespeare by characters"

    w = initial_weights()
    flat = [t for v in w.values() for t in (v if isinstance(v, list) else [v])]
    opt = torch.optim.AdamW([{"params": [t for t in flat if t.dim() > 1], "weight_decay": 0.1},
                             {"params": [t for t in flat if t.dim() == 1], "weight_decay": 0.0}],
                            **ADAM)
    for step in range(min(args.steps, WARMUP)):
        rows = np.arange(step * B, (step + 1) * B)
        starts = (draw(WINDOWS, rows) % np.uint64(len(tokens) - T)).astype(np.int64)
        window = torch.from_numpy(tokens[starts[:, None] + np.arange(T + 1)])
        loss = loss_of(w, window[:, :-1], window[:, 1:])
        opt.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(flat, 1.0)
        for group in opt.param_groups:
            group["lr"] = LR * (step + 1) / WARMUP
        opt.step()
        print(f"{loss.item():.6f} {norm.item():.6f}")


if __name__ == "__main__":
    main()
