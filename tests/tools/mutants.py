"""mutants.py BUILD - do the tests notice when one operator, constant or statement of the plugin is another?

Samples the rooms of the CPU version by SEED (1), room by room as long as it is, for BUDGET minutes (20), on JOBS
processors (1). The programs that include or link the unit and call the mutant's function (QUICK=N: N of them) run, those
first that will kill it soonest: that are quick, have killed before, in this room, or name the function. The first that
fails, crashes or lasts too long kills it: that is 30 s and twice what it took, PATIENCE times, or five times as much of
the processor, or 20 s in which no thread runs, where no mutant takes less right after. What fails without is left out.
Each has processes, /tmp and /dev/shm of its own, for a mutant may kill, unlink or leave behind anything: that needs root.
A mutant is `equal` if the compiler makes the same object of it at -O1, `broken` if it makes none. Programs are compiled
for BATCH mutants at a time, of each of which the mutant's function has a copy; the environment's MUTANT says which counts.
Those outside of functions are compiled one by one.
Results are lines of BUILD/mutants/results.csv, from where the next run goes on, where the source is the same; with AGAIN=1
those first that were alive. Another SEED adds its own: all are told, by the SEED that drew them, and their sum. tests/tools/mutants.txt has those that do what the original does, and why. PAUSE=FILE: waits while there is one.
BUILD/mutants/programs.json keeps what each program takes and calls, while sources and the batch are the same.
ONLY=REGEX: of functions alone whose text has it, such as ONLY='frozen|FROZEN'.
First, and with PROVE=1, the tool itself is tried: mutants whose fate is known.
Last line: N passed (killed), N failed (alive); succeeds if 90 % are killed."""
import collections, csv, functools, glob, hashlib, json, os, random, re, shutil, subprocess, sys, tempfile, threading, time

if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
    sys.exit(f"mutants.py: expected the build folder, found {' '.join(sys.argv[1:]) or 'nothing'}: make mutants")
SEED = os.environ.pop("SEED", "1")  # programs that sample by it run everything
JOBS, END = int(os.environ.get("JOBS", 1)), time.time() + 60 * float(os.environ.get("BUDGET", 20))
AGAIN, PAUSE = os.environ.get("AGAIN"), os.environ.get("PAUSE", "")
BATCH = int(os.environ.get("BATCH", 512))
ONLY = os.environ.get("ONLY", "")
STILL = 20  # seconds: no test waits that long with all of its threads
PATIENCE, QUICK = int(os.environ.get("PATIENCE", 1)), int(os.environ.get("QUICK", 999))
BASE = os.path.abspath(sys.argv[1]) + "/mutants"
RESULTS = BASE + "/results.csv"
COLUMNS = ["room", "line", "column", "old", "new", "fate", "by", "seconds", "text", "seed"]
PROGRAMS = {name: f"b/{name} {arguments}" for name, arguments in {  # those that are made quickly first: they link it
    "test_abi": "", "test_world": "", "test_trace": "", "test_ease": "", "test_scale": f"300 {SEED}", "test_run": "",
    "test_groups": "", "test_order": SEED, "test_lend": "", "test_model": f"200 {SEED}", "test_ease_checked": "",
    "test_hierarchy": f"24 {SEED} b", "test_order_checked": SEED, "test_lend_checked": "", "test_bits": f"12 {SEED}",
    "test_errors": "", "test_plans": "", "test_steps": "", "test_skips": "", "test_unit": "", "test_check": "", "test_group": "", "test_optimizers": "", "test_tensors": "b", "test_codec": f"{SEED} b",
    "test_rows": "", "test_rows_checked": "", "test_offload": f"8 {SEED} b", "test_faults": "", "test_transport": "", "test_fast_math": "",
    "test_scale_fast": f"300 {SEED}", "test_memory": "", "test_frozen": "b", "test_resize": "", "test_states": "", "test_split": "",
    "test_virtual": "", "test_suggest": "", "test_extra": ""}.items()}
MPI = {f"openmpi/test_mpi {ranks} {mode}": "mpirun.openmpi --oversubscribe --allow-run-as-root "
       f"-n {ranks} b/openmpi/test_mpi {mode}" for ranks, mode in (
           (4, "same 0 1 2"), (7, "same 0 1"), (4, "hierarchy 0 1 2"), (6, "hierarchy 0 2 3"), (3, "groups"),
           (5, "groups"), (4, "errors"), (2, "thread"), (2, "windows 0 1"), (2, "same 0 1"), (66, "many"))}
# A mutant is tried in the first of these builds whose object it changes: the object, flags, programs.
BUILDS = (("zero_plugin.o", "", PROGRAMS),
          ("checked.o", "-DZERO_CHECK=1", {k: v for k, v in PROGRAMS.items() if "check" in k}),
          ("test_offload_rings", "-DZERO_WITH_URING", {"test_offload_rings": f"b/test_offload_rings 8 {SEED} b"}),
          ("openmpi/zero_plugin.o", "-DZERO_WITH_MPI -I/usr/lib/x86_64-linux-gnu/openmpi/include", MPI))
# What must become of it: room, text, instead, fate, by. The last is outside of a function, and compiled alone.
PROOFS = (("api/life", "return ZERO_ABI;", "return ZERO_ABI + 1;", "killed", "test_abi: FAILED: this is ABI"),
          ("api/life", "return ZERO_ABI;", "for (;;) {}", "killed", "test_abi: (takes|lasts) more than "),
          ("api/life", "return ZERO_ABI;", "for (;;) sleep(9);", "killed", "test_abi: stands still"),
          ("api/life", "return ZERO_ABI;", "return ZERO_ABI ABI;", "broken", ""),
          ("machine/base", "return (double)t.tv_sec +", "return (double)(t.tv_sec) +", "equal", "$"),
          ("core/config", "ZP_STAGES - 1", "ZP_STAGES - 2", "killed", "test_"))
NEVER = {"offload/cpu_update", "offload/gpu_update", "extras/rows_kernels", "extras/rows_gpu"}  # work on a GPU alone
SWAPS = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "&&": "||", "||": "&&", "+": "-",
         "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "++": "--",
         "--": "++", "|": "&", "&": "|", "^": "|", "|=": "&=", "&=": "|=", "!": "", "~": ""}
TOKEN = re.compile(r"""(?P<skip>/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|^[ \t]*\#(?:\\\n|[^\n])*|\s+)
    |(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[uUlLfF]*)|(?P<word>[A-Za-z_]\w*)
    |(?P<sign><<=|>>=|->|\+\+|--|<<|>>|&&|\|\||[-+*/%&|^=!<>]=|.)""", re.S | re.M | re.X)
HEAD = re.compile(r"^([A-Za-z_][\w\s*]*?[\s*])(\w+)\(([^{};]*?)\)\s*\{", re.M)
# What programs of many mutants begin with; a function that has some says that it is called, in the file SEEN.
CHOICE = """#include <sys/syscall.h>
static int zp_mutant;
static unsigned char *zp_seen;
char *getenv(const char *);
int atoi(const char *);
long (syscall)(long, ...); // some programs have a macro of this name
__attribute__((constructor)) static void zp_mutant_read(void) {
    zp_mutant = getenv("MUTANT") ? atoi(getenv("MUTANT")) : 0;
    if (getenv("SEEN")) zp_seen = (unsigned char *)(syscall)(
        SYS_mmap, 0L, 4096L, 3L, 1L, (syscall)(SYS_open, getenv("SEEN"), 2L), 0L);
}
"""


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


@functools.cache
def compiled(flags):
    """The lines of rooms that a build compiles."""
    seen, at = set(), None
    command = ["cc", "-E", "-fopenmp", *flags.split(), "-x", "c", "zero_plugin.cu"]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.split("\n"):
        if line.startswith("# "):
            m = re.match(r'# (\d+) "zero_plugin/([\w/]+)\.h"', line)
            at = [m[2], int(m[1])] if m else None
        elif at:
            if line.strip(): seen.add(tuple(at))
            at[1] += 1
    return seen


def wanted(room, line, column):
    """Whether ONLY allows it."""
    _, function = place(room, line, column)
    return not ONLY or function is not None and re.search(ONLY, open(f"zero_plugin/{room}.h").read()[function[0]:function[2]])


def sample():
    """All mutants in the sample's order: of every room one, then rooms by turns, each as often as it is long."""
    lines, order = set().union(*(compiled(flags) for _, flags, _ in BUILDS)), []
    for room in sorted({room for room, _ in lines} - NEVER):
        text = open(f"zero_plugin/{room}.h").read().split("\n")
        rows = [dict(room=room, line=str(n), column=str(c), old=old, new=new, text=text[n - 1].strip())
                for n, c, old, new in mutants(room) if (room, n) in lines and wanted(room, n, c)]
        chance = random.Random(f"{SEED} {room}")
        chance.shuffle(rows)
        order += [((k + chance.random()) / len(rows) if k else 0, room, k, row) for k, row in enumerate(rows)]
    return [row for *_, row in sorted(order, key=lambda o: o[:3])]


def paused():
    """Whether somebody asked for quiet, which is over then."""
    waited = False
    while os.path.exists(PAUSE): waited = not time.sleep(5)
    return waited


@functools.cache
def functions(room):
    """Of each function of a room: where it begins, its body does, and it ends; head, name and call; None: it has none."""
    text, found = open(f"zero_plugin/{room}.h").read(), []
    for m in HEAD.finditer(text):
        end = text.index("\n", m.end())
        if not re.search(r"\}(\s*/\*.*\*/)?$", text[m.end():end]): end = text.index("\n}\n", m.end()) + 2
        names = [re.search(r"\(\*(\w+)\)|(\w+)(\[[^]]*\])*\s*$", x) for x in re.split(r",(?![^()]*\))", m[3])]
        call = None
        if all(names):
            call = "%%s(%s)" % ", ".join(n[1] or n[2] for n in names if n[0] != "void")
            call = call + "; return" if re.search(r"\bvoid\s+$", m[1]) else "return " + call
        found.append((m.start(), m.end(), end, m[0][:-1], m[2], call))
    return found


def place(room, line, column=1):
    """Where that is in the text of a room, and the function that it is in, or None."""
    text = open(f"zero_plugin/{room}.h").read()
    at = sum(len(x) + 1 for x in text.split("\n")[:int(line) - 1]) + int(column) - 1
    return at, next((f for f in functions(room) if f[0] <= at < f[2]), None)


def source(program):
    """The file of tests that a program is made of."""
    return glob.glob("tests/*/" + re.sub("_(checked|rings|fast)$", "", program.split()[0].split("/")[-1]) + ".c")[0]


@functools.cache
def digest(program, command):
    """Of all that what a program does depends on."""
    paths = [p for g in ("zero_plugin.*", "zero_plugin/*/*", "tests/*/*.h", "Makefile", source(program)) for p in sorted(glob.glob(g))]
    return hashlib.sha1(command.encode() + b"".join(open(p, "rb").read() for p in paths)).hexdigest()


def mentions(program, name):
    """Whether a program's source, or a header of the tests that it includes, has this name."""
    text = open(source(program)).read()
    for header in re.findall(r'#include "(?:\.\./shared/)?(\w+\.h)"', text):
        for path in glob.glob("tests/*/" + header): text += open(path).read()
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
    """A copy of the tree, and how it is compiled; another stays as it is: `clean`."""
    def __init__(self, tree, clean=None):
        self.tree, self.clean, self.lock, self.errors = tree, clean, threading.RLock(), ""
        if not os.path.isdir(tree):
            shutil.copytree(".", tree, ignore=lambda at, _: ["build", ".git"] if at == "." else [])
        for path in glob.glob("zero_plugin/*/*"):  # of a run that was ended; a batch's are woven, and written where they differ
            if not isinstance(self, Batch): self.write(path, open(path).read())

    def write(self, path, text):
        if open(f"{self.tree}/{path}").read() != text: open(f"{self.tree}/{path}", "w").write(text)

    def make(self, target):
        paused()
        mpi = target.startswith("openmpi/")
        p = subprocess.run(["make", "-s", "-o", "libraries", "OPT=-O1 -march=native -g0", "B=b" + "/openmpi" * mpi,
                            "MPICC=" + "mpicc.openmpi" * mpi, "WARN=-Werror=return-type", "b/" + target.split()[0]],
                           cwd=self.tree, capture_output=True, text=True)
        self.errors = p.stderr
        return not p.returncode

    def object(self, target):
        return open(f"{self.tree}/b/{target}", "rb").read()

    def run(self, command, limit, cpu="unlimited", mutant=0, seen=""):
        """How a program ends, '' if it passes; and seconds of the processor. One that was held up runs again."""
        inside = f"""mount -t tmpfs -o size=4g tmpfs /dev/shm; case $PWD in /tmp/*) ;; *) mount -t tmpfs -o size=4g tmpfs /tmp ;; esac
            echo 1000 >/proc/self/oom_score_adj; ulimit -c 0; ulimit -St {cpu}; ulimit -v 16777216; {seen} MUTANT={mutant} OMP_WAIT_POLICY=passive exec timeout -k 1 {limit:.0f} {command}"""
        while True:
            paused()
            with tempfile.TemporaryFile("w+", errors="replace") as text:
                p = subprocess.Popen(["setpriv", "--pdeathsig=KILL", "unshare", "-mpf", "--kill-child", "--mount-proc",
                                      "sh", "-c", inside], cwd=self.tree, stdout=text, stderr=text, stdin=subprocess.DEVNULL)
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
            if held or code in (126, 127): continue  # 127: it is being linked again
            failed = re.search(r"^FAILED: .*", said, re.M)
            if code == -9: return f"stands still for {STILL} s", used
            if code in (-14, 142): return "lasts until its alarm", used
            if code in (124, 137): return f"lasts more than {limit:.0f} s", used
            if code in (-24, 152): return f"takes more than {cpu} s", used
            return failed[0][:200] if failed else f"exit code {code}: " + " ".join(said[-100:].split()), used

    def kills(self, program, command, takes, mutant, clean):
        """Why a program of this tree fails, '' if it passes. Time counts if a clean copy does not take as much beside it."""
        limit, cpu = PATIENCE * (30 + 2 * takes[1]), int(4 + 5 * takes[2])
        while True:
            why, _ = self.run(command, limit, cpu, mutant)
            if not re.match("lasts|takes|stands", why) or not clean.run(command, limit, cpu)[0]: return why
            limit, cpu = 2 * limit, 2 * cpu

    def judge(self, row, kills, batch):
        room, line = row["room"], int(row["line"])
        name = (place(room, line)[1] or [""] * 5)[4] or "("
        for target, flags, programs in BUILDS:
            if (room, line) not in compiled(flags) or not batch.make(target): continue
            number, tried = row["number"], 0  # 0: outside of functions, or it does not compile
            if not number and not self.make(target): return "broken", ""
            if not number and self.object(target) == self.clean.known(target): continue
            cost = {p: self.clean.cost(p, not number) or 5 + 3 * i for i, p in enumerate(programs)}
            chance = {p: 1 + 4 * kills[room, p] + kills[p] + 8 * mentions(p, name) for p in programs}
            for p in sorted(programs, key=lambda p: cost[p] / chance[p]):
                if time.time() > END: return "", ""
                if tried == QUICK: return "alive", f"{tried} programs passed, no more were tried"
                if tried == 6 and number and self.make(target) and self.object(target) == self.clean.known(target): break
                if not self.clean.calls(p, programs[p], number, batch): continue
                takes, tried = self.clean.programs[p]["takes"], tried + 1
                tree = batch if number else self
                why = tree.kills(p, programs[p], takes, number, batch) if tree.make(p) else "not built"
                if why: return "broken" if why == "not built" else "killed", f"{p}: {why}"
            if number and not row["number"]: return self.judge(row, kills, batch)  # it was taken out meanwhile
            if number and not self.make(target): return "broken", ""
            if self.object(target) != self.clean.known(target): return "alive", "" if tried else "no program runs it"
        return "equal", ""

    def test(self, row, kills, batch):
        path, begin = f"zero_plugin/{row['room']}.h", time.time()
        text, at = open(path).read(), place(row["room"], row["line"], row["column"])[0]
        assert text.startswith(row["old"], at), row
        self.write(path, text[:at] + row["new"] + text[at + len(row["old"]):])
        row["fate"], row["by"] = self.judge(row, kills, batch)
        self.write(path, text)
        row["seconds"] = f"{time.time() - begin:.0f}"


class Clean(Lab):
    """The tree as it is, and what is known of it."""
    def __init__(self, tree):
        super().__init__(tree)
        self.objects, self.kept, self.measuring = {}, f"{BASE}/programs.json", collections.defaultdict(threading.Lock)
        self.programs = json.load(open(self.kept)) if os.path.exists(self.kept) else {}

    def known(self, target):
        """An object; None: it does not compile."""
        with self.lock:
            if target not in self.objects: self.objects[target] = self.object(target) if self.make(target) else None
            return self.objects[target]

    def cost(self, program, build):
        takes = self.programs.get(program, {}).get("takes")
        return takes and 0.3 + takes[1] / 20 + takes[2] + build * takes[0]  # of the processor: others wait beside

    def measure(self, program, command, batch, now):
        if self.programs.get(program, {}).get("digest") == now: return  # by another thread
        begin, path = time.time(), "{}/seen-{}".format(batch.tree, re.sub(r"\W", "-", program))
        built = batch.make(program)
        ready = time.time()
        open(path, "wb").write(bytes(4096))
        why, used = batch.run(command, 3600, 240, seen="SEEN=" + path) if built else ("not built", 0)
        takes = None if why else [ready - begin, time.time() - ready, used]
        seen = [batch.marks[k] for k, called in enumerate(open(path, "rb").read()) if called]
        with self.lock:
            self.programs[program] = dict(digest=now, takes=takes, seen=seen)
            json.dump({p: k for p, k in self.programs.items() if k["takes"]}, open(self.kept, "w"))
        print(f"    {program}: {time.time() - begin:.1f} s{why and ', left out: '}{why}", flush=True)

    def calls(self, program, command, number, batch):
        """Whether a program calls a mutant's function, or may use what is outside of functions; those that fail call none."""
        now = digest(program, command) + batch.digest
        if self.programs.get(program, {}).get("digest") != now:
            with self.measuring[program]: self.measure(program, command, batch, now)
        known = self.programs[program]
        return bool(known["takes"]) and (not number or batch.mark(batch.rows[number - 1]) in known["seen"])


class Batch(Lab):
    """A tree whose programs have many mutants: of each a copy of its function, and the environment's MUTANT chooses."""
    def take(self, rows):
        self.proofs = [dict(room=room, old=old, new=new, line=text.count("\n", 0, text.index(old)) + 1,
                            column=text.index(old) - text.rfind("\n", 0, text.index(old)))
                       for room, old, new, *_ in PROOFS for text in [open(f"zero_plugin/{room}.h").read()]]
        self.rows = self.proofs + rows
        which = hashlib.sha1(repr([[row[k] for k in ("room", "line", "column", "new")] for row in self.rows]).encode()).hexdigest()
        self.kept = f"{self.tree}/broken-{which}.json"  # or the next run would compile all again without them
        self.broken = set(json.load(open(self.kept))) if os.path.exists(self.kept) else set()
        for number, row in enumerate(self.rows, 1): row["number"] = number * (number not in self.broken)
        self.marks = sorted({self.mark(row) for row in self.rows})
        self.digest = hashlib.sha1(" ".join(self.marks).encode()).hexdigest()
        self.weave()

    def mark(self, row):
        """What a mutant's function is called."""
        return "{}.{}".format(row["room"], (place(row["room"], row["line"], row["column"])[1] or [""] * 5)[4])

    def weave(self):
        self.built = {}
        self.write("zero_plugin.cu", CHOICE + open("zero_plugin.cu").read())
        for path in glob.glob("zero_plugin/*/*.h"):
            room, text = path[len("zero_plugin/"):-2], open(path).read()
            original, mine = text, [r for r in self.rows if r["room"] == room and r["number"]]
            for row in mine:
                at, function = place(room, row["line"], row["column"])
                if not function or at < function[1] or not function[5]: row["number"] = 0
            for begin, body, end, head, name, call in reversed(functions(room)):
                copies = choice = ""
                for row in (r for r in mine if r["number"]):
                    copy, at = f"{name}__{row['number']}", place(room, row["line"], row["column"])[0]
                    if not body <= at < end: continue
                    mark = f'\n#line 1 "mutant-{row["number"]}"\n'
                    copies += mark + re.sub(r"\b%s(?=\()" % name, copy, head, count=1) + "{" + original[body:at]
                    copies += row["new"] + original[at + len(row["old"]):end]
                    choice += mark + f"if (zp_mutant == {row['number']}) {{ {call % copy}; }}"
                if copies:
                    line = original.count("\n", 0, body) + 1
                    k = self.marks.index(f"{room}.{name}")
                    choice = f"if (zp_seen && !zp_seen[{k}]) zp_seen[{k}] = 1;" + choice
                    text = text[:begin] + f'{head};{copies}\n{head}{{{choice}\n#line {line} "{path}"\n' + text[body:]
            self.write(path, text)

    def make(self, target):
        if target in self.built: return self.built[target]  # others may be compiling
        with self.lock:
            while target not in self.built:
                done = super().make(target)
                # One that is cut off makes errors everywhere behind it: then the first that is known counts alone.
                wrong = re.findall(r"^(?:mutant-(\d+):|\S+: (?=error)).*error", self.errors, re.M)
                wrong = {int(n) for n in wrong[:wrong.index("") if "" in wrong else None] or [n for n in wrong if n][:1]}
                if done or not wrong: self.built[target] = done
                else:
                    self.broken |= wrong
                    json.dump(sorted(self.broken), open(self.kept, "w"))
                    for row in self.rows: row["number"] *= row["number"] not in wrong
                    self.weave()
            return self.built[target]


def proven(lab, batch):
    """Whether the mutants of PROOFS have the fate that they must have."""
    ok = True
    for row, (*_, fate, by) in zip(batch.proofs, PROOFS):
        lab.test(row, collections.Counter(), batch)
        right = row["fate"] == fate and re.match(by, row["by"])
        print("{}: {room}.h: {old!r} -> {new!r}: {fate} {by} ({seconds} s)".format("as it must" if right else "WRONG", **row), flush=True)
        ok = ok and right
    return ok


def told(results):
    """What became of mutants, of each its fate and by what."""
    count, ways = collections.Counter(f for f, _ in results), collections.Counter(
        "crash" if ": exit" in by else "check" if ": FAILED" in by else "time" for f, by in results if f == "killed")
    rest = count["killed"] + count["alive"]
    return (f"{len(results)} mutants: {count['broken']} do not compile, {count['equal']} are the same to the compiler, "
            f"{count['known']} to a reader; of the other {rest} {100 * count['killed'] / max(rest, 1):.1f} % are killed, "
            f"by a check {ways['check']}, a crash {ways['crash']}, time {ways['time']}")


def main():
    key = lambda r: tuple(r[k] for k in ("room", "text", "column", "old", "new"))
    every, lock = sample(), threading.Lock()
    past = {key(r): {"seed": "", **r} for r in csv.DictReader(open(RESULTS))} if os.path.exists(RESULTS) else {}
    past = {k: past[k] for k in map(key, every) if k in past}
    line = lambda words: [" ".join(x.split()) for x in words]  # a mutant may have several
    same = [line(x.split(" | ")[:4]) for x in open("tests/tools/mutants.txt").read().split("\n")]
    fate = lambda r: "known" if r["fate"] == "alive" and line(r[k] for k in ("room", "old", "new", "text")) in same else r["fate"]
    order = {key(r): i for i, r in enumerate(sorted(every, key=lambda r: key(r) not in past))}
    print(f"SEED={SEED}: {len(every)} mutants of {len({r['room'] for r in every})} rooms, {len(past)} tried")
    kills = collections.Counter()
    for r in past.values(): kills.update([(r["room"], r["by"].split(":")[0]), r["by"].split(":")[0]])
    # Trees are those of the last run if the sources are.
    sources = [p for g in ("zero_plugin*", "zero_plugin/*/*", "tests/*/*.[ch]", "Makefile") for p in sorted(glob.glob(g))]
    text = b"".join(open(p, "rb").read() for p in sources if os.path.isfile(p))
    trees = f"{BASE}/trees-{hashlib.sha1(text).hexdigest()[:12]}"
    for old in glob.glob(BASE + "/trees-*"):
        if not old.startswith(trees): shutil.rmtree(old, ignore_errors=True)
    clean = Clean(trees + "/clean")
    labs, batch = [Lab(f"{trees}/{j}", clean) for j in range(JOBS)], Batch(trees + "/batch", clean)
    prove = not past or os.environ.get("PROVE")

    def work(lab):
        while time.time() < END:
            with lock: row = next(queue, None)
            if not row: return
            lab.test(row, kills, batch)
            if not row["fate"]: return  # the budget ended first
            with lock, open(RESULTS, "a") as f:
                kills.update([(row["room"], row["by"].split(":")[0]), row["by"].split(":")[0]])
                past[key(row)] = dict(row, seed=past.get(key(row), {}).get("seed") or SEED)
                out = csv.DictWriter(f, COLUMNS, extrasaction="ignore")
                if not f.tell(): out.writeheader()
                out.writerow(past[key(row)])
                print("{room}.h:{line}:{column}: {old!r} -> {new!r}: {fate} {by} ({seconds} s)".format(**row), flush=True)

    turn = lambda r: not AGAIN or key(r) not in past
    left = {key(r) for r in every if key(r) not in past or AGAIN and fate(past[key(r)]) == "alive"}
    for first in range(0, len(every), BATCH):
        rows = [r for r in every if first <= order[key(r)] < first + BATCH]  # the same ones every time: what is compiled stays
        mine = sorted((r for r in rows if key(r) in left), key=turn)
        if not mine and not prove or time.time() > END: continue
        batch.take(rows)
        if prove and not proven(labs[0], batch): return 1
        prove = False
        queue = iter(mine)
        threads = [threading.Thread(target=work, args=(lab,)) for lab in labs]
        for t in threads: t.start()
        for t in threads: t.join()
    for seed in sorted({r["seed"] for r in past.values()}):
        print(f"SEED={seed}: {told([(fate(r), r['by']) for r in past.values() if r['seed'] == seed])}")
    count = collections.Counter(fate(r) for r in past.values())
    for r in past.values():
        if fate(r) == "alive": print("alive: {room}.h:{line}:{column}: {old!r} -> {new!r} {by}\n    {text}".format(**r))
    print(told([(fate(r), r["by"]) for r in past.values()]))
    print(f"{count['killed']} passed, {count['alive']} failed")
    return count["killed"] < 0.9 * (count["killed"] + count["alive"])


if __name__ == "__main__": sys.exit(main())
