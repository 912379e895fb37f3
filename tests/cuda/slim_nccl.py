#!/usr/bin/env python3
"""slim_nccl.py [check] LIBRARY OUT.xz ARCH - makes libnccl.so small enough to be carried to a machine without a network.

A fat binary inside the library holds one entry for each GPU architecture. This program overwrites the
code of all other entries than machine code for sm_ARCH with zeros, so that the compressed file is small.
Offsets do not change, and the loader picks the entry that is left. Prints the bytes that it kept.

`check` compares OUT.xz with LIBRARY: the machine code for sm_ARCH has the same bytes and the other code is clear, the rest of
the file is the same, the library loads, exports every function, and returns its version. Last line: N passed, N failed.
"""
import ctypes
import lzma
import struct
import subprocess
import sys
import tempfile

CONTAINER = struct.pack('<I', 0xBA55ED50)
MACHINE_CODE = 2


def entries(data):
    """Yields (kind, architecture, begin, end) of every entry's code."""
    at = data.find(CONTAINER)
    while at >= 0:
        version, header = struct.unpack_from('<HH', data, at + 4)
        size, = struct.unpack_from('<Q', data, at + 8)
        end = at + header + size
        if version == 1 and header == 16 and end <= len(data):
            entry = at + header
            while entry < end:
                kind, _, entry_header, code = struct.unpack_from('<HHIQ', data, entry)
                arch, = struct.unpack_from('<I', data, entry + 28)
                begin = entry + entry_header
                if entry_header < 32 or begin + code > end:
                    break
                yield kind, arch, begin, begin + code
                entry = begin + code
        at = data.find(CONTAINER, at + 4)


def check(library, out, wanted):
    """Returns what is wrong with the small library OUT.xz, as a list of sentences."""
    with open(library, 'rb') as file:
        whole = file.read()
    with lzma.open(out) as file:
        small = file.read()
    wrong, at, kept = [], 0, 0
    if len(small) != len(whole):
        return [f'it has {len(small)} bytes, not {len(whole)}']
    for kind, arch, begin, end in list(entries(whole)) + [(0, 0, len(whole), len(whole))]:
        keeps = kind == MACHINE_CODE and arch == wanted
        kept += keeps
        if whole[at:begin] != small[at:begin]:
            wrong.append(f'bytes {at} to {begin}, which are no code, differ')
        if small[begin:end] != (whole[begin:end] if keeps else bytes(end - begin)):
            wrong.append(f'the code at {begin}, for sm_{arch}, is not {"the same" if keeps else "clear"}')
        at = end
    if not kept:
        wrong.append(f'it has no machine code for sm_{wanted}')
    listed = subprocess.run(['nm', '-D', '--defined-only', library], capture_output=True, text=True).stdout
    names = [line.split()[2] for line in listed.split('\n') if len(line.split()) == 3 and line.split()[2].startswith('nccl')]
    if not names:
        wrong.append('the library exports no function')
    with tempfile.NamedTemporaryFile(suffix='.so') as file:
        file.write(small)
        file.flush()
        loaded, version = ctypes.CDLL(file.name), ctypes.c_int(0)
        wrong += [f'{name} is not found' for name in names if not hasattr(loaded, name.split('@')[0])]
        if loaded.ncclGetVersion(ctypes.byref(version)) or version.value < 21900:
            wrong.append(f'ncclGetVersion returns {version.value}')
    print(f'{out}: {len(names)} functions, version {version.value}, machine code for sm_{wanted} in {kept} places')
    return wrong


def main():
    if len(sys.argv) == 5 and sys.argv[1] == 'check':
        wrong = check(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        for each in wrong[:10]:
            print(f'FAILED: {each}')
        print(f'{int(not wrong)} passed, {len(wrong)} failed')
        sys.exit(len(wrong) > 0)
    if len(sys.argv) != 4:
        sys.exit(__doc__.splitlines()[0])
    library, out, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(library, 'rb') as file:
        data = bytearray(file.read())
    kept = cut = 0
    for kind, arch, begin, end in list(entries(data)):
        if kind == MACHINE_CODE and arch == wanted:
            kept += end - begin
        else:
            data[begin:end] = bytes(end - begin)
            cut += end - begin
    if not kept:
        sys.exit(f'slim_nccl.py: {library} has no machine code for sm_{wanted}')
    with lzma.open(out, 'wb', preset=6) as file:
        file.write(data)
    print(f'{library}: kept {kept} bytes of code for sm_{wanted}, cleared {cut}')


if __name__ == '__main__':
    main()
