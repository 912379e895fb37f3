#!/usr/bin/env python3
"""slim_nccl.py LIBRARY OUT.xz ARCH - makes libnccl.so small enough to be carried to a machine without a network.

A fat binary inside the library holds one entry for each GPU architecture. This program overwrites the
code of all other entries than machine code for sm_ARCH with zeros, so that the compressed file is small.
Offsets do not change, and the loader picks the entry that is left. Prints the bytes that it kept.
"""
import lzma
import struct
import sys

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


def main():
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
