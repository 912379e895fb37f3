"""test_orders_removals.py BUILD [SAMPLE SEED] - does test_orders find each missing wait?

Removes every call that orders streams, threads or ranks from the plugin, one at a time, and runs
BUILD/test_orders without it (no file is changed: see ORDERS_GONE in machine.h), case by case, those
first that end soonest, of the cases of 2 and 4 ranks that reach the call; for lane.h, gate.h and
board.h BUILD/test_orders_lane. An error is expected. Calls without which no order fails are
listed in removals.txt, each with its reason, as
  FILE | LINE OF CODE | why
and must still be there, and not be found. SAMPLE N: every Nth call, SEED chooses the first.
Last line: N passed (found, or listed), N failed."""
import os, re, subprocess, sys

BUILD = sys.argv[1]
SAMPLE, SEED = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (1, 0)
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE)) + "/zero_plugin"
FOLDERS = ("core", "api", "offload", "extras", "machine", "comm")
LOCKS = ("machine/lane.h", "machine/gate.h", "comm/board.h")
GPU = ("offload_gpu.h", "gpu_update.h", "cpu_update.h", "rows_gpu.h")  # only next to a GPU
CALL = re.compile(r"\b(zp_device_(wait_event|record_event|sync_event|sync_stream|finish_stream)|zp_comm_barrier"
                  r"|zp_buffer_(hold|release|forget_all)|zp_lane_(record|wait|sync|wait_event)|zp_gate_pass)\(")
LOCK = re.compile(r"pthread_(mutex_(lock|unlock)|cond_(signal|broadcast)|join)\(|FUTEX_WAKE")


def calls():
    """(file, line, text) of all calls; buffers.h defines its functions before calls can be removed."""
    for folder in FOLDERS:
        for name in sorted(os.listdir(f"{ROOT}/{folder}")):
            locks = f"{folder}/{name}" in LOCKS
            if name in GPU or name == "buffers.h" or (folder in ("machine", "comm") and not locks): continue
            for number, line in enumerate(open(f"{ROOT}/{folder}/{name}"), 1):
                if (LOCK if locks else CALL).search(line) and not re.match(r"(ZP_UNUSED )?static |#define", line):
                    yield f"{folder}/{name}", number, line.strip()


def places():
    """{FILE:LINE: [case]}: the cases that reach a call, the quickest first."""
    out = subprocess.run([BUILD + "/test_orders", "places"], capture_output=True, text=True, check=True).stdout
    rows = sorted((float(row.split()[1]), row.split()[0], row.split()[2:]) for row in out.strip().split("\n"))
    found = {}
    for _, case, reached in rows:
        for place in reached if "-3x" not in case else (): found.setdefault(place, []).append(case)
    return found


def remove(program, place, cases):
    """(fate, errors) of a call; without cases the program runs all it has."""
    for case in cases or ([] if cases is not None else [None]):
        try:
            run = subprocess.run([BUILD + program, "remove", place] + [case] * bool(case), capture_output=True,
                                 text=True, errors="replace", timeout=600)
        except subprocess.TimeoutExpired:
            return "found", ["it does not end"]
        out, errors = run.stdout + run.stderr, re.findall(r"FAILED: (.*)", run.stdout + run.stderr)
        if run.returncode and "never reached" not in out and (errors or " failed" not in out):
            return "found", errors or [f"signal or exit {run.returncode}"]
    return ("not reached" if cases == [] else "not found"), []


def main():
    reasons, seen = {}, set()
    for line in open(HERE + "/removals.txt").read().split("\n"):
        if line.count(" | ") == 2:
            file, text, why = line.split(" | ")
            reasons[file, text] = why
    passed = failed = 0
    reached = places()
    for i, (file, number, text) in enumerate(calls()):
        if i % SAMPLE != SEED % SAMPLE:
            seen.add((file, text))
            continue
        place, lock = f"{file}:{number}", file in LOCKS
        fate, errors = remove("/test_orders_lane" if lock else "/test_orders", place,
                              None if lock else reached.get(place, []))
        why = reasons.get((file, text))
        seen.add((file, text))
        ok = (fate == "found") != (why is not None)
        detail = errors[0] if fate == "found" else why or "no reason is listed"
        print(f"{'ok  ' if ok else 'FAIL'} {file}:{number} {text}\n     {fate}: {detail}", flush=True)
        passed, failed = passed + ok, failed + (not ok)
    for file, text in reasons.keys() - seen:
        print(f"FAIL {file}: removals.txt lists a line that is not there: {text}")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
