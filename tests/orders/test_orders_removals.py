"""test_orders_removals.py BUILD [SAMPLE SEED] - does test_orders find each missing wait?

Removes every call that orders streams, threads or ranks from the plugin, one at a time, and runs
BUILD/test_orders without it (no file is changed: see ORDERS_GONE in machine.h); for lane.h, gate.h
and board.h BUILD/test_orders_lane. An error is expected. Calls without which no order fails are
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


def main():
    reasons = {}
    for line in open(HERE + "/removals.txt").read().split("\n"):
        if line.count(" | ") == 2:
            file, text, why = line.split(" | ")
            reasons[file, text] = why
    passed = failed = 0
    for i, (file, number, text) in enumerate(calls()):
        if i % SAMPLE != SEED % SAMPLE:
            reasons.pop((file, text), None)
            continue
        try:
            program = "/test_orders_lane" if file in LOCKS else "/test_orders"
            run = subprocess.run([BUILD + program, "remove", f"{file}:{number}"], capture_output=True,
                                 text=True, errors="replace", timeout=600)
            out, code = run.stdout + run.stderr, run.returncode
        except subprocess.TimeoutExpired:
            out, code = "FAILED: it does not end", 1
        errors = re.findall(r"FAILED: (.*)", out)
        fate = "not reached" if "never reached" in out else "not found" if code == 0 else "found"
        why = reasons.pop((file, text), None)
        ok = (fate == "found") != (why is not None)
        detail = (errors or [f"signal or exit {code}"])[0] if fate == "found" else why or "no reason is listed"
        print(f"{'ok  ' if ok else 'FAIL'} {file}:{number} {text}\n     {fate}: {detail}", flush=True)
        passed, failed = passed + ok, failed + (not ok)
    for file, text in reasons:
        print(f"FAIL {file}: removals.txt lists a line that is not there: {text}")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
