"""soak.py BUILD HOURS [SEED [ROW...]] - long load, in HOURS: half of the processors train, the other half kill and fuzz.

Training: the rows of CONFIGS in turn, SEED chooses the first; two minutes or more for each. First calm: neither memory nor
descriptors, threads or files of any process may grow. Then the same steps, with what CONFIGS and EVENTS say, at random: ranks
killed, stopped, held up and slowed down, other numbers of ranks, a disk that fills. The run is resumed until it has all steps:
the weights, the log and the files of the calm run. ROW: only these rows, and neither kills nor fuzz.
Beside it kills inside saves (test_checkpoint_kill), kills of which the ranks that are left go on (test_elastic.sh), ranks that join and leave (test_new_ranks.sh), and
changed inputs for every parser, under sanitizers (BUILD/asan/fuzz_*). BUILD/soak/counts.json adds them up over runs, until
there are as many as GOALS says.
TRAINER names another program. Last line: N passed, N failed."""
import collections, glob, json, os, random, re, shutil, signal, subprocess, sys, threading, time

B, SECONDS = sys.argv[1], 3600 * float(sys.argv[2])
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else int(time.time())
ONLY = sys.argv[4:]
TRAINER = os.environ.get("TRAINER", B + "/unmeasured/train_gpt2_zero")
WORK = os.path.abspath(B) + "/soak"
COMMON = "-e char:4x64x4 -t 32 -b 2 -nt 1 -n 50 -nk 3 -na 1 -v 500 -m 2 -g 0 -lp 1 "
SKIPS = "-dt fp16 -li 1e9 -lh 1 -lw 60 -sl 3 -sg 3 "  # fp16 with skipped steps
EVENTS = ("one", "one", "all", "stop", "hold", "slow", "fill")
CONFIGS = {  # options; events in addition to EVENTS
    # accumulation, saves aside, all state in files, a pipeline (its gradients add up in memory), packed weights and gradients
    "everything": (SKIPS + "-d 512 -pn 4 -pp 2 -z 3 -zos file -zop file -qw 8 -qg 4 -qf 0.8 -qr 100", ()),
    "states": ("-d 512 -pn 4 -z 2 -dt bf16 -w split -os 8bit -zi 1", ()),
    "layers": ("-d 512 -pn 2 -z 3 -dt bf16 -w split -os bf16 -mo layers -r 3", ()),
    "context": (SKIPS + "-d 256 -pn 4 -z 3 -cp 2", ()),
    "auto": (f"-d 512 -pn 2 -z auto -ma {WORK}/machine", ()),  # the first run measures: all choose alike
    "checked": ("-d 384 -pn 3 -z 2 -ck 3 -zi 1", ()),
    "sizes": ("-vr 4 -pn 4 -z 2", ("size",) * 6),
}
KEPT = 3
MILLIONS = 10_000_000
GOALS = {"fuzz_data": MILLIONS, "fuzz_machine": MILLIONS, "fuzz_checkpoint": MILLIONS, "fuzz_ds_config": MILLIONS,
         "kills": 10_000, "elastic": 1_000, "new_ranks": 1_000, "fuzz_model_files": MILLIONS}  # what ends early leaves its time to the next
result, lock = collections.Counter(), threading.Lock()


def check(ok, name, words=""):
    with lock:
        result[bool(ok)] += 1
        if not ok: print(f"FAILED: {name}: {words}", flush=True)


def say(words):
    print(f"[{time.time() - BEGIN:5.0f} s] {words}", flush=True)


# ---- a run of the trainer ----
class Run:
    def __init__(self, config, name, steps, *more):
        self.disk = DISK if name == "upset" and DISK else WORK  # its own file system, which may fill
        self.out, self.files, self.text = f"{self.disk}/{name}", f"{self.disk}/{name}_files", f"{WORK}/{name}.txt"
        self.sizes = f"{WORK}/{name}_ranks"
        options, self.events = CONFIGS[config]
        self.nranks = int(re.search(r"-pn (\d+)", options)[1])
        if "size" in self.events: more = (*more, "-pnf", self.sizes)
        os.makedirs(self.files, exist_ok=True)
        command = [TRAINER, *COMMON.split(), *options.split(), "-x", str(steps), "-o", self.out, "-zfd", self.files, *more]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=open(self.text, "w"),
                                        stderr=subprocess.STDOUT, start_new_session=True)

    def ranks(self):
        """Processes below the launcher, in the order in which they were started."""
        def below(pid):
            try: return [int(x) for x in open(f"/proc/{pid}/task/{pid}/children").read().split()]
            except OSError: return []
        found = below(self.process.pid)
        for pid in found: found += below(pid)
        return sorted(found)

    def wait(self, seconds):
        """The exit code; None: it still runs."""
        try: return self.process.wait(seconds)
        except subprocess.TimeoutExpired: return None

    def kill(self):
        try: os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError: pass
        self.process.wait()

    def said(self, pattern):
        return re.findall(pattern, open(self.text, errors="replace").read(), re.M)

    def tail(self):
        return " / ".join(open(self.text, errors="replace").read().split("\n")[-4:])


def look(pid):
    """Of a process: KiB in memory, threads, descriptors."""
    status = open(f"/proc/{pid}/status").read()
    return (*(int(re.search(word + r":\s+(\d+)", status)[1]) for word in ("VmRSS", "Threads")), len(os.listdir(f"/proc/{pid}/fd")))


def grows(run):
    """Looks at all processes until the run ends: the least of a third behind the start against the last third's."""
    seen = collections.defaultdict(list)
    while run.wait(0.1) is None:
        for pid in [run.process.pid, *run.ranks()]:
            try: seen[pid].append(look(pid))
            except (OSError, TypeError): pass  # it has just ended
    for pid, looks in seen.items():
        third = len(looks) // 3
        if third < 10: continue
        first, last = ([min(x) for x in zip(*part)] for part in (looks[third // 3:third], looks[-third:]))
        check(last[0] <= 1.01 * first[0] + 512 and last[1:] <= first[1:], f"process {pid} grows",
              f"KiB, threads, descriptors: {first}, later {last}")
        say(f"calm: process {pid}, {len(looks)} looks: {first[0]} KiB, {first[1]} threads, {first[2]} descriptors, later {last}")
    check(len(seen) > run.nranks, "looked at all ranks", len(seen))


def upset(run, chance):
    """Something happens to a run; whether it must have ended well."""
    ranks = run.ranks()
    how = chance.choice(EVENTS + run.events)
    try:
        if how == "one" and ranks: os.kill(chance.choice(ranks), signal.SIGKILL)
        elif how == "stop": os.kill(run.process.pid, signal.SIGTERM)
        elif how == "hold" and ranks:
            rank = chance.choice(ranks)
            os.kill(rank, signal.SIGSTOP)
            time.sleep(chance.random())
            os.kill(rank, signal.SIGCONT)
            return how
        elif how == "slow" and ranks:
            rank = chance.choice(ranks)
            for _ in range(20):
                os.kill(rank, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(rank, signal.SIGCONT)
                time.sleep(0.01)
            return how
        elif how == "size":
            with open(run.sizes, "w") as f: f.write(f"{chance.choice((1, 2, 4))}\n")
            return how
        elif how == "fill":
            if DISK: fill(chance)
            return how if DISK else "no disk to fill"
        else: run.kill()
    except ProcessLookupError: pass
    check(run.wait(60) is not None, f"ends within 60 s ({how})", run.tail())
    run.kill()
    return how


def fill(chance):
    """The disk of the upset run is full for some time. A save then fails, and the run ends or tries again."""
    try:
        with open(DISK + "/filled", "wb", buffering=0) as f:
            while True: f.write(bytes(1 << 20))
    except OSError: pass
    time.sleep(2 * chance.random())
    os.remove(DISK + "/filled")


def train(config, seconds):
    for name in ("machine", "trial", "calm", "upset"):
        for folder in (WORK, DISK or WORK):
            for old in glob.glob(f"{folder}/{name}*"):
                shutil.rmtree(old) if os.path.isdir(old) else os.remove(old)
    chance, begin = random.Random(f"{SEED} {config}"), time.time()
    trial = Run(config, "trial", 100)
    check(trial.wait(120) == 0, "100 steps", trial.tail())
    steps = max(200, int(100 / (time.time() - begin) * 0.4 * seconds))
    say(f"{config}: {steps} steps, calm: {TRAINER} {COMMON}{CONFIGS[config][0]}")
    begin = time.time()
    calm = Run(config, "calm", steps)
    grows(calm)
    check(calm.wait(0) == 0, "the calm run", calm.tail())
    took = time.time() - begin
    skipped = len(calm.said("^step.*(?:: unusual|is not finite)$"))
    say(f"calm: {took:.0f} s, {skipped} steps skipped, weights {calm.said('^weights (.*)')}")
    check(skipped > 0 or SKIPS not in CONFIGS[config][0], "steps are skipped", calm.tail())
    did, resumed, end = collections.Counter(), 0, time.time() + 10 * took + 120
    run = Run(config, "upset", steps)
    while time.time() < end:
        code = run.wait(chance.uniform(0.2, 2) * max(1.5, took / 40))
        if code is None: did[upset(run, chance)] += 1
        if run.process.poll() is None: continue
        resumed += len(run.said("^resuming from step"))
        if code == 0 and run.said("^weights"): break
        full = run.said("No space left on device")
        check(code is None or full, "ends by itself", run.tail())
        if sum(did.values()) % 20 == 0: say(f"upset: {dict(did)}, {run.said('^step *([0-9]+)')[-1:]}")
        run = Run(config, "upset", steps, "-y", "1")
    run.kill()
    say(f"upset: {dict(did)}, {resumed} times resumed, weights {run.said('^weights (.*)')}")
    check(resumed > 0 and did, "resumed")
    check(calm.said("^weights .*") and calm.said("^weights .*") == run.said("^weights .*"), "the calm run's weights", run.tail())
    log = [[line.split(" t:")[0] for line in open(r.out + "/main.log")] for r in (calm, run)]
    if "size" not in run.events: check(log[0] == log[1], "the calm run's log", f"{len(log[0])} and {len(log[1])} lines")
    for r in (calm, run):
        saved = set(os.listdir(r.out)) - {"main.log", "main.log.note"}
        check(len(saved) == KEPT and not os.listdir(r.files), "no files left", os.listdir(r.out) + os.listdir(r.files))


# ---- kills and inputs, counted over runs ----
def count(part, seconds):
    """One process of a part: how many there were; 0 after a failure."""
    seed = SEED + counts[part]
    command = {"kills": [f"{B}/test_checkpoint_kill", "50", str(seed)],
               "elastic": ["sh", "tests/trainer/test_elastic.sh", B, "10", str(seed), "kills"],
               "new_ranks": ["sh", "tests/trainer/test_new_ranks.sh", B, "20", str(seed)]}.get(
        part, [f"{B}/asan/{part}", f"{min(60, seconds):.0f}", str(seed), *SAMPLES.get(part, [])])
    r = subprocess.run(command, capture_output=True, text=True, errors="replace",
                       env={**os.environ, "OMP_NUM_THREADS": "1", "TRAINER": TRAINER})
    ok = r.returncode == 0 and re.search(r"^(\d+) passed, 0 failed", r.stdout, re.M)
    check(ok, " ".join(command), (r.stdout + r.stderr)[-3000:])
    kills = re.search(r"^(\d+) kills", r.stdout, re.M)
    return int((kills or ok)[1]) if ok else 0


def kill_and_fuzz(end):
    for i, part in enumerate(GOALS):
        till = time.time() + (end - time.time()) / (len(GOALS) - i)
        new, begin = 0, time.time()
        while time.time() < till - 1 and counts[part] < GOALS[part]:
            some = count(part, till - time.time())
            if not some: break
            new, counts[part] = new + some, counts[part] + some
            json.dump(counts, open(WORK + "/counts.json", "w"))
        say(f"{part}: {new} in {time.time() - begin:.0f} s; in all {counts[part]} of {GOALS[part]}")


def make_disk():
    """A small file system, which fills; None: this user may not mount one."""
    folder = WORK + "/disk"
    os.makedirs(folder, exist_ok=True)
    while subprocess.run(["umount", folder], capture_output=True).returncode == 0: pass
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], capture_output=True, text=True)
    if r.returncode: print(f"not run: a disk that fills ({r.stderr.strip()})", flush=True)
    return None if r.returncode else folder


BEGIN = time.time()
os.makedirs(WORK, exist_ok=True)
DISK = make_disk()
SAMPLES = {"fuzz_ds_config": sorted(glob.glob("tests/ds_config/*.json")), "fuzz_machine": ["adapters/plan/card.txt"]}
counts = collections.Counter(json.load(open(WORK + "/counts.json")) if os.path.exists(WORK + "/counts.json") else {})
say(f"SEED={SEED}, {SECONDS / 60:.0f} minutes")
beside = threading.Thread(target=kill_and_fuzz, args=(BEGIN + SECONDS,))
if not ONLY: beside.start()
rows = ONLY or list(CONFIGS)
share = max(120, SECONDS / len(rows))
for i in range(len(rows)):
    if i and time.time() + share / 2 > BEGIN + SECONDS: break
    train(rows[(i + (0 if ONLY else SEED)) % len(rows)], min(share, SECONDS))
if not ONLY: beside.join()
if DISK: subprocess.run(["umount", DISK])
print(f"{result[True]} passed, {result[False]} failed")
sys.exit(result[False] > 0)
