#!/usr/bin/env python3
"""How far one AdamW update is from the exact one, if the state was stored once in 8 bits.

    python3 codes.py      a table: codes, rounding, block, errors of m, of v and of the update

It compares the plugin's codes (zero_plugin/numbers/codes.h: companded values, and roots) with
dynamic codes (Dettmers et al. 2021; bitsandbytes rounds these to nearest, in blocks of 256). It
shares no code with the project. The gradient of an element is size * (normal + 0.1), and the sizes
are exp(spread * normal). An error is the norm of the difference divided by the exact norm.
"""
import math
import random
from bisect import bisect_left

NUMEL, STEPS, BETA1, BETA2, EPS = 16384, 100, 0.9, 0.95, 1e-8
draw = random.Random(1)


def dynamic(signed):
    """The 256 values of bitsandbytes' create_dynamic_map."""
    values = [0.0, 1.0]
    for i in range(7):
        items = 2**i if signed else 2**(i + 1)
        edges = [0.1 + 0.9 * k / items for k in range(items + 1)]
        middle = [10.0**(i - 6) * (a + b) / 2 for a, b in zip(edges, edges[1:])]
        values += middle + ([-x for x in middle] if signed else [])
    return sorted(values)


DYNAMIC = [dynamic(True), dynamic(False)]


def store_dynamic(y, squares, stochastic):
    values = DYNAMIC[squares]
    i = min(max(bisect_left(values, y), 1), 255)
    low, high = values[i - 1], values[i]
    up = draw.random() < (y - low) / (high - low) if stochastic else y - low >= high - y
    x = high if up else low
    return max(x, values[1]) if squares and stochastic and y > 0 else x


def store_companded(y, squares, stochastic):
    at = 255 * math.sqrt(y) if squares else 254 * y / (1 + abs(y))
    code = round(at + (draw.random() - 0.5 if stochastic else 0))
    if squares:
        return (max(1 if y > 0 else 0, min(255, code)) / 255)**2
    return code / (254 - abs(code))


def stored(x, block, squares, store, stochastic):
    out = []
    for at in range(0, NUMEL, block):
        part = x[at:at + block]
        scale = max(abs(y) for y in part)
        out += [scale * store(y / scale, squares, stochastic) for y in part]
    return out


def error(a, b):
    return math.sqrt(sum((x - y)**2 for x, y in zip(a, b)) / sum(y * y for y in b))


def moments(spread):
    m, v = [0.0] * NUMEL, [0.0] * NUMEL
    for i in range(NUMEL):
        size = math.exp(draw.gauss(0, spread))
        for _ in range(STEPS):
            g = size * (draw.gauss(0, 1) + 0.1)
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
    return m, v


def update(m, v):
    return [x / (math.sqrt(y) + EPS) for x, y in zip(m, v)]


print("spread codes rounding block m v update")
for spread in (0.0, 0.3, 1.0):
    m, v = moments(spread)
    exact = update(m, v)
    for name, store, stochastic, block in (("companded", store_companded, 1, 128),
                                           ("companded", store_companded, 0, 128),
                                           ("dynamic", store_dynamic, 0, 256),
                                           ("dynamic", store_dynamic, 1, 128)):
        m8 = stored(m, block, 0, store, stochastic)
        v8 = stored(v, block, 1, store, stochastic)
        print(spread, name, "stochastic" if stochastic else "nearest", block,
              *(f"{error(a, b):.4f}" for a, b in ((m8, m), (v8, v), (update(m8, v8), exact))))
