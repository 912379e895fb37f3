#!/usr/bin/env python3
"""check_messages.py - each error message of the trainer, the tools and the plugin says what to do.

A message has the form `WHAT: what is wrong (value); what to do`. "expected VALUES, found VALUE" says what to do, too.
Messages of memory that is not there, of a pointer that is NULL, and of another function's sentence (%s) need no remedy.
Prints FILE:LINE and the message where the remedy is missing, or where a message of the trainer has no flag or file first.
`check_messages.py list` prints all messages. Last line: N passed, N failed.
"""
import glob
import re
import sys

# Functions and macros that take a message, and whether the caller adds the subject.
PLUGIN = {"ZP_REFUSE", "ZP_UNTIMELY", "ZP_GROUP_REFUSE"}
FLAGS = {"sentence_fail", "option_error", "tool_fail", "environment_wrong"}
WITH_SUBJECT = {"ck_fail", "model_refuse", "refuse", "require", "launch_require", "ds_fail"}
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|\s+|.', re.S)
FILES = ("adapters/options/*.c", "adapters/parallel/*.c", "adapters/plan/*.c", "adapters/page/page_input.c", "adapters/corpus/*.c", "adapters/ds_config/ds_config.c", "adapters/eval/*.c",
         "adapters/saves/*.c", "adapters/launch/environment.c", "adapters/checkpoint/*.c", "adapters/gpt2/frozen.c",
         "adapters/gpt2/experts.c", "train_gpt2_zero.cu", "zero_plugin/*/*.h")


def messages(text):
    """Yields (line, function, message) of each call: the call's first literal, joined."""
    calls, before, line = [], "", 1
    literal, at = None, 0
    for match in TOKEN.finditer(text):
        token = match.group()
        start, line = line, line + token.count("\n")
        if token.isspace() or token.startswith(("/*", "//")):
            continue
        if token.startswith('"'):
            if literal is None:
                literal, at = "", start
            literal += token[1:-1]
            continue
        if literal is not None and token.startswith("PRI"):
            literal += "d"
            continue
        if literal is not None and token.endswith("_FIX"):  # a macro with the remedy of several messages
            literal += "; "
            continue
        if token == "CHECKPOINT_DAMAGED" and calls:  # checkpoint_load adds the remedy
            calls[-1][0] = "damage"
        if literal is not None and calls and not calls[-1][1] and not re.fullmatch(r"--\w+", literal):
            calls[-1][1] = True
            yield at, calls[-1][0], literal
        literal = None
        if token == "(":
            calls.append([before, False])
        elif token == ")" and calls:
            calls.pop()
        before = token


def wrong(function, message):
    """Returns what a message lacks, or None."""
    if re.fullmatch(r"(-e|-ds|-pc|-hf|--machine|rank %d)?:? ?(%s)+", message) or "memory" in message or message == "%s":
        return None
    if re.search(r" is NULL$", message) or "cannot be written" in message or "no more threads" in message:
        return None
    if function in FLAGS and not re.match(r"(-|%|unknown flag|TYPE|OUT|FOLDER|MASTER|SLURM|neither|page:)", message):
        return "no flag, file or argument at the beginning"
    if re.search(r"; |expected|found '|allows |: use |: set |: leave |did you mean|: start |: (?:-y|-z|-en)", message):
        return None
    if re.search(r": %(\.\d+)?s$", message):
        return None
    return "no remedy"


BROKEN = (  # messages that are refused
    ("ZP_REFUSE", "tensor %s was announced before"), ("sentence_fail", "the batch does not divide; use another -b"),
    ("sentence_fail", "-sp 1: sequence parallelism needs tensor parallelism"), ("ZP_UNTIMELY", "unit %d: no pass has begun"))


def main():
    passed = failed = 0
    for function, message in BROKEN:
        passed, failed = passed + bool(wrong(function, message)), failed + (not wrong(function, message))
    names = PLUGIN | FLAGS | WITH_SUBJECT
    for path in sorted(p for pattern in FILES for p in glob.glob(pattern)):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for line, function, message in messages(text):
            if function not in names or not re.search("[a-z]{3}", message):
                continue
            if len(sys.argv) > 1:
                print(f"{path}:{line}: {message}")
            lack = wrong(function, message)
            passed, failed = passed + (lack is None), failed + (lack is not None)
            if lack:
                print(f"FAILED: {path}:{line}: {lack}: {message}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
