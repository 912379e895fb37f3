"""mutants.py BUILD - do the tests notice when one operator, constant or statement of the plugin is another?

Samples the rooms of the CPU version by SEED (1), room by room as long as it is, for BUDGET minutes (20), on JOBS
processors (1). A mutant is compiled at -O1 in a copy of the tree. It is `equal` if the compiler makes the same object
of it, `broken` if it makes none. Then the programs that include or link the unit run (QUICK=N: N of them), those first
that are quick, have killed in this room before, or name the function. The first that fails, crashes or lasts too long
kills it: that is 60 s and twice what it took, PATIENCE times, while a clean copy passes beside it, or five times as much
of the processor, or 20 s in which no thread runs. What fails in a clean copy is left out. Each has processes, /tmp and
/dev/shm of its own, for a mutant may kill, unlink or leave behind anything: that needs root.
Results are lines of BUILD/mutants/results.csv, from where the next run goes on; AGAIN=1 tries those once more that
were alive. tests/mutants.txt has those that do what the original does, and why. PAUSE=FILE: waits while there is one.
First, and with PROVE=1, the tool itself is tried: mutants whose fate is known.
Last line: N passed (killed), N failed (alive); succeeds if 90 % are killed."""
import collections, csv, glob, hashlib, json, os, random, re, shutil, subprocess, sys, tempfile, threading, time

SEED = os.environ.get("SEED", "1")
JOBS, END = int(os.environ.get("JOBS", 1)), time.time() + 60 * float(os.environ.get("BUDGET", 20))
AGAIN, PAUSE = os.environ.get("AGAIN"), os.environ.get("PAUSE", "")
STILL = 20  # seconds: no test waits that long with all of its threads
PATIENCE, QUICK = int(os.environ.get("PATIENCE", 1)), int(os.environ.get("QUICK", 999))
BASE = os.path.abspath(sys.argv[1]) + "/mutants"
RESULTS = BASE + "/results.csv"
COLUMNS = ["room", "line", "column", "old", "new", "fate", "by", "seconds", "text"]
PROGRAMS = {name: f"b/{name} {arguments}" for name, arguments in {  # those that are quick first
    "test_abi": "", "test_check": "", "test_group": "", "test_world": "", "test_trace": "", "test_ease": "",
    "test_scale": f"300 {SEED}", "test_lend": "", "test_unit": "", "test_optimizers": "", "test_model": f"200 {SEED}",
    "test_run": "", "test_groups": "", "test_hierarchy": f"24 {SEED} b", "test_offload": f"8 {SEED} b",
    "test_codec": f"{SEED} b", "test_tensors": "b", "test_faults": "", "test_transport": "", "test_ease_checked": "",
    "test_lend_checked": "", "test_bits": f"12 {SEED}", "test_fast_math": "", "test_scale_fast": f"300 {SEED}",
    "test_memory": ""}.items()}
MPI = {f"openmpi/test_mpi {ranks} {mode}": "mpirun.openmpi --oversubscribe --allow-run-as-root "
       f"-n {ranks} b/openmpi/test_mpi {mode}" for ranks, mode in (
           (4, "same 0 1 2"), (7, "same 0 1"), (4, "hierarchy 0 1 2"), (6, "hierarchy 0 2 3"), (3, "groups"),
           (5, "groups"), (4, "errors"), (2, "thread"), (2, "windows 0 1"), (2, "same 0 1"))}
# A mutant is tried in the first of these builds whose object it changes: the object, flags, programs.
BUILDS = (("zero_plugin.o", "", PROGRAMS),
          ("checked.o", "-DZERO_CHECK=1", {k: v for k, v in PROGRAMS.items() if "check" in k}),
          ("test_offload_rings", "-DZERO_WITH_URING", {"test_offload_rings": f"b/test_offload_rings 8 {SEED} b"}),
          ("openmpi/zero_plugin.o", "-DZERO_WITH_MPI -I/usr/lib/x86_64-linux-gnu/openmpi/include", MPI))
# What must become of it: room, text, instead, fate, by.
PROOFS = (("api", "/* api.h", "/* mutant: api.h", "equal", "$"),
          ("api", "return ZERO_ABI;", "return ZERO_ABI ABI;", "broken", "$"),
          ("api", "return ZERO_ABI;", "return ZERO_ABI + 1;", "killed", "test_abi: FAILED: this is ABI"),
          ("api", "return ZERO_ABI;", "for (;;) {}", "killed", "test_abi: (takes|lasts) more than "),
          ("api", "return ZERO_ABI;", "for (;;) sleep(9);", "killed", "test_abi: stands still"))
NEVER = {"host", "through"}  # work beside a GPU alone
SWAPS = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "&&": "||", "||": "&&", "+": "-",
         "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "++": "--",
         "--": "++", "|": "&", "&": "|", "^": "|", "|=": "&=", "&=": "|=", "!": "", "~": ""}
TOKEN = re.compile(r"""(?P<skip>/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|^[ \t]*\#(?:\\\n|[^\n])*|\s+)
    |(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[uUlLfF]*)|(?P<word>[A-Za-z_]\w*)
    |(?P<sign><<=|>>=|->|\+\+|--|<<|>>|&&|\|\||[-+*/%&|^=!<>]=|.)""", re.S | re.M | re.X)


def mutants(room):
    """(line, column, old, new) of all that can be changed in a room; what is no C is found by compiling."""
    text = open(f"zero_plugin/{room}.h").read()
    tokens = [m for m in TOKEN.finditer(text) if m.lastgroup != "skip"]
    word = [m.group() for m in tokens] + [";"] * 2
    for i, m in enumerate(tokens):
        old, new, whole = word[i], [], re.match(r"(\d+)([uUlL]*)$", word[i])
        if whole: new = [str(int(whole[1]) + 1) + whole[2]] + (["0" + whole[2]] if whole[1] == "1" else [])
        elif m.lastgroup == "number" and "x" not in old: new = [f"({old} * 2)" if float(old.rstrip("fF")) else "1.0f"]
        elif old in ("!", "~", "++", "--") or old in SWAPS and text[m.end()].isspace(): new = [SWAPS[old]]
        elif m.lastgroup == "word" and old != "for" and word[i - 1] in (";", "{", "}", ")", "else") and (
                old in ("continue", "break", "return")
                or word[i + 1] in ("(", "=", "[", ".", "->", "+=", "-=", "|=", "&=", "++", "--")):
            end = next(k for k in range(i, len(word)) if word[k] in "{};")
            if end < len(tokens) and word[end] == ";": old, new = text[m.start():tokens[end].start()], ["(void)0"]
        for each in new:
            yield text.count("\n", 0, m.start()) + 1, m.start() - text.rfind("\n", 0, m.start()), old, each


def compiled(flags):
    """The lines of rooms that a build compiles."""
    seen, at = set(), None
    command = ["cc", "-E", "-fopenmp", *flags.split(), "-x", "c", "zero_plugin.cu"]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.split("\n"):
        if line.startswith("# "):
            m = re.match(r'# (\d+) "zero_plugin/(\w+)\.h"', line)
            at = [m[2], int(m[1])] if m else None
        elif at:
            if line.strip(): seen.add(tuple(at))
            at[1] += 1
    return seen


def sample():
    """All mutants in the sample's order: of every room one, then rooms by turns, each as often as it is long."""
    lines, order = set().union(*(compiled(flags) for _, flags, _ in BUILDS)), []
    for room in sorted({room for room, _ in lines} - NEVER):
        text = open(f"zero_plugin/{room}.h").read().split("\n")
        rows = [dict(room=room, line=str(n), column=str(c), old=old, new=new, text=text[n - 1].strip())
                for n, c, old, new in mutants(room) if (room, n) in lines]
        chance = random.Random(f"{SEED} {room}")
        chance.shuffle(rows)
        order += [((k + chance.random()) / len(rows) if k else 0, room, k, row) for k, row in enumerate(rows)]
    return [row for *_, row in sorted(order, key=lambda o: o[:3])]


def paused():
    """Whether somebody asked for quiet, which is over then."""
    waited = False
    while os.path.exists(PAUSE): waited = not time.sleep(5)
    return waited


def function(room, line):
    """The function that a line of a room is in."""
    lines = open(f"zero_plugin/{room}.h").read().split("\n")[:line]
    return next((m[1] for x in reversed(lines) if (m := re.match(r"[a-zA-Z][^;=]*?(\w+)\(", x))), "(")


def mentions(program, name):
    """Whether a program's source, or a header of the tests that it includes, has this name."""
    path = "tests/" + re.sub("_(checked|rings|fast)$", "", program.split()[0].split("/")[-1]) + ".c"
    text = open(path).read() if os.path.exists(path) else ""
    for header in re.findall('#include "(\w+.h)"', text):
        if os.path.exists("tests/" + header): text += open("tests/" + header).read()
    return re.search(r"\b%s\b" % re.escape(name), text) is not None


def asleep(root):
    """Ticks of the processor that the processes below one took; None: one of their threads runs, or wants to."""
    below, parents, ticks = {root}, {}, 0
    for path in glob.glob("/proc/[0-9]*/stat"):
        try: parents[int(path.split("/")[2])] = int(open(path).read().rsplit(")", 1)[1].split()[1])
        except OSError: pass
    for _ in range(8): below |= {p for p, parent in parents.items() if parent in below}
    for p in below:
        for path in glob.glob(f"/proc/{p}/task/*/stat"):
            try: state = open(path).read().rsplit(")", 1)[1].split()
            except OSError: continue
            if state[0] not in "SZ": return None
            ticks += int(state[11]) + int(state[12])
    return ticks


class Lab:
    """A copy of the tree, for one processor, and another that stays as it is, for all: `clean`."""
    def __init__(self, tree, clean=None):
        self.tree, self.clean, self.lock, self.objects, self.takes = tree, clean, threading.Lock(), {}, {}
        if not os.path.isdir(tree):
            shutil.copytree(".", tree, ignore=lambda at, _: ["build", ".git"] if at == "." else [])
        for room in glob.glob("zero_plugin/*"):  # of a run that was ended
            if open(room).read() != open(f"{tree}/{room}").read(): shutil.copy(room, f"{tree}/{room}")
        if not clean:
            self.times = tree[:-len("/clean")] + ".json"
            if os.path.exists(self.times): self.takes = json.load(open(self.times))

    def make(self, target):
        mpi = target.startswith("openmpi/")
        return not subprocess.run(["make", "-s", "-o", "libraries", "B=b" + "/openmpi" * mpi, "OPT=-O1 -march=native -g0",
                                   "MPICC=" + "mpicc.openmpi" * mpi, "WARN=-w -Werror=return-type",
                                   "b/" + target.split()[0]], cwd=self.tree, capture_output=True).returncode

    def object(self, target):
        return open(f"{self.tree}/b/{target}", "rb").read()

    def run(self, command, limit, cpu="unlimited"):
        """How a program ends, '' if it passes; and seconds of the processor. One that was held up runs again."""
        inside = f"""mount -t tmpfs tmpfs /dev/shm; case $PWD in /tmp/*) ;; *) mount -t tmpfs tmpfs /tmp ;; esac
            ulimit -c 0 -t {cpu}; OMP_WAIT_POLICY=passive exec timeout -k 1 {limit:.0f} {command}"""
        while True:
            paused()
            with tempfile.TemporaryFile("w+", errors="replace") as text:
                p = subprocess.Popen(["unshare", "-mpf", "--kill-child", "--mount-proc", "sh", "-c", inside],
                                     cwd=self.tree, stdout=text, stderr=text, stdin=subprocess.DEVNULL)
                ended, held, still, ticks, looked = 0, False, time.time(), None, 0
                while not ended:
                    held = held or os.path.exists(PAUSE)
                    time.sleep(0.05)
                    if time.time() > looked + 1:
                        looked, before, ticks = time.time(), ticks, asleep(p.pid)
                        if ticks is None or before is None or ticks > before + 1: still = looked
                        if looked > still + STILL: p.kill()
                    ended, status, used = os.wait4(p.pid, os.WNOHANG)
                p.returncode = code = os.waitstatus_to_exitcode(status)
                text.seek(0)
                said = text.read()
            used = used.ru_utime + used.ru_stime
            if code == 0 and re.search(r"^\d+ passed, 0 failed", said, re.M): return "", used
            if held: continue
            failed = re.search(r"^FAILED: .*", said, re.M)
            if code == -9: return f"stands still for {STILL} s", used
            if code in (124, 137): return f"lasts more than {limit:.0f} s", used
            if code in (-24, 152): return f"takes more than {cpu} s", used
            return failed[0][:200] if failed else f"exit code {code}: " + " ".join(said[-100:].split()), used

    def known(self, target, program=None, command=None):
        """Of the clean tree: an object, or seconds to build and run a program, and of the processor; None: it fails."""
        with self.lock:
            if not program:
                if target not in self.objects: self.objects[target] = self.object(target) if self.make(target) else None
                return self.objects[target]
            if program not in self.takes:
                begin = time.time()
                built = self.make(program)
                ready = time.time()
                why, used = self.run(command, 240 * PATIENCE) if built else ("not built", 0)
                self.takes[program] = None if why else [ready - begin, time.time() - ready, used]
                json.dump({p: t for p, t in self.takes.items() if t}, open(self.times, "w"))
                print(f"    {program}: {time.time() - begin:.1f} s{why and ', left out: '}{why}", flush=True)
            return self.takes[program]

    def kills(self, program, command, takes):
        """Why a program of this tree fails, '' if it passes. Lasting long counts if a clean copy does not beside it."""
        limit = PATIENCE * (60 + 2 * takes[1])
        while True:
            why, _ = self.run(command, limit, int(10 + 5 * takes[2]))
            if not why.startswith("lasts"): return why
            with self.clean.lock: slow = self.clean.make(program) and self.clean.run(command, limit)[0]
            if not slow: return why
            limit *= 2

    def judge(self, room, line, kills):
        name = function(room, line)
        for target, _, programs in BUILDS:
            if not self.clean.known(target): continue
            if not self.make(target): return "broken", ""
            if self.object(target) == self.clean.known(target): continue
            guess = {p: sum((self.clean.takes.get(p, [5 + i]) or [0])[:2]) for i, p in enumerate(programs)}
            for p in sorted(programs, key=lambda p: guess[p] / (1 + 4 * kills[room, p] + 8 * mentions(p, name)))[:QUICK]:
                if time.time() > END: return "", ""
                takes = self.clean.known(target, p, programs[p])
                if not takes: continue
                if not self.make(p): return "broken", p
                why = self.kills(p, programs[p], takes)
                if why: return "killed", f"{p}: {why}"
            return "alive", ""
        return "equal", ""

    def test(self, row, kills):
        path, begin = f"{self.tree}/zero_plugin/{row['room']}.h", time.time()
        text = open(path).read()
        at = sum(len(x) + 1 for x in text.split("\n")[:int(row["line"]) - 1]) + int(row["column"]) - 1
        assert text.startswith(row["old"], at), row
        open(path, "w").write(text[:at] + row["new"] + text[at + len(row["old"]):])
        row["fate"], row["by"] = self.judge(row["room"], int(row["line"]), kills)
        open(path, "w").write(text)
        row["seconds"] = f"{time.time() - begin:.0f}"


def proven(lab):
    """Whether the mutants of PROOFS have the fate that they must have."""
    ok = True
    for room, old, new, fate, by in PROOFS:
        text = open(f"zero_plugin/{room}.h").read()
        row = dict(room=room, old=old, new=new, line=text.count("\n", 0, text.index(old)) + 1,
                   column=text.index(old) - text.rfind("\n", 0, text.index(old)))
        lab.test(row, collections.Counter())
        right = row["fate"] == fate and re.match(by, row["by"])
        print("{}: {room}.h: {old!r} -> {new!r}: {fate} {by} ({seconds} s)".format("as it must" if right else "WRONG", **row), flush=True)
        ok = ok and right
    return ok


def main():
    key = lambda r: tuple(r[k] for k in ("room", "text", "column", "old", "new"))
    past = {key(r): r for r in csv.DictReader(open(RESULTS))} if os.path.exists(RESULTS) else {}
    same = [x.split(" | ")[:4] for x in open("tests/mutants.txt").read().split("\n")]
    fate = lambda r: "known" if r["fate"] == "alive" and [r[k] for k in ("room", "old", "new", "text")] in same else r["fate"]
    every, lock = sample(), threading.Lock()
    left = [r for r in every if (fate(past[key(r)]) == "alive" and AGAIN if key(r) in past else not AGAIN)]
    print(f"SEED={SEED}: {len(every)} mutants of {len({r['room'] for r in every})} rooms, {len(past)} tried")
    kills = collections.Counter((r["room"], r["by"].split(":")[0]) for r in past.values())
    # Trees, and what programs take, are those of the last run if the sources are.
    sources = [p for g in ("zero_plugin*", "zero_plugin/*", "tests/*.[ch]", "Makefile") for p in sorted(glob.glob(g))]
    text = b"".join(open(p, "rb").read() for p in sources if os.path.isfile(p))
    trees = f"{BASE}/trees-{hashlib.sha1(text).hexdigest()[:12]}"
    for old in glob.glob(BASE + "/trees-*"):
        if not old.startswith(trees): shutil.rmtree(old, ignore_errors=True)
    clean = Lab(trees + "/clean")
    labs = [Lab(f"{trees}/{j}", clean) for j in range(JOBS)]
    if (not past or os.environ.get("PROVE")) and not proven(labs[0]): return 1
    queue = iter(left)

    def work(lab):
        while time.time() < END:
            with lock: row = next(queue, None)
            if not row: return
            lab.test(row, kills)
            if not row["fate"]: return  # the budget ended first
            with lock, open(RESULTS, "a") as f:
                kills[row["room"], row["by"].split(":")[0]] += 1
                past[key(row)] = row
                out = csv.DictWriter(f, COLUMNS)
                if not f.tell(): out.writeheader()
                out.writerow(row)
                print("{room}.h:{line}:{column}: {old!r} -> {new!r}: {fate} {by} ({seconds} s)".format(**row), flush=True)

    threads = [threading.Thread(target=work, args=(lab,)) for lab in labs]
    for t in threads: t.start()
    for t in threads: t.join()
    count = collections.Counter(fate(r) for r in past.values())
    for r in past.values():
        if fate(r) == "alive": print("alive: {room}.h:{line}:{column}: {old!r} -> {new!r}\n    {text}".format(**r))
    rest = count["killed"] + count["alive"]
    print(f"{len(past)} mutants: {count['broken']} do not compile, {count['equal']} are the same to the compiler, "
          f"{count['known']} to a reader; of the other {rest} {100 * count['killed'] / max(rest, 1):.1f} % are killed")
    print(f"{count['killed']} passed, {count['alive']} failed")
    return count["killed"] < 0.9 * rest


if __name__ == "__main__": sys.exit(main())
