"""soak.py BUILD HOURS [SEED] - long load, in HOURS: half of the processors train, the other half kill and fuzz.

Training: everything on - fp16 with skips, accumulation, saves aside, all state in files, a pipeline, packed weights and
gradients. (A pipeline's gradients add up in memory.) First calm: neither memory nor descriptors, threads or files of any process may grow. Then the same steps,
ranks killed, stopped and held up at random, and resumed: the weights, the log and the files of the calm run.
Beside it kills inside saves (test_checkpoint_kill), kills of which the ranks that are left go on (test_elastic.sh), ranks that join and leave (test_new_ranks.sh), and
changed inputs for every parser, under sanitizers (BUILD/asan/fuzz_*). BUILD/soak/counts.json adds them up over runs, until
there are as many as GOALS says.
TRAINER names another program. Last line: N passed, N failed."""
import collections, glob, json, os, random, re, shutil, signal, subprocess, sys, threading, time

B, SECONDS = sys.argv[1], 3600 * float(sys.argv[2])
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else int(time.time())
TRAINER = os.environ.get("TRAINER", B + "/unmeasured/train_gpt2_zero")
WORK = os.path.abspath(B) + "/soak"
EVERYTHING = ("-e char:4x64x4 -t 32 -b 2 -d 512 -nt 1 -dt fp16 -li 1e9 -lh 1 -lw 60 -sl 3 -sg 3 -pn 4 -pp 2 -z 3 -zos file "
              "-zop file -qw 8 -qg 4 -qf 0.8 -qr 100 -n 50 -nk 3 -na 1 -v 500 -m 2 -g 0 -lp 1")
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
    def __init__(self, name, steps, *more):
        self.out, self.files, self.text = f"{WORK}/{name}", f"{WORK}/{name}_files", f"{WORK}/{name}.txt"
        os.makedirs(self.files, exist_ok=True)
        command = [TRAINER, *EVERYTHING.split(), "-x", str(steps), "-o", self.out, "-zfd", self.files, *more]
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
    check(len(seen) > 4, "looked at all ranks", len(seen))


def upset(run, chance):
    """Something happens to a run; whether it must have ended well."""
    ranks = run.ranks()
    how = chance.choice(("one", "one", "all", "stop", "hold"))
    try:
        if how == "one" and ranks: os.kill(chance.choice(ranks), signal.SIGKILL)
        elif how == "stop": os.kill(run.process.pid, signal.SIGTERM)
        elif how == "hold" and ranks:
            rank = chance.choice(ranks)
            os.kill(rank, signal.SIGSTOP)
            time.sleep(chance.random())
            os.kill(rank, signal.SIGCONT)
            return how
        else: run.kill()
    except ProcessLookupError: pass
    check(run.wait(60) is not None, f"ends within 60 s ({how})", run.tail())
    run.kill()
    return how


def train(seconds):
    chance, begin = random.Random(SEED), time.time()
    trial = Run("trial", 100)
    check(trial.wait(120) == 0, "100 steps", trial.tail())
    steps = max(200, int(100 / (time.time() - begin) * 0.4 * seconds))
    say(f"{steps} steps, calm: {TRAINER} {EVERYTHING}")
    begin = time.time()
    calm = Run("calm", steps)
    grows(calm)
    check(calm.wait(0) == 0, "the calm run", calm.tail())
    took = time.time() - begin
    skipped = len(calm.said("^step.*(?:: unusual|is not finite)$"))
    say(f"calm: {took:.0f} s, {skipped} steps skipped, weights {calm.said('^weights (.*)')}")
    check(skipped > 0, "steps are skipped", calm.tail())
    did, resumed, end = collections.Counter(), 0, time.time() + 10 * took + 120
    run = Run("upset", steps)
    while time.time() < end:
        code = run.wait(chance.uniform(0.2, 2) * max(1.5, took / 40))
        if code is None: did[upset(run, chance)] += 1
        if run.process.poll() is None: continue
        resumed += len(run.said("^resuming from step"))
        if code == 0 and run.said("^weights"): break
        check(code is None, "ends by itself", run.tail())
        if sum(did.values()) % 20 == 0: say(f"upset: {dict(did)}, {run.said('^step *([0-9]+)')[-1:]}")
        run = Run("upset", steps, "-y", "1")
    run.kill()
    say(f"upset: {dict(did)}, {resumed} times resumed, weights {run.said('^weights (.*)')}")
    check(resumed > 0 and did, "resumed")
    check(calm.said("^weights .*") and calm.said("^weights .*") == run.said("^weights .*"), "the calm run's weights", run.tail())
    log = [[line.split(" t:")[0] for line in open(r.out + "/main.log")] for r in (calm, run)]
    check(log[0] == log[1], "the calm run's log", f"{len(log[0])} and {len(log[1])} lines")
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


BEGIN = time.time()
os.makedirs(WORK, exist_ok=True)
for old in os.listdir(WORK):
    if os.path.isdir(f"{WORK}/{old}"): shutil.rmtree(f"{WORK}/{old}")
SAMPLES = {"fuzz_ds_config": sorted(glob.glob("tests/ds_config/*.json")), "fuzz_machine": ["adapters/plan/card.txt"]}
counts = collections.Counter(json.load(open(WORK + "/counts.json")) if os.path.exists(WORK + "/counts.json") else {})
say(f"SEED={SEED}, {SECONDS / 60:.0f} minutes")
beside = threading.Thread(target=kill_and_fuzz, args=(BEGIN + SECONDS,))
beside.start()
train(SECONDS)
beside.join()
print(f"{result[True]} passed, {result[False]} failed")
sys.exit(result[False] > 0)
