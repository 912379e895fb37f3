#!/usr/bin/env python3
"""auto.py BUILD [CASES] [SEED] - predicted against measured: time and memory of plans of -z auto, and its choice.

Draws CASES (default 60) requests: a model, ranks, tokens of a step, and a memory limit between barely enough and plenty.
For each one the trainer measures the machine and zero_plan lists the fastest plan of each stage and offload. Those that fit
are run (at most RUNS=6 of them, always the choice), for STEPS=6 steps each, and the median of the steps counts. Writes
BUILD/auto.csv with a line for each run, and prints:
  the median and the ninth decile of |measured / predicted - 1| of the step,
  the largest share by which a process exceeds its plan,
  the share of the cases in which the choice is within 5 % of the fastest run,
  runs that ended with an error, or above --memory. Only these fail, because times need a machine without other work.
MODELS="char:4x128x4 ..." replaces the models. FOLDER: a folder for files. The time is about CASES minutes.
Links with a shaped rate need root: run it inside a namespace of tests/bench/links.sh.
Last line: N passed, N failed."""
import csv
import os
import random
import re
import statistics
import subprocess
import sys

build = sys.argv[1]
cases = int(sys.argv[2]) if len(sys.argv) > 2 else 60
seed = int(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3] else 1
steps = int(os.environ.get("STEPS", "6"))
most_runs = int(os.environ.get("RUNS", "6"))
models = os.environ.get("MODELS", "char:4x128x4 char:6x384x6 d12 d24").split()
folder = os.environ.get("FOLDER", build)
draw = random.Random(seed)
passed = failed = 0


def check(ok, sentence):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAILED:", sentence)


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def request():
    """Returns flags of the trainer: model, ranks, sequence length, tokens of a step, data."""
    model = draw.choice(models)
    ranks = draw.choice([1, 2, 4])
    char = model.startswith("char:")
    kind = "char" if char else "gpt2"
    tokens = 64 * ranks * draw.choice([2, 4, 8, 16] if char else [1, 2, 4])
    return ["-e", model, "-pn", str(ranks), "-t", "64", "-d", str(tokens), "-nt", "1",
            "-i", f"{build}/data/tiny_{kind}_train.bin", "-j", f"{build}/data/tiny_{kind}_val.bin",
            "-zfd", folder]


def plans(flags, machine, memory):
    """Returns the rows of zero_plan -csv."""
    path = f"{build}/auto.{os.getpid()}.csv"
    words = [f"{build}/zero_plan", *flags, "--on", "cpu", "--machine", machine, "-z", "auto", "-csv", path]
    if memory:
        words += ["--memory", str(int(memory))]
    code, text = run(*words)
    if not os.path.exists(path):
        check(False, f"{' '.join(flags)}: code {code}, {text.strip()[-200:]}")
        return []
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    os.remove(path)
    return rows


def train(flags, row, memory):
    """Runs a plan. Returns its seconds, and the MiB of the process and of its plan."""
    words = [f"{build}/train_gpt2_zero", *flags, *row["flags"].split(), "-x", str(steps), "-v", "-1", "-g", "0", "-lp", "1"]
    code, text = run(*words)
    times = [float(x) for x in re.findall(r"^step .* ([0-9.]+) ms ", text, re.M)][1:]
    held = re.search(r"^memory of the process.*: ([0-9.]+) MiB, planned ([0-9.]+)", text, re.M)
    check(code == 0 and times and held is not None, f"{' '.join(words)}: code {code}, {text.strip()[-200:]}")
    if code or not times or held is None:
        return None
    has, planned = float(held[1]), float(held[2])
    check(not memory or has <= memory / 2**20 + PROCESS, f"{' '.join(words)}: {has} MiB, the limit is {memory / 2**20:.0f}")
    return statistics.median(times) / 1e3, has, planned


PROCESS = 64  # MiB of program and libraries, which the limit of zero_plan does not have
errors, over, right, counted = [], [], 0, 0
with open(f"{build}/auto.csv", "w", encoding="utf-8") as out:
    table = csv.writer(out)
    table.writerow("case flags memory choice predicted_s measured_s process_mib planned_mib".split())
    for case in range(cases):
        flags = request()
        machine = f"{build}/auto.{os.getpid()}.txt"
        code, text = run(f"{build}/train_gpt2_zero", *flags, "-z", "auto", "-x", "0", "-v", "-1", "-g", "0", "--machine", machine)
        check(code == 0, f"{' '.join(flags)}: measuring: {text.strip()[-200:]}")
        if code:
            continue
        sizes = sorted(int(row["device_bytes"]) for row in plans(flags, machine, 0))
        memory = 0 if not sizes or draw.random() < 0.25 else sizes[0] + draw.random() * (sizes[-1] - sizes[0])
        fit = [row for row in plans(flags, machine, memory) if row["fits"] == "1"]
        os.remove(machine)
        if not fit:
            continue
        others = fit[1:]
        draw.shuffle(others)
        times = []
        for row in fit[:1] + others[:most_runs - 1]:
            done = train(flags, row, memory)
            if done is None:
                continue
            seconds, has, planned = done
            times.append((row is fit[0], seconds))
            errors.append(abs(seconds / float(row["seconds"]) - 1))
            over.append(has / planned - 1)
            table.writerow([case, " ".join(flags[:8]) + " " + row["flags"], int(memory), int(row is fit[0]), row["seconds"],
                            f"{seconds:.6g}", has, planned])
        chosen = [seconds for is_choice, seconds in times if is_choice]
        if chosen:
            counted += 1
            right += chosen[0] <= 1.05 * min(seconds for _, seconds in times)
if errors:
    errors.sort()
    print(f"{len(errors)} runs of {counted} cases: the step differs from its prediction by {100 * statistics.median(errors):.1f} % "
          f"in the median, {100 * errors[min(len(errors) - 1, int(0.9 * len(errors)))]:.1f} % in nine of ten")
    print(f"memory: at most {100 * max(over):.1f} % above the plan, at least {100 * min(over):.1f} %")
    print(f"the choice is within 5 % of the fastest run in {right} of {counted} cases")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
