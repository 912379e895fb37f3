#!/usr/bin/env python3
"""machine_code.py BUILD [write | launches PROGRAM [ARGUMENT...]] - the machine code of hot kernels for sm_80, 90 and 100,
against the table of tests/figures.md. It fails if a hot kernel has a spill or uses more of the stack, has fewer 128-bit loads or
stores, more f64 instructions, in the loop over its data or in all, or a tenth more instructions per byte, or fits fewer times on a multiprocessor than the table says.
`write` prints the table anew.
`launches`: runs an emulated program, and compares every launch with the compiled kernel: launch bounds, registers and
shared memory. It needs nvcc; nvdisasm comes from the toolkit or from the Python package index, and without it the widths
are skipped. Last line: N passed, N failed[, N skipped]."""
import glob, os, re, shutil, struct, subprocess, sys

ARCHS = (80, 90, 100)
SHARED = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10} # bytes of a multiprocessor
FIGURES = 'tests/figures.md'
FILES = ('zero_plugin.cu', 'adapters/gpt2/ops_cuda.cu', 'adapters/gpt2/attention_cuda.cu')

# Kernel, threads of a block, bytes of dynamic shared memory. Those of a step of GPT-2 in bf16.
HOT = (
    ('zp_rule_adamw_kernel', 256, 0), ('zp_kernel_squares_teams', 256, 0), ('zp_kernel_accumulate_kernel', 256, 0),
    ('zp_codec_kernels_encode_lanes', 256, 0),
    ('zp_codec_kernels_decode_lanes', 256, 0), ('norm_kernel<ops_bf16, 8, false>', 256, 0),
    ('norm_backward_kernel<ops_bf16, 8, 1>', 512, 0), ('cross_entropy_kernel<ops_bf16, 8>', 1024, 0),
    ('gelu_kernel<ops_bf16, 8>', 256, 0),
    ('forward_kernel<ops_f32, 64, 64>', 256, (2 * 64 * 68 + 64 * 68) * 4),
    ('keys_kernel<ops_f32, 64, 64>', 256, (5 * 64 * 68 + 128) * 4),
    ('queries_kernel<ops_f32, 64, 64>', 256, 5 * 64 * 68 * 4))


def disassembler(build):
    found = shutil.which('nvdisasm')
    folder = f'{build}/versions/nvdisasm'
    if not found and not glob.glob(f'{folder}/**/nvdisasm', recursive=True):
        os.makedirs(folder, exist_ok=True)
        get = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--disable-pip-version-check', '-d', folder,
               'nvidia-cuda-nvdisasm']
        if subprocess.run(get, capture_output=True).returncode == 0:
            wheel = glob.glob(f'{folder}/*.whl')[0]
            subprocess.run([sys.executable, '-m', 'zipfile', '-e', wheel, folder], check=True)
    for path in glob.glob(f'{folder}/**/nvdisasm', recursive=True):
        os.chmod(path, 0o755)
        found = found or path
    return found


def short(name):
    name = subprocess.run(['c++filt', name], capture_output=True, text=True).stdout.strip()
    return re.sub(r'\(.*', '', re.sub(r'^void ', '', name))


def occupancy(registers, threads, shared, arch):
    warps = (threads + 31) // 32
    by_registers = 65536 // ((registers + 7) // 8 * 8 * 32 * warps)
    return min(by_registers, 64 // warps, 32, SHARED[arch] // (shared + 1024))


F64 = r'D(ADD|MUL|FMA|SETP|MNMX)|[FI]2F\.F64'


def loop_f64(part):
    """Returns the f64 instructions of the shortest loop that loads 128 bits at once, or, without one, of the kernel."""
    labels, code, loops = {}, [], []
    for line in part.split('\n'):
        label = re.match(r'(\.L_x_\d+):', line)
        op = re.search(r'/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)', line)
        if label:
            labels[label[1]] = len(code)
        elif op:
            code.append(op[1])
            back = re.search(r'`\((\.L_x_\d+)\)', line) if op[1].startswith('BRA') else None
            if back and back[1] in labels:
                loops.append(code[labels[back[1]]:])
    loops = [each for each in loops if any(re.match(r'LDG\.E.*\.(128|256)', op) for op in each)]
    return sum(re.match(F64, op) is not None for op in min(loops, key=len, default=code))


def compile_file(build, file, arch, nvdisasm):
    """Returns {kernel: (registers, stack, spilled bytes, static shared bytes, [instructions], f64 in the loop)}."""
    cubin = f'{build}/machine/{os.path.basename(file)}.{arch}.cubin'
    log = cubin[:-5] + 'log'
    sources = [file] + glob.glob('zero_plugin*/**/*.h', recursive=True) + glob.glob('zero_plugin.h') + glob.glob('adapters/gpt2/*')
    if not os.path.exists(log) or os.path.getmtime(log) < max(os.path.getmtime(source) for source in sources):
        run = subprocess.run(['nvcc', '-std=c++17', '-O3', '-fmad=false', '-I.', f'-arch=sm_{arch}', '-cubin', '-Xptxas',
                              '-v', '-o', cubin, file], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f'{run.stderr[-2000:]}\n0 passed, 1 failed')
        open(log, 'w').write(run.stdout + run.stderr)
    entry = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes "
                       r"spill loads\n[^\n]*Used (\d+) registers([^\n]*)", re.S)
    kernels = {}
    for name, stack, stores, loads, registers, rest in entry.findall(open(log).read()):
        shared = re.search(r'(\d+) bytes smem', rest)
        kernels[name] = [int(registers), int(stack), int(stores) + int(loads), int(shared[1]) if shared else 0, [], 0]
    if nvdisasm:
        code = subprocess.run([nvdisasm, '-c', cubin], capture_output=True, text=True).stdout
        for part in re.split(r'\n//-+ \.text\.', code)[1:]:
            if part.split()[0] in kernels:
                kernels[part.split()[0]][4] = re.findall(r'/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)', part)
                kernels[part.split()[0]][5] = loop_f64(part)
    return {short(name): value for name, value in kernels.items()}


def bounds(cubin):
    """Returns {kernel: most threads of a block} of a cubin: EIATTR_MAX_THREADS in the sections .nv.info.KERNEL."""
    data = open(cubin, 'rb').read()
    at, = struct.unpack_from('<Q', data, 0x28)
    size, count, names = struct.unpack_from('<HHH', data, 0x3A)
    sections = [struct.unpack_from('<IIQQQQ', data, at + i * size) for i in range(count)]
    most = {}
    for section in sections:
        begin = sections[names][4] + section[0]
        name = data[begin:data.index(b'\0', begin)].decode()
        i, end = section[4], section[4] + section[5]
        while name.startswith('.nv.info.') and i < end:
            form, attribute, value = struct.unpack_from('<BBH', data, i)
            if form == 4 and attribute == 5:
                x, y, z = struct.unpack_from('<III', data, i + 4)
                most[short(name[9:])] = x * y * z
            i += 4 + (value if form == 4 else 0)
    return most


def check_launches(build, program):
    """Compares the launches of an emulated program with the kernels for sm_90."""
    os.makedirs(f'{build}/machine', exist_ok=True)
    file = f'{build}/machine/launches'
    if os.path.exists(file):
        os.remove(file)
    run = subprocess.run(program, env={**os.environ, 'EMULATION_LAUNCHES': file}, stdout=subprocess.DEVNULL)
    if run.returncode or not os.path.exists(file):
        sys.exit(f'{program[0]} fails, or launches nothing\n0 passed, 1 failed')
    kernels, most = {}, {}
    for source in FILES:
        kernels.update(compile_file(build, source, 90, None))
        most.update(bounds(f'{build}/machine/{os.path.basename(source)}.90.cubin'))
    symbols = subprocess.run(['nm', program[0]], capture_output=True, text=True).stdout
    names = {int(line.split()[0], 16): line.split()[2] for line in symbols.split('\n') if len(line.split()) == 3}
    passed = failed = others = 0
    for line in open(file):
        at, threads, dynamic = (int(x, 16 if i == 0 else 10) for i, x in enumerate(line.split()))
        name = short(names[at])
        if name not in kernels: # a kernel of the program's own
            others += 1
            continue
        registers, _, _, shared, *_ = kernels[name]
        right = threads <= most.get(name, 1024) and occupancy(registers, threads, shared + dynamic, 90) >= 1
        passed, failed = passed + right, failed + (not right)
        if not right:
            print(f'FAILED: {name} is launched with {threads} threads and {dynamic} bytes, compiled for '
                  f'{most.get(name, 1024)} threads with {registers} registers')
    print(f'{others} other kernels\n{passed} passed, {failed} failed')
    return failed > 0 or not passed


def per_byte(code):
    """Returns a kernel's instructions for each byte of device memory that its code names, as loads, stores and atomics."""
    width = lambda op: next((bytes_ for word, bytes_ in (('.256', 32), ('.128', 16), ('.64', 8), ('16', 2), ('8', 1)) if word in op), 4)
    memory = sum(width(op) for op in code if re.match(r'(LDG|STG|ATOMG|REDG|RED)\b', op))
    return len(code) / memory if memory else 0


def measure(build, nvdisasm):
    os.makedirs(f'{build}/machine', exist_ok=True)
    rows = {}
    for arch in ARCHS:
        kernels = {}
        for file in FILES:
            kernels.update(compile_file(build, file, arch, nvdisasm))
        for name, threads, dynamic in HOT:
            if name not in kernels:
                sys.exit(f'{name} is no kernel for sm_{arch}\n0 passed, 1 failed')
            registers, stack, spilled, shared, code, in_loop = kernels[name]
            count = lambda what: sum(re.match(what, op) is not None for op in code)
            rows.setdefault(name, []).append({
                'registers': registers, 'stack': stack, 'spilled': spilled,
                'blocks': occupancy(registers, threads, shared + dynamic, arch),
                'loads': count(r'LDG\.E.*\.(128|256)'), 'stores': count(r'STG\.E.*\.(128|256)'),
                'in_loop': in_loop, 'f64': count(F64), 'per_byte': f'{per_byte(code):.1f}'})
    return rows


def table(rows):
    text = ['| kernel | threads | registers | stack | blocks | 128-bit loads | stores | f64 in the loop | in all | per byte |', '|---' + '|--:' * 9 + '|']
    for name, threads, _ in HOT:
        cells = [', '.join(str(each[of]) for each in rows[name]) for of in ('registers', 'stack', 'blocks', 'loads', 'stores', 'in_loop', 'f64', 'per_byte')]
        text.append(f'| {name} | {threads} | ' + ' | '.join(cells) + ' |')
    return text


def main():
    if not shutil.which('nvcc'):
        print('skipped: nvcc is not installed\n0 passed, 0 failed, 1 skipped')
        return 0
    build = sys.argv[1]
    if sys.argv[2:3] == ['launches']:
        return check_launches(build, sys.argv[3:])
    nvdisasm = disassembler(build)
    rows = measure(build, nvdisasm)
    if sys.argv[2:] == ['write']:
        print('\n'.join(table(rows)))
        return 0
    expected = {}
    for line in open(FIGURES):
        cells = [cell.strip() for cell in line.strip().strip('|').split('|')]
        if len(cells) == 10 and cells[0] in dict((hot[0], 0) for hot in HOT):
            expected[cells[0]] = [[float(x) if '.' in x else int(x) for x in cell.split(',')] for cell in cells[2:]]
    passed = failed = 0
    for name, threads, _ in HOT:
        for i, arch in enumerate(ARCHS):
            now, wrong = rows[name][i], []
            if name not in expected:
                wrong.append(f'it is not in {FIGURES}')
            else:
                _, stack, blocks, loads, stores, in_loop, f64, each_byte = (column[i] for column in expected[name])
                if now['spilled'] or now['stack'] > stack:
                    wrong.append(f"{now['spilled']} bytes are spilled, {now['stack']} bytes of stack")
                if now['blocks'] < blocks:
                    wrong.append(f"{now['registers']} registers, {now['blocks']} blocks instead of {blocks}")
                if nvdisasm and (now['loads'] < loads or now['stores'] < stores):
                    wrong.append(f"{now['loads']} and {now['stores']} 128-bit loads and stores, not {loads} and {stores}")
                if nvdisasm and (now['in_loop'] > in_loop or now['f64'] > f64):
                    wrong.append(f"{now['in_loop']} f64 instructions in the loop and {now['f64']} in all, not {in_loop} and {f64}")
                if nvdisasm and float(now['per_byte']) > 1.1 * each_byte + 0.1:
                    wrong.append(f"{now['per_byte']} instructions per byte instead of {each_byte}")
            for each in wrong:
                print(f'FAILED: {name}, sm_{arch}: {each}')
            passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f'{passed} passed, {failed} failed' + ('' if nvdisasm else ', 1 skipped: nvdisasm is not there'))
    return failed > 0


sys.exit(main())
