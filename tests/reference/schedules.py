#!/usr/bin/env python3
"""Learning rates and betas of DeepSpeed's schedules, computed by DeepSpeed itself.

This script shares no code with the project. Its figures are kept in schedules.txt, and the
project's adapters/schedule must reproduce them.

    pip install torch deepspeed==0.19.8
    python3 schedules.py > schedules.txt     the figures
    python3 schedules.py --engine            checks that DeepSpeed's engine uses the same ones

A line of figures is what the optimizer holds when it makes update 0, 1, ...: lr, beta1, beta2, with
17 significant digits. The engine calls the scheduler once after every update that was made.
"""
import argparse
import contextlib
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
with contextlib.redirect_stdout(sys.stderr):    # what it says while it starts is no figure
    import deepspeed
    import torch
    from deepspeed.runtime import lr_schedules

LR, BETAS = 0.0013, (0.87, 0.95)    # the optimizer's own
STEPS = 80                          # past the end of all below that are not at their defaults

CYCLE = dict(cycle_min_lr=1e-4, cycle_max_lr=2e-3)
CASES = [
    # log warm-up, whose maximum is the optimizer's rate, and which is given
    ("WarmupLR", dict(warmup_num_steps=20)),
    ("WarmupLR", dict(warmup_min_lr=3e-5, warmup_max_lr=7e-4, warmup_num_steps=30)),
    ("WarmupLR", dict(warmup_min_lr=1e-5, warmup_max_lr=5e-4, warmup_num_steps=33,
                      warmup_type="linear")),
    ("WarmupLR", dict(warmup_max_lr=1e-3, warmup_num_steps=1)),
    ("WarmupLR", dict()),
    ("WarmupDecayLR", dict(total_num_steps=60, warmup_num_steps=10)),
    ("WarmupDecayLR", dict(total_num_steps=57, warmup_min_lr=2e-5, warmup_max_lr=6e-4,
                           warmup_num_steps=13, warmup_type="linear")),
    # ends before its warm-up does
    ("WarmupDecayLR", dict(total_num_steps=20, warmup_num_steps=30, warmup_type="linear")),
    ("WarmupCosineLR", dict(total_num_steps=60, warmup_num_steps=10)),
    ("WarmupCosineLR", dict(total_num_steps=66, warmup_num_steps=17, warmup_type="linear",
                            warmup_min_ratio=0.05, cos_min_ratio=0.1)),
    ("WarmupCosineLR", dict(total_num_steps=20, warmup_num_steps=20, warmup_min_ratio=0.2)),
    # the second half as long as the first; no decay; betas are cycled
    ("OneCycle", dict(**CYCLE, cycle_first_step_size=20)),
    ("OneCycle", dict(**CYCLE, cycle_first_step_size=21, cycle_second_step_size=34,
                      decay_step_size=5, decay_lr_rate=0.3, decay_mom_rate=0.004)),
    ("OneCycle", dict(**CYCLE, cycle_first_step_size=20, cycle_first_stair_count=4,
                      cycle_min_mom=0.7, cycle_max_mom=0.95)),
    ("OneCycle", dict(**CYCLE, cycle_first_step_size=23, cycle_second_step_size=31,
                      cycle_first_stair_count=5, cycle_second_stair_count=3, decay_step_size=7,
                      decay_lr_rate=0.1)),
    ("OneCycle", dict(**CYCLE, cycle_first_step_size=15, cycle_second_step_size=18,
                      cycle_second_stair_count=6, cycle_momentum=False, decay_step_size=4,
                      decay_lr_rate=1.5)),
    ("OneCycle", dict(**CYCLE, cycle_first_step_size=30, cycle_second_step_size=0,
                      decay_step_size=3, decay_mom_rate=-0.01)),
    ("LRRangeTest", dict()),
    ("LRRangeTest", dict(lr_range_test_min_lr=2e-5, lr_range_test_step_size=7,
                         lr_range_test_step_rate=0.9)),
    ("LRRangeTest", dict(lr_range_test_min_lr=2e-5, lr_range_test_step_size=9,
                         lr_range_test_step_rate=2.5, lr_range_test_staircase=True)),
]


def in_force(optimizer):
    group = optimizer.param_groups[0]
    return (group["lr"], *group["betas"])


def values(name, params):
    """What is in force in every update, with the scheduler alone."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=LR, betas=BETAS)
    scheduler = getattr(lr_schedules, name)(optimizer, **params)
    out = []
    for _ in range(STEPS):
        weight.grad = torch.ones(1)
        out.append(in_force(optimizer))
        optimizer.step()
        scheduler.step()
    return out


def engine_values(name, params, stage):
    """The same inside of the engine, which makes the scheduler from its configuration."""
    model = torch.nn.Linear(1, 1)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "scheduler": {"type": name, "params": params}}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    out, update = [], optimizer.step

    def step(*args, **named):
        out.append(in_force(optimizer))
        return update(*args, **named)

    optimizer.step = step
    for _ in range(STEPS):
        engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
    return out


def check_engine():
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29555")
    deepspeed.init_distributed(dist_backend="gloo")
    for name, params in CASES:
        for stage in (0, 2):
            same = engine_values(name, params, stage) == values(name, params)
            print("same " if same else "DIFFERENT", name, "stage", stage, params, flush=True)


def write():
    print(f"""\
# Learning rate, beta1 and beta2 of updates 0, 1, ... under DeepSpeed's schedules.
# DeepSpeed {deepspeed.__version__}, PyTorch {torch.__version__}, on the CPU with torch.optim.AdamW
# python3 tests/reference/schedules.py > tests/reference/schedules.txt
# A case: its class; the optimizer's own values; parameters by DeepSpeed's names, those that are not
# named at DeepSpeed's defaults; the number of updates, and a line of three figures for each.""")
    for name, params in CASES:
        print(f"\nschedule {name}\noptimizer {LR!r} {BETAS[0]!r} {BETAS[1]!r}")
        for key, value in params.items():
            print("set", key, int(value) if isinstance(value, bool) else value)
        print("steps", STEPS)
        for row in values(name, params):
            print(*(f"{figure:.17g}" for figure in row))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--engine", action="store_true")
    if p.parse_args().engine:
        check_engine()
    else:
        write()


if __name__ == "__main__":
    main()
