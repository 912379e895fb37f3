#!/usr/bin/env python3
"""Steps of Adagrad, LAMB and Muon, by the libraries whose formulas they follow.

This script shares no code with the project. Its figures are kept in optimizers.txt, and the
plugin's update rules must reproduce them (tests/plugin/test_tensors.c).

    pip install torch numpy optax
    python3 optimizers.py > optimizers.txt     the figures
    python3 optimizers.py --check FILE         compares a file with what the libraries say now
    python3 optimizers.py --normuon normuon.py the figures of NorMuon, by the file of its authors
                                               (github.com/zichongli5/NorMuon, d45c9a4)

Weights and gradients are functions of an index, the same for everybody. torch.optim.Muon iterates
in bfloat16: "muon" is its result, and "muon32" that of the same code with float32 in the place of
that one word, as "normuon32" is. A line of figures: rule, tensor, the weights after STEPS steps.
"""
import inspect
import sys

import numpy as np
import optax
import torch
import torch.optim._muon as muon

STEPS = 3
SHAPES = {"wide": (6, 10), "tall": (11, 5), "vector": (7,)}
LR, DECAY = 0.02, 0.1


def values(what, shape):
    """Floats of 24 bits, from -0.5 up to 0.5."""
    i = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(1000 * what)
    bits = (i * np.uint64(2654435761)) % np.uint64(1 << 32)
    return ((bits >> np.uint64(8)).astype(np.float64) / (1 << 24) - 0.5).astype(
        np.float32).reshape(shape)


def tensors():
    return {name: values(1 + k, shape) for k, (name, shape) in enumerate(SHAPES.items())}


def gradients(step):
    return {name: values(10 + 3 * step + k, shape)
            for k, (name, shape) in enumerate(SHAPES.items())}


def by_torch(optimizers):
    """`optimizers` makes a list of them from the named parameters."""
    params = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in tensors().items()}
    made = optimizers(params)
    for step in range(STEPS):
        for name, g in gradients(step).items():
            params[name].grad = torch.tensor(g)
        for optimizer in made:
            optimizer.step()
    return {name: p.detach().numpy() for name, p in params.items()}


def by_optax(rule):
    params, = [tensors()]
    state = rule.init(params)
    for step in range(STEPS):
        updates, state = rule.update(gradients(step), state, params)
        params = optax.apply_updates(params, updates)
    return {name: np.asarray(p) for name, p in params.items()}


def muons(params):
    return [torch.optim.Muon([params["wide"], params["tall"]], lr=LR, weight_decay=DECAY),
            torch.optim.AdamW([params["vector"]], lr=LR / 2, betas=(0.9, 0.95), eps=1e-8,
                              weight_decay=DECAY)]


def muons_as_adamw(params):
    return [torch.optim.Muon([params["wide"], params["tall"]], lr=LR, weight_decay=DECAY,
                             momentum=0.8, nesterov=False, adjust_lr_fn="match_rms_adamw")]


def wider():
    """The iteration in float32."""
    source = inspect.getsource(muon._zeropower_via_newtonschulz)
    assert source.count("bfloat16") == 1
    exec(source.replace("bfloat16", "float32"), vars(muon))


def normuons(path):
    """The update of the authors' file, in float32."""
    source = open(path).read()
    assert source.count("G.bfloat16()") == 1
    theirs = {}
    exec(source.replace("G.bfloat16()", "G.float()"), theirs)
    kept = {name: torch.tensor(w) for name, w in tensors().items() if w.ndim == 2}
    for name, p in kept.items():
        m, v = torch.zeros_like(p), torch.zeros_like(p[:, :1])
        for step in range(STEPS):
            p.mul_(1 - LR * DECAY)
            p.add_(theirs["normuon_update"](torch.tensor(gradients(step)[name]), m, v), alpha=-LR)
    yield "normuon32", {name: p.numpy() for name, p in kept.items()}


def figures():
    yield "adagrad", by_torch(lambda p: [torch.optim.Adagrad(p.values(), lr=LR, weight_decay=DECAY)])
    yield "lamb", by_optax(optax.lamb(LR, b1=0.9, b2=0.95, eps=1e-8, weight_decay=DECAY))
    yield "muon", by_torch(muons)
    wider()
    yield "muon32", by_torch(muons)
    found = by_torch(muons_as_adamw)
    del found["vector"]
    yield "muon_rms32", found


def check(path):
    """1: the file is not what the libraries say."""
    kept = {tuple(words[:2]): np.array(words[2:], np.float64) for words in
            (line.split() for line in open(path) if not line.startswith(("#", "normuon")))}
    count, wrong = 0, 0
    for rule, found in figures():
        for name, p in found.items():
            count += 1
            was = kept.get((rule, name))
            near = 2e-2 if rule == "muon" else 1e-5
            if was is None or not np.allclose(was, p.ravel(), atol=near * LR, rtol=1e-6):
                wrong += 1
                print("FAILED:", rule, name)
    wrong += count != len(kept)
    print(f"{count - wrong} passed, {wrong} failed")
    return wrong > 0


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--check":
        sys.exit(check(sys.argv[2]))
    their = sys.argv[2] if len(sys.argv) > 2 and sys.argv[1] == "--normuon" else None
    if not their:
        print(f"# torch {torch.__version__.split('+')[0]}, optax {optax.__version__}: by optimizers.py")
    for rule, found in normuons(their) if their else figures():
        for name, p in found.items():
            print(rule, name, *("%.9g" % x for x in p.ravel()))
