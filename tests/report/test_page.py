"""test_page.py BUILD SCRATCH - the page of a run, read back: every number that it shows, as text, as a
bar, as a line or as a slice, is the one of the log, CSV or trace that it is made of. What is wrong in
those is told in one line. Last line: N passed, N failed."""

import csv
import html.parser
import json
import math
import os
import random
import re
import subprocess
import sys

build, scratch = sys.argv[1:3]
program = os.path.join(build, "page")
passed = failed = 0


def check(ok, words):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAILED:", words)


class Page(html.parser.HTMLParser):
    """Tables by id, and figures by id: a list of (tag, attributes, title)."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.figures, self.rows, self.figure = {}, {}, None, None
        self.inside, self.words, self.open = None, "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag == "table":
            self.rows = self.tables[a["id"]] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.inside, self.words = tag, ""
        elif tag == "svg":
            self.figure = self.figures[a["id"]] = []
        elif self.figure is not None and tag == "title":
            self.inside, self.words = tag, ""
        elif self.figure is not None:
            self.figure.append([tag, a, ""])

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        if tag == "svg":
            self.figure = None
        if tag != self.inside:
            return
        if tag == "title":
            if self.figure:
                self.figure[-1][2] = self.words
        else:
            self.rows[-1].append(self.words)
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.words += data


def put(name, text):
    path = os.path.join(scratch, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def run(*arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def make(**files):
    out = os.path.join(scratch, "report.html")
    arguments = [word for flag, path in files.items() for word in ("--" + flag, path)]
    done = run("--out", out, *arguments)
    check(done.returncode == 0, f"page {arguments}: {done.stderr}")
    with open(out) as file:
        text = file.read()
    return Page(text), text


# ---- sources ----
random.seed(int(os.environ.get("SEED", "1")))
HEAD = ("stage,ranks,tokens_per_s,ratio,param_bytes,grad_bytes,optimizer_bytes,buffer_bytes,formula_bytes,sent_bytes,"
        "formula_sent_bytes,exposed_ms,loss,weights,ratio_low,ratio_high")


def a_csv():
    rows = [HEAD]
    for stage in range(4):
        n = [random.randrange(1, 1 << 40) for _ in range(7)]
        ratio = random.uniform(0.5, 2)
        rows.append(f"{stage},{random.randrange(1, 99)},{random.uniform(1, 1e6):.1f},{ratio:.4f},{n[0]},{n[1]},{n[2]},{n[3]},"
                    f"{n[4]},{n[5]},{n[6]},{random.uniform(0, 99):.3f},{random.uniform(1, 9):.6f},{random.getrandbits(64):016x},"
                    f"{ratio * 0.9:.4f},{ratio * 1.1:.4f}")
    return "\n".join(rows) + "\n"


def a_log(steps):
    lines = []
    for step in range(steps):
        lines.append(f"s:{step} trl:{10 / (1 + step) + random.random():.4f} lr:0.001000 norm:{random.uniform(0.1, 30):.2f} "
                     f"t:1795361368.867 ms:{random.uniform(1, 99):.3f} tps:{random.uniform(1, 99999):.0f} mib:{random.uniform(1, 99):.1f}")
        if step % 7 == 0:
            lines.append(f"s:{step} tel:{random.uniform(1, 9):.4f} t:1795361368.9")
        if step % 20 == 0:
            lines.append(f"s:{step} eval:{random.random():.4f} t:1795361368.9")
    return "\n".join(lines) + "\n"


def a_trace(steps, ranks):
    events = []
    for rank in range(ranks):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        for tid, name in enumerate(["compute", "gradients", "<host> & \"file\""]):
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": name}})
        at = 0.0
        for step in range(steps):
            tracks = random.sample([0, 1, 2, 0, 1, 2, random.randrange(3)], 7)  # each has a slice: a page names no empty track
            for kind, tid in zip(("forward", "backward", "all_reduce", "reduction", "wait", "update", "data"), tracks):
                took = round(random.uniform(1, 5000), 3)
                events.append({"name": f"{kind} {step}", "cat": kind, "ph": "X", "pid": rank, "tid": tid,
                               "ts": round(at, 3), "dur": took, "args": {"step": step, "unit": 1}})
                at += took
            events.append({"name": "loss", "ph": "C", "pid": rank, "tid": 0, "ts": at, "args": {"loss": 1.5}})
    return events


def near(a, b, within):
    return abs(a - b) <= within


def number(attributes, name):
    return float(attributes[name])


def scale(figure):
    return next(a for tag, a, _ in figure if tag == "g")


# ---- a comparison ----
def check_bars(page, name, rows, columns, mark, by=1.0):
    figure = page.figures[name]
    wide = number(scale(figure), "data-scale")
    bars = [(a, title) for tag, a, title in figure if tag == "rect" and "bar" in a["class"]]
    check(len(bars) == len(rows) * len(columns), f"{name}: {len(bars)} bars")
    for i, (a, title) in enumerate(bars):
        row, column = rows[i // len(columns)], columns[i % len(columns)]
        check(title.endswith(": " + row[column]), f"{name}: '{title}' for {column} {row[column]}")
        check(near(number(a, "width"), float(row[column]) * wide, 1e-3), f"{name}: {column} {row[column]} is {a['width']} wide")
    marks = [(a, title) for tag, a, title in figure if tag == "path" and a["class"] == "mark" and title]
    check(len(marks) == (len(rows) if mark else 0), f"{name}: {len(marks)} marks")
    for (a, title), row in zip(marks, rows):
        x = float(re.match(r"M([-0-9.]+)", a["d"]).group(1))
        check(title.endswith(": " + row[mark]) and near(x, 4 + float(row[mark]) * wide, 1e-3), f"{name}: {title} at {x}")


def rounded(text):
    x = float(text)
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:,.0f}"


WORDS = {"tokens_per_s": ("tokens/s", 0), "ratio": ("ratio", 2), "ratio_low": ("least ratio", 2), "ratio_high": ("largest ratio", 2),
         "param_bytes": ("parameters, MiB", None), "grad_bytes": ("gradients, MiB", None), "optimizer_bytes": ("optimizer state, MiB", None),
         "buffer_bytes": ("buffers, MiB", None), "formula_bytes": ("formula, MiB", None), "sent_bytes": ("sent, MiB", None),
         "formula_sent_bytes": ("sent by the formula, MiB", None), "exposed_ms": ("exposed, ms", 1), "peak_mib": ("peak, MiB", 1),
         "mbits": ("Mbit/s", 0), "compute_ms": ("computing, ms", 1), "step_ms": ("step, ms", 1), "least_ms": ("least possible, ms", 1)}


def shown(column, cell):
    """A cell as the page shows it."""
    if column not in WORDS or not cell:
        return cell
    digits = WORDS[column][1]
    return f"{float(cell) / 1048576:.1f}" if digits is None else f"{float(cell):.{digits}f}"


def check_table(page, source, name, text, what):
    rows = list(csv.reader(text.splitlines()))
    words = [WORDS.get(c, (c, 0))[0] for c in rows[0]]
    check(page.tables[name] == [words] + [[shown(c, cell) for c, cell in zip(rows[0], row)] for row in rows[1:]], what)
    for row in rows[1:]:
        for column, cell in zip(rows[0], row):
            if shown(column, cell) != cell:
                check(f'<td title="{cell}">{shown(column, cell)}</td>' in source, f"{what}: {column} {cell} has no title")


def test_csv():
    text = a_csv()
    page, source = make(csv=put("compare.csv", text))
    check_table(page, source, "table-csv", text, "the table is not the CSV")
    rows = list(csv.DictReader(text.splitlines()))
    check_bars(page, "stages", rows, ["tokens_per_s"], None)
    check_bars(page, "memory", rows, ["param_bytes", "grad_bytes", "optimizer_bytes", "buffer_bytes"], "formula_bytes")
    check_bars(page, "exposed", rows, ["exposed_ms"], None)
    check_bars(page, "sent", rows, ["sent_bytes"], "formula_sent_bytes")
    for row in rows:
        whole = sum(int(row[k]) for k in ("param_bytes", "grad_bytes", "optimizer_bytes", "buffer_bytes"))
        check(f">{whole / 1048576:.1f} MiB<" in source, f"stage {row['stage']}: {whole} bytes in MiB")
        check(f">{rounded(row['tokens_per_s'])} tokens/s, x {float(row['ratio']):.2f}<" in source, f"stage {row['stage']}: rate and ratio")
        check(f">{rounded(row['exposed_ms'])} ms<" in source, f"stage {row['stage']}: exposed")
    check(not {"loss", "timeline", "peers"} & set(page.figures), "figures without a source")
    check("@" not in re.sub(r"@media", "", source), "an order was left in the page")


# ---- a run ----
def check_line(page, name, points, dots):
    figure = page.figures[name]
    s = {k: float(v) for k, v in scale(figure).items()}

    def back(x, y):
        return (s["data-x0"] + (x - s["data-left"]) / (s["data-right"] - s["data-left"]) * (s["data-x1"] - s["data-x0"]),
                s["data-y1"] - (y - s["data-top"]) / (s["data-bottom"] - s["data-top"]) * (s["data-y1"] - s["data-y0"]))
    within_x = 0.011 * (s["data-x1"] - s["data-x0"]) / (s["data-right"] - s["data-left"])
    within_y = 0.011 * (s["data-y1"] - s["data-y0"]) / (s["data-bottom"] - s["data-top"])
    if dots:
        found = [(*back(number(a, "cx"), number(a, "cy")), title) for tag, a, title in figure if tag == "circle"]
        check(len(found) == len(points) and all(t.endswith(f", {x}: {y}") for (_, _, t), (x, y) in zip(found, points)), f"{name}: dots")
        found = [f[:2] for f in found]
    else:
        line = next(a for tag, a, _ in figure if tag == "path" and a["class"].startswith("line"))
        found = [back(*map(float, p.split())) for p in re.findall(r"[-0-9.]+ [-0-9.]+", line["d"])]
        check(int(line["data-n"]) == len(points), f"{name}: of {line['data-n']} points")
    check(len(found) <= len(points), f"{name}: {len(found)} points")
    if len(points) <= 600:
        check(len(found) == len(points), f"{name}: {len(found)} points of {len(points)}")
    by = {}
    for x, y in points:
        by[int(x)] = float(y)
    for x, y in found:
        step = round(x)
        check(near(x, step, max(within_x, 1e-9)) and near(y, by[step], within_y), f"{name}: {x} {y}, step {step} has {by.get(step)}")
    values = [float(y) for _, y in points]
    check(near(max(y for _, y in found), max(values), within_y) and near(min(y for _, y in found), min(values), within_y),
          f"{name}: the least and the largest")


def test_log(steps):
    text = a_log(steps)
    page, _ = make(log=put("main.log", text + "s:99999 trl:1.0"))  # the last line was not finished
    lines = [dict(word.split(":", 1) for word in line.split()) for line in text.splitlines()]
    train = [line for line in lines if "trl" in line]
    table = page.tables["table-log"][1:]
    rows = [[line["s"], line["trl"], line["norm"], line["tps"], f"{float(line['ms']):.1f}", line["mib"]] for line in train]
    check(all(row in rows for row in table) and table[0] == rows[0] and table[-1] == rows[-1], "the table is not the log")
    check(table == rows if steps <= 200 else 100 <= len(table) <= 202, f"{len(table)} rows of {steps} steps")
    check_line(page, "loss", [(line["s"], line["trl"]) for line in train], False)
    check_line(page, "loss", [(line["s"], line["tel"]) for line in lines if "tel" in line], True)
    check_line(page, "norm", [(line["s"], line["norm"]) for line in train], False)
    check_line(page, "pace", [(line["s"], line["tps"]) for line in train], False)


# ---- which run ----
NOTE = "program train_gpt2_zero 1.0.0\ncommit abc1234\nmodel {}\nranks {}\nflags -e {} -pn {}\nhost <big> & small\ndate 2026-01-02 03:04 UTC\n"


def test_notes():
    for name in ("main.log", "compare.csv"):
        if os.path.exists(os.path.join(scratch, name + ".note")):
            os.remove(os.path.join(scratch, name + ".note"))
    sources = {"log": put("main.log", a_log(3)), "csv": put("compare.csv", a_csv())}
    page, source = make(**sources)
    check("<h1>A run with ZeRO</h1>" in source and "table-runs" not in page.tables and "notice\">" not in source, "sources without notes")
    put("main.log.note", NOTE.format("d12", 2, "d12", 2))
    page, source = make(**sources)
    check("<h1>A run with ZeRO: d12, 2 ranks</h1>" in source, "the title")
    check(page.tables["table-runs"] == [["source", sources["log"], sources["csv"]],
                                        ["program", "train_gpt2_zero 1.0.0", "not recorded"], ["commit", "abc1234", "not recorded"],
                                        ["model", "d12", "not recorded"], ["ranks", "2", "not recorded"],
                                        ["flags", "-e d12 -pn 2", "not recorded"], ["host", "<big> & small", "not recorded"],
                                        ["date", "2026-01-02 03:04 UTC", "not recorded"]], f"runs: {page.tables['table-runs']}")
    check("class=\"notice\"" not in source, "a notice about one note")
    put("compare.csv.note", NOTE.format("d12", 2, "d12", 2))
    check("class=\"notice\"" not in make(**sources)[1], "a notice about equal runs")
    put("compare.csv.note", NOTE.format("char:4x128x4", 2, "char:4x128x4", 2))
    _, source = make(**sources)
    check(source.count("class=\"notice\"") == 1 and "different runs: the model differs; " + sources["log"] + ": d12; "
          + sources["csv"] + ": char:4x128x4." in source, "a notice about another model")
    os.remove(os.path.join(scratch, "main.log.note"))
    os.remove(os.path.join(scratch, "compare.csv.note"))


def test_axes():
    folder = os.path.join(scratch, "axes")
    done = run("--out", os.path.join(scratch, "report.html"), "--log", put("main.log", a_log(9)), "--svg", folder)
    check(done.returncode == 0, done.stderr)
    for name, title, y in (("loss", "Loss over steps", "loss, nats"), ("pace", "Throughput over steps", "tokens/s"),
                           ("norm", "Norm of the gradient over steps", "norm")):
        with open(os.path.join(folder, name + ".svg")) as file:
            text = file.read()
        check(re.search(r'<svg [^>]*width="\d+" height="\d+"', text), f"{name}.svg has no width")
        check(f">{title}</text>" in text and f">{y}</text>" in text and ">step</text>" in text, f"{name}.svg: title and axes")


    done = run("--out", os.path.join(scratch, "report.html"), "--csv", put("compare.csv", a_csv()), "--svg", folder)
    check(done.returncode == 0, done.stderr)
    for name, axis in (("stages", "tokens/s"), ("memory", "MiB of a rank"), ("exposed", "ms of a step"), ("sent", "MiB sent by a rank in a step")):
        with open(os.path.join(folder, name + ".svg")) as file:
            text = file.read()
        check(f">{axis}</text>" in text, f"{name}.svg: the axis")
        wide, unit = float(re.search(r'data-scale="([^"]+)"', text).group(1)), 1048576 if "MiB" in axis else 1
        ticks = [(float(x), shown) for kind, x, shown in re.findall(r'class="tick" text-anchor="(start|middle)" x="([^"]+)" y="[^"]+">([^<]+)<', text)]
        value = lambda shown: float(shown.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(shown[-1], 1)
        check(len(ticks) >= 2 and all(near(x, 4 + value(shown) * unit * wide, 0.06) for x, shown in ticks), f"{name}.svg: ticks {ticks}")


def test_llmc_log():
    page, _ = make(log=put("main.log", "s:0 tel:11.1\ns:0 trl:10.9 lr:0.000030 norm:15.2\ns:1 trl:10.1 lr:0.000060 norm:9.5\n"))
    check(page.tables["table-log"][1:] == [["0", "10.9", "15.2", "", "", ""], ["1", "10.1", "9.5", "", "", ""]], "llm.c's log")
    check(sorted(page.figures) == ["loss", "norm"], f"figures of llm.c's log: {sorted(page.figures)}")


# ---- a step ----
def test_trace():
    events = a_trace(7, 3)
    span = {}
    for e in events:
        if e["ph"] == "X" and e["pid"] == 0:
            a, b = span.get(e["args"]["step"], (math.inf, -math.inf))
            span[e["args"]["step"]] = (min(a, e["ts"]), max(b, e["ts"] + e["dur"]))
    inner = sorted((b - a, s) for s, (a, b) in span.items() if 0 < s < 6)
    step = inner[len(inner) // 2][1]
    slices = [e for e in events if e["ph"] == "X" and e["args"]["step"] == step]
    whole = json.dumps(events)
    broken = "[\n" + ",\n".join(json.dumps(e) for e in events) + ',\n{"name": "forw'
    for text in (whole, broken, json.dumps(events, indent=2)):
        page, source = make(trace=put("trace.json", text))
        figure = page.figures["timeline"]
        s = {k: float(v) for k, v in scale(figure).items()}
        drawn = [(a, title) for tag, a, title in figure if tag == "rect" and "slice" in a["class"]]
        check(len(drawn) == len(slices), f"{len(drawn)} slices of {len(slices)}")
        drawn.sort(key=lambda d: d[1])
        slices.sort(key=lambda e: f"{e['name']}, rank {e['pid']}: ")
        for (a, title), e in zip(drawn, slices):
            check(title == f"{e['name']}, rank {e['pid']}: {e['dur'] / 1e3:.3f} ms, from {(e['ts'] - s['data-from']) / 1e3:.3f}",
                  f"'{title}' for {e}")
            check(near((number(a, "x") - s["data-left"]) / s["data-scale"], e["ts"] - s["data-from"], 0.011 / s["data-scale"])
                  and near(number(a, "width") / s["data-scale"], e["dur"], 0.011 / s["data-scale"]) or e["dur"] * s["data-scale"] < 0.3,
                  f"a slice of {e['dur']} us lies elsewhere")
        colours = {e["cat"]: a["class"].split()[1] for (a, _), e in zip(drawn, slices)}
        check(colours == {"forward": "c1", "backward": "c2", "all_reduce": "c9", "reduction": "c4", "wait": "c6", "update": "c5",
                          "data": "c8"}, f"colours of kinds: {colours}")
        sums = {}
        for e in slices:
            n, us = sums.get((e["cat"], str(e["pid"])), (0, 0))
            sums[(e["cat"], str(e["pid"]))] = (n + 1, us + e["dur"])
        table = {(r[0], r[1]): (int(r[2]), r[3]) for r in page.tables["table-trace"][1:]}
        check(table == {k: (n, rounded(us / 1e3)) for k, (n, us) in sums.items()}, "sums of the step")
        check("0: &lt;host&gt; &amp; &quot;file&quot;" in source, "names of tracks are text")


def test_peers():
    text = "name,tokens_per_s,peak_mib\nPyTorch <DDP>,24400,1200\nFSDP2,14600.5,\n"
    comparison = a_csv()
    page, source = make(csv=put("compare.csv", comparison), peers=put("peers.csv", text))
    rows = list(csv.DictReader(comparison.splitlines())) + list(csv.DictReader(text.splitlines()))
    check_bars(page, "peers", rows, ["tokens_per_s"], None)
    check_table(page, source, "table-peers", text, "the peers' table")


def test_links():
    head = "hosts,ranks,stage,method,mbits,compute_ms,step_ms,least_ms"
    rows = [f"{h},{2 * h},{stage},{method},{rate},684.0,{1000 + rate / 10 + stage},{900 + rate / 10}"
            for h in (2, 4) for rate in (2000, 500, 200) for stage in (2, 3) for method in ("exact", "zh")]
    text = "\n".join([head] + rows) + "\n"
    page, source = make(links=put("links.csv", text))
    drawn = [r for r in csv.DictReader(text.splitlines()) if r["hosts"] == "4" and r["stage"] == "3" and int(r["mbits"]) <= 500]
    figure = page.figures["links"]
    titles = [title for tag, a, title in figure if tag == "rect" and "bar" in a.get("class", "")]
    check(titles == [f"{r['mbits']} Mbit/s, {r['method']}, {what}" for r in drawn
                     for what in (f"computing: {r['compute_ms']}", f"exposed: {float(r['step_ms']) - 684:.1f}")], f"{titles}")
    marks = [title for tag, a, title in figure if a.get("class") == "mark" and title]
    check(marks == [f"least possible: {r['least_ms']}" for r in drawn], f"{marks}")
    check_table(page, source, "table-links", text, "the links' table")


# ---- what the page needs: nothing ----
def test_alone():
    _, text = make(csv=put("compare.csv", a_csv()), log=put("main.log", a_log(40)), trace=put("trace.json", json.dumps(a_trace(5, 2))))
    bare = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    for word in ("http", "<script", "<link", "src=", "url(", "@import", "<img", "<iframe"):
        check(word not in bare, f"the page has '{word}'")
    check(len(text) < 500000, f"{len(text)} bytes")
    folder = os.path.join(scratch, "svg")
    done = run("--out", os.path.join(scratch, "report.html"), "--csv", os.path.join(scratch, "compare.csv"), "--svg", folder)
    check(done.returncode == 0 and sorted(os.listdir(folder)) == ["exposed.svg", "memory.svg", "sent.svg", "stages.svg"], f"{done.stderr}")
    import xml.dom.minidom
    for name in os.listdir(folder):
        xml.dom.minidom.parse(os.path.join(folder, name))


def test_malformed():
    good = a_csv().splitlines()
    step = '[{"name":"a","ph":"X","pid":0,"tid":0,"ts":1,"dur":1}'
    cases = [
        ("log", "", "no line of a step"),
        ("log", "hello\n", ":1: expected 's:STEP trl:LOSS"),
        ("log", a_log(2) + "s:3 trl:x lr:1\n", ": expected 's:STEP trl:LOSS"),
        ("log", "s:-1 trl:1\n", ":1: expected"),
        ("log", "s:1 norm:1\n", ":1: expected"),
        ("csv", "", "no row after its header"),
        ("csv", HEAD + "\n", "no row after its header"),
        ("csv", "a,b\n1,2\n", ":1: expected a column stage"),
        ("csv", good[0] + "\n" + good[1] + ",5\n", ":2: expected 16 cells"),
        ("csv", "\n".join(good[:2]) + "\n" + good[2].replace(",", ",x", 1) + "\n", ":3: ranks: expected a number, found 'x"),
        ("csv", good[0] + "\n" + good[1].replace(good[1].split(",")[2], "nan", 1) + "\n", ":2: tokens_per_s: expected a number, found 'nan'"),
        ("peers", "name\nx\n", ":1: expected a column tokens_per_s"),
        ("links", "hosts\n2\n", ":1: expected a column ranks"),
        ("trace", "{}", ":1: expected an array of events"),
        ("trace", "", ":1: expected an array of events"),
        ("trace", "[]", "no slice"),
        ("trace", step + ',\n{"ph":"X","name":"b","ts":1}]', ":2: expected an event with dur"),
        ("trace", step + ',\n{"ph":"X","name":"b","dur":1,"ts":"1"}]', ":2: expected an event with ts"),
        ("trace", step + ",\n\n5]", ":3: expected an event of JSON"),
        ("trace", step + ",\n{bad}]", ":2: expected an event of JSON"),
        ("trace", '[{"name":"a"}]', ":1: expected an event with ph"),
    ]
    for flag, text, words in cases:
        done = run("--out", os.path.join(scratch, "none.html"), "--" + flag, put("wrong", text))
        check(done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1 and not done.stdout,
              f"--{flag} '{text[:60]}': {done.returncode} '{done.stderr.strip()}'")
    check(not os.path.exists(os.path.join(scratch, "none.html")), "a page of nothing was written")
    pipe = os.path.join(scratch, "pipe")
    os.mkfifo(pipe)
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    check(done.returncode == 1 and done.stderr == "page: the output cannot be written: No space left on device\n",
          f"page --help >/dev/full: {done.returncode} '{done.stderr.strip()}'")
    for arguments, words in ((["--log", pipe], "cannot be read (it is not a regular file)"),
                             (["--csv", put("compare.csv", a_csv()), "--out", pipe], "cannot be written (it is not a regular file)"),
                             (["--log", "/none"], "/none: cannot be read"), ([], "no source is given"),
                             (["--lg", "x"], "unknown flag '--lg'"), (["--log"], "expected a value"),
                             (["--csv", put("compare.csv", a_csv()), "--out", "/none/x/report.html"], "cannot be written")):
        done = run(*arguments)
        check(done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1, f"page {arguments}: '{done.stderr.strip()}'")


test_csv()
for count in (1, 2, 40, 200, 5000):
    test_log(count)
test_notes()
test_axes()
test_llmc_log()
test_trace()
test_peers()
test_links()
test_alone()
test_malformed()
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
