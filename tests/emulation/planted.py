#!/usr/bin/env python3
"""planted.py BUILD - plants each error of planted.txt into planted.cu, one at a time, and runs the program on the
emulation: at least nine of ten must be found. Rows `bounds` need nvcc: the launches of the program are compared with the
compiled kernels. Rows `unseen` must be as rare as they are said to be: one that is found is a failure of the table.
Last line: N passed, N failed[, N skipped]."""
import os, re, shutil, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
CXX = os.environ.get('CXX', 'c++')


def compile_program(source, folder, flags):
    open(f'{folder}/planted.cu', 'w').write(source)
    command = [CXX, *flags, '-fsanitize=alignment', '-fsanitize-undefined-trap-on-error', '-x', 'c++', '-include',
               'cuda_runtime.h', f'{folder}/planted.cu', '-x', 'none', f'{folder}/emulation.o', '-rdynamic', '-o',
               f'{folder}/planted', '-ldl']
    return subprocess.run(command, capture_output=True, text=True)


def run_program(folder):
    """Returns what shows that the program is wrong, or ''."""
    if os.path.exists(f'{folder}/launches'):
        os.remove(f'{folder}/launches')
    try:
        run = subprocess.run([f'{folder}/planted'], capture_output=True, text=True, timeout=120,
                             env={**os.environ, 'EMULATION_LAUNCHES': f'{folder}/launches'})
    except subprocess.TimeoutExpired:
        return 'it does not end'
    said = (run.stdout + run.stderr).strip().split('\n')[-1]
    return '' if run.returncode == 0 else f'{said or "signal"} ({run.returncode})'


def bounds_of(source, folder):
    """Returns {kernel: most threads of a block} of the compiled kernels, from the PTX."""
    cuda = re.sub(r'EMULATED_DYNAMIC_SHARED\(float, (\w+)\)', r'extern __shared__ float \1[]', source)
    open(f'{folder}/kernels.cu', 'w').write(cuda[:cuda.index('/* ---- the program')].replace('#include "emulation.h"', ''))
    run = subprocess.run(['nvcc', '-std=c++17', '-arch=sm_90', '-ptx', '-o', f'{folder}/kernels.ptx', f'{folder}/kernels.cu'],
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr + '\n0 passed, 1 failed')
    found = re.findall(r'\.entry (\w+)\(.*?\n\.maxntid (\d+)', open(f'{folder}/kernels.ptx').read(), re.S)
    return {name: int(threads) for name, threads in found}


def exceeded(source, folder):
    """Returns the kernel that was launched with more threads than it was compiled for, or ''."""
    bounds = bounds_of(source, folder)
    symbols = subprocess.run(['nm', f'{folder}/planted'], capture_output=True, text=True).stdout
    names = {int(line.split()[0], 16): line.split()[2] for line in symbols.split('\n') if len(line.split()) == 3}
    checked = 0
    for line in open(f'{folder}/launches'):
        at, threads, _ = line.split()
        name = names[int(at, 16)]
        checked += name in bounds
        if name in bounds and int(threads) > bounds[name]:
            return f'{name} is launched with {threads} threads, and compiled for {bounds[name]}'
    return '' if checked >= 6 else f'only {checked} kernels were compared'


def main():
    folder = f'{sys.argv[1]}/planted'
    os.makedirs(folder, exist_ok=True)
    toolkit = subprocess.run(['sh', f'{HERE}/../../adapters/cuda.sh', 'toolkit'], capture_output=True, text=True).stdout.strip()
    flags = ['-std=c++17', '-O1', '-D__CUDACC__', '-pthread', '-ffp-contract=off', f'-I{HERE}', '-isystem', f'{toolkit}/include']
    subprocess.run([CXX, *flags, '-c', '-o', f'{folder}/emulation.o', f'{HERE}/emulation.cc'], check=True)
    original = open(f'{HERE}/planted.cu').read()
    rows = [line.replace('\\n', '\n').rstrip(' ').split(' | ') for line in open(f'{HERE}/planted.txt').read().split('\n')[2:] if line]
    nvcc = shutil.which('nvcc') is not None
    passed = failed = skipped = found = 0

    def check(right, text):
        nonlocal passed, failed
        passed, failed = passed + bool(right), failed + (not right)
        if not right:
            print('FAILED:', text)

    build = compile_program(original, folder, flags)
    check(build.returncode == 0 and not run_program(folder), f'without an error: {build.stderr[-500:]} {run_program(folder)}')
    if nvcc:
        check(not exceeded(original, folder), exceeded(original, folder))
    for old, new, expected, what in rows:
        if original.count(old) < 1:
            check(False, f'planted.cu has no "{old}"')
            continue
        if expected == 'bounds' and not nvcc:
            skipped += 1
            continue
        source = original.replace(old, new, 1)
        build = compile_program(source, folder, flags)
        why = run_program(folder) if build.returncode == 0 else ''
        if not why and expected == 'bounds':
            why = exceeded(source, folder)
        found += bool(why)
        print(f'{"found" if why else "UNSEEN":6s} {what}: {why}')
        check(build.returncode == 0 and bool(why) == (expected != 'unseen'), f'{what}: {build.stderr[-300:]}')
    print(f'{found} of {len(rows)} errors are found')
    check(len(rows) >= 40 and 10 * found >= 9 * (len(rows) - skipped), 'nine of ten are found')
    print(f'{passed} passed, {failed} failed' + (f', {skipped} skipped' if skipped else ''))
    return failed > 0


sys.exit(main())
