"""test_python.py LIBRARY - numpy trains a perceptron through the plugin's shared library: the
header's structs and a host in 40 lines, at stages 0-3, on 1 to 3 ranks, as threads and as
processes, against plain numpy. Last line: N passed, N failed[, N skipped]."""
import ctypes as c
import os
import pickle
import sys
import threading

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

LAYERS, WIDTH, ROWS, STEPS, LR = 4, 20, 8, 12, 0.01


def forward(x, w, b):
    return np.tanh(x @ w.T + b)


def backward(d, x, y, w, dw, db):
    d = d * (1 - y * y)
    dw += d.T @ x
    db += d.sum(0)
    return d @ w


def batch(rank, step):
    x = np.random.default_rng(100 * rank + step).standard_normal((ROWS, WIDTH), np.float32)
    return x, np.sin(x + x[:, ::-1])


start = np.random.default_rng(1).standard_normal((LAYERS, WIDTH, WIDTH), np.float32)
start *= np.float32(0.2)

# ---- 40 lines: the structs of zero_plugin.h, and a host ----
lib, I, F, P, S = c.CDLL(sys.argv[1]), c.c_int, c.c_float, c.c_void_p, c.c_size_t
lib.zero_last_error.restype, lib.zero_loss_scale.restype = c.c_char_p, F
def struct(name, *fields): return type(name, (c.Structure,), {"_fields_": sum(fields, [])})
def all_of(kind, names): return [(name, kind) for name in names.split()]
Comm = struct("zero_comm", all_of(I, "kind rank"), all_of(P, "handle"), all_of(I, "node_size"))
Scaler = struct("zero_scaler", all_of(F, "fixed initial minimum"),
                all_of(I, "window hysteresis consecutive_hysteresis"))
Muon = struct("zero_muon", all_of(F, "momentum plain_lr"), all_of(I, "iterations match_rms no_nesterov"))
Config = struct("zero_config", all_of(I, "stage micro_steps accumulation type grads master state_type"),
                all_of(c.c_uint64, "seed"), all_of(I, "optimizer"), all_of(Scaler, "scaler"),
                all_of(I, "prefetch"), all_of(S, "bucket_numel"),
                all_of(c.c_int64, "persistence_numel"),
                all_of(I, "no_overlap no_overflow_check no_mapping threads"),
                all_of(P, "stream"), all_of(c.c_double, "timeout_s"), all_of(P, "log log_user"),
                all_of(I, "open_units optimizer_tier"), all_of(P, "folder"),
                all_of(I, "gradient_tier parameter_tier"), all_of(F, "offload_share"),
                all_of(I, "no_file_check delay_from"), all_of(P, "trace trace_user"),
                all_of(F, "trust_least trust_most"), all_of(Muon, "muon"), all_of(I, "update_on"),
                all_of(F, "link_gbs memory_gbs"), all_of(P, "world"), all_of(I, "world_units"),
                all_of(P, "world_unit"), all_of(I, "divisor"), all_of(P, "joins"))
Desc = struct("zero_tensor_desc", all_of(c.c_char_p, "name"), all_of(S, "numel"),
              all_of(I, "layers unit uses flags together every"),
              all_of(F, "lr_factor decay_factor"), all_of(c.c_char_p, "frozen"), all_of(I, "divisor"), all_of(S, "rows cols"),
              all_of(P, "slice_of"), all_of(S, "outer"), all_of(P, "sum_over"),
              all_of(c.c_char_p, "same_as"), all_of(S, "field"), all_of(P, "param grad"), all_of(S, "stride"))
Tensors, HYPER = struct("tensors", all_of(c.POINTER(F), "w b")), (F * 6)(LR, .9, .95, 1e-8, .1, 0)
def layer(t, l): return [np.ctypeslib.as_array(t.w, (LAYERS, WIDTH, WIDTH))[l],
                         np.ctypeslib.as_array(t.b, (LAYERS, WIDTH))[l]]
def train(group, rank, config):
    z, p, g, x, losses = P(), Tensors(), Tensors(), [None] * (LAYERS + 1), []
    def do(name, *args):
        if getattr(lib, "zero_" + name)(*args): raise RuntimeError(lib.zero_last_error(z).decode())
    do("create", c.byref(z), c.byref(config), c.byref(Comm(1, rank, group, 0)))
    do("tensor", z, c.byref(Desc(b"w", WIDTH * WIDTH, LAYERS, field=Tensors.w.offset)))
    do("tensor", z, c.byref(Desc(b"b", WIDTH, LAYERS, field=Tensors.b.offset)))
    do("build", z)
    do("write_tensor", z, b"w", 0, S(0), S(start.size), start.ctypes.data_as(P))
    for step in range(STEPS):
        x[0], target = batch(rank, step)
        do("pass_begin", z, 0, 0, 1)
        for l in range(LAYERS):
            do("forward_begin", z, l, c.byref(p))
            x[l + 1] = forward(x[l], *layer(p, l)); do("forward_end", z, l)
        losses.append(float(np.square(x[-1] - target).mean()))
        d = (x[-1] - target) * np.float32(2 / target.size * lib.zero_loss_scale(z))
        for l in reversed(range(LAYERS)):
            do("backward_begin", z, l, c.byref(p), c.byref(g))
            d = backward(d, x[l], x[l + 1], layer(p, l)[0], *layer(g, l)); do("backward_end", z, l)
        do("pass_end", z); do("reduce", z); do("step", z, c.byref(HYPER))
    return z, losses
# ---- the end of the 40 lines ----


def read(z, name, numel):
    """Every rank reads all layers of a tensor."""
    out = np.empty(numel, np.float32)
    size = c.c_size_t(numel)
    if lib.zero_read_tensor(z, name, 0, c.c_size_t(0), size, out.ctypes.data_as(P)):
        raise RuntimeError(lib.zero_last_error(z).decode())
    return out


def whole(ranks):
    """The same training without the plugin: losses of each rank, w and b."""
    params = [start.copy(), np.zeros((LAYERS, WIDTH), np.float32)]
    moments = [[np.zeros(p.shape), np.zeros(p.shape)] for p in params]
    losses = [[] for _ in range(ranks)]
    for step in range(STEPS):
        mean = [np.zeros_like(p) for p in params]
        for rank in range(ranks):
            x, target = batch(rank, step)
            x = [x]
            for l in range(LAYERS):
                x.append(forward(x[l], params[0][l], params[1][l]))
            losses[rank].append(float(np.square(x[-1] - target).mean()))
            d = (x[-1] - target) * np.float32(2 / target.size / ranks)
            for l in reversed(range(LAYERS)):
                d = backward(d, x[l], x[l + 1], params[0][l], mean[0][l], mean[1][l])
        for p, g, (m, v) in zip(params, mean, moments):
            m += 0.1 * (g - m)
            v += 0.05 * (np.square(g.astype(float)) - v)
            root = np.sqrt(v / (1 - 0.95 ** (step + 1))) + 1e-8
            p -= LR * (m / (1 - 0.9 ** (step + 1)) / root + 0.1 * p)
    return losses, np.concatenate([p.ravel() for p in params])


def rank_main(group, rank, config):
    """Trains and reads; a rank that fails tells the others, so that they do not wait."""
    try:
        z, losses = train(group, rank, config)
        weights = np.concatenate([read(z, b"w", start.size), read(z, b"b", LAYERS * WIDTH)])
        lib.zero_destroy(z)
        return losses, weights
    except RuntimeError as error:
        lib.zero_local_abort(group, rank, str(error).encode())
        print("FAILED: rank %d: %s" % (rank, error), file=sys.stderr)
        return None


def as_threads(group, ranks, config):
    results = [None] * ranks

    def body(rank):
        results[rank] = rank_main(group, rank, config)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def as_processes(group, ranks, config):
    pipes, results = [], []
    sys.stdout.flush()
    for rank in range(ranks):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            with os.fdopen(theirs, "wb") as file:
                pickle.dump(rank_main(group, rank, config), file)
            os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    for ours in pipes:
        with os.fdopen(ours, "rb") as file:
            results.append(pickle.load(file))
        os.wait()
    return results


def run(ranks, stage, shared):
    group = P()
    lib.zero_local_create(c.byref(group), ranks, shared)
    config = Config(stage=stage, threads=1, timeout_s=60)
    results = (as_processes if shared else as_threads)(group, ranks, config)
    lib.zero_local_destroy(group)
    return results


def equal(a, b):
    return None not in a and all(x[0] == y[0] and np.array_equal(x[1], y[1]) for x, y in zip(a, b))


def near(results, losses, weights):
    return None not in results and all(
        np.allclose(mine, of, rtol=1e-4) and np.allclose(seen, weights, rtol=1e-3, atol=1e-5)
        for (mine, seen), of in zip(results, losses))


passed = failed = 0


def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAILED:", what, file=sys.stderr)


def fields(struct_type):
    return [field[0] for field in struct_type._fields_]


def check_layout():
    """What is written through the struct here comes back from zero_query_config, field by field."""
    z, seen = P(), Config()
    asked = Config(stage=2, micro_steps=3, accumulation=2, grads=1, seed=1 << 40, optimizer=4,
                   scaler=Scaler(2, 64, 4, 7, 8, 1), prefetch=5, bucket_numel=1 << 20,
                   persistence_numel=77, no_overlap=1, no_overflow_check=1, no_mapping=1,
                   threads=2, timeout_s=12.5, log_user=42, trust_least=.5, trust_most=2,
                   muon=Muon(.5, 3, 4, 1, 1), offload_share=1, link_gbs=10,
                   memory_gbs=20)
    ok = lib.zero_create(c.byref(z), c.byref(asked), c.byref(Comm(0, 0, None, 0))) == 0
    ok = ok and lib.zero_tensor(z, c.byref(Desc(b"t", 1 << 21))) == 0
    lib.zero_query_config(z, c.byref(seen))
    for name in fields(Config):
        if name not in ("scaler", "bucket_numel", "muon"):
            check(ok and getattr(seen, name) == getattr(asked, name), "zero_config." + name)
    for name in fields(Scaler):
        ok_here = ok and getattr(seen.scaler, name) == getattr(asked.scaler, name)
        check(ok_here, "zero_scaler." + name)
    for name in fields(Muon):
        check(ok and getattr(seen.muon, name) == getattr(asked.muon, name), "zero_muon." + name)
    lib.zero_destroy(z)


check_layout()
for ranks in (1, 2, 3):
    losses, weights = whole(ranks)
    first = run(ranks, 0, 0)
    check(near(first, losses, weights), "%d ranks: not what plain numpy computes" % ranks)
    check(losses[0][-1] < 0.9 * losses[0][0], "%d ranks: the loss does not fall" % ranks)
    for stage in (0, 1, 2, 3):
        for shared in (0, 1):
            what = "%d %s, stage %d" % (ranks, "processes" if shared else "threads", stage)
            check(equal(run(ranks, stage, shared), first), what + ": not the bits of stage 0")
print("%d passed, %d failed" % (passed, failed))
sys.exit(failed > 0)
