"""What the end-to-end tests know about an ELF file without asking clew: build-id, functions, PLT stubs, code bytes.

Layout: System V gABI, chapter "Object Files". Only 64-bit little-endian files, and only trusted ones (our own builds).
"""

import bisect
import subprocess
import struct


def demangled(names):
    """The readable form of C++ names, by c++filt (binutils)."""
    mangled = [name for name in names if name.startswith("_Z")]
    if not mangled:
        return {}
    out = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    return dict(zip(mangled, out.split("\n")))


def plain(name):
    """A function's name without parameters, clone marks and `.cold`: how .chains files write it."""
    name = name.split(" [clone")[0].split("@")[0]
    if "(" in name and not name.startswith("("):
        name = name[: name.index("(")]
    for mark in (".cold", ".part.0", ".isra.0"):
        name = name.removesuffix(mark)
    return name


class Elf:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path}: not a 64-bit little-endian ELF file")
        self.path = path
        shoff = struct.unpack_from("<Q", self.data, 40)[0]
        phoff = struct.unpack_from("<Q", self.data, 32)[0]
        phentsize, phnum, shentsize, shnum, shstrndx = struct.unpack_from("<HHHHH", self.data, 54)
        self.segments = []  # (vaddr, memsz, offset, filesz, executable)
        for i in range(phnum):
            kind, flags, offset, vaddr, _, filesz, memsz = struct.unpack_from("<IIQQQQQ", self.data, phoff + i * phentsize)
            if kind == 1:
                self.segments.append((vaddr, memsz, offset, filesz, bool(flags & 1)))
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, shoff + i * shentsize) for i in range(shnum)]
        names = headers[shstrndx]
        self.sections = {}
        for h in headers:
            start = names[4] + h[0]
            self.sections[self.data[start : self.data.index(b"\0", start)].decode()] = h
        self.build_id = ""
        note = self.sections.get(".note.gnu.build-id")
        if note:
            self.build_id = self.data[note[4] + 16 : note[4] + note[5]].hex()
        self.stubs = [(h[3], h[3] + h[5]) for name, h in self.sections.items() if name.startswith(".plt")]
        self._read_functions(headers)

    def _read_functions(self, headers):
        found = {}
        for h in headers:
            if h[1] not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
                continue
            strings = headers[h[6]][4]
            for at in range(h[4], h[4] + h[5], 24):
                name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", self.data, at)
                if info & 15 != 2 or section == 0:  # STT_FUNC, defined
                    continue
                end = self.data.index(b"\0", strings + name)
                section_end = headers[section][3] + headers[section][5] if section < len(headers) else value
                found[(value, size)] = self.data[strings + name : end].decode(), section_end
        readable = demangled(name for name, _ in found.values())
        starts = sorted(value for value, _ in found)
        self.functions = []
        for (value, size), (name, section_end) in sorted(found.items()):
            # The compiler's own start and end code (crtstuff, crti) has no sizes: each is as long as its section lets it be.
            if size == 0:
                after = bisect.bisect_right(starts, value)
                size = min(starts[after] if after < len(starts) else section_end, section_end) - value
            self.functions.append((value, size, readable.get(name, name)))
        self.functions.sort()
        self._starts = [f[0] for f in self.functions]

    def function(self, address):
        """The name of the function whose bytes hold the address, or None."""
        i = bisect.bisect_right(self._starts, address) - 1
        while i >= 0 and address - self.functions[i][0] < 1 << 20:
            value, size, name = self.functions[i]
            if address < value + size:
                return plain(name)
            i -= 1
        return None

    def is_stub(self, address):
        return any(start <= address < end for start, end in self.stubs)

    def is_code(self, address):
        return any(s[4] and s[0] <= address < s[0] + s[1] for s in self.segments)

    def bytes_before(self, address, count):
        for vaddr, _, offset, filesz, _ in self.segments:
            if vaddr <= address - count and address <= vaddr + filesz:
                at = offset + address - vaddr
                return self.data[at - count : at]
        return b""

    def follows_call(self, address):
        """Does a call instruction end at the address? (Intel SDM, CALL: E8 rel32; FF /2 in its addressing forms, with REX
        and segment prefixes.)"""
        code = self.bytes_before(address, 9)
        if len(code) < 9:
            return True  # the file does not say
        if code[-5] == 0xE8:
            return True
        for length in range(2, 9):
            body = code[-length:]
            while body and (body[0] & 0xF0 == 0x40 or body[0] in (0x2E, 0x3E, 0x64, 0x65, 0x66, 0xF2)):
                body = body[1:]
            if len(body) < 2 or body[0] != 0xFF or (body[1] >> 3) & 7 != 2:
                continue
            mod, rm = body[1] >> 6, body[1] & 7
            size = 2
            if mod != 3 and rm == 4:
                size += 1
                if mod == 0 and len(body) > 2 and body[2] & 7 == 5:
                    size += 4
            if mod == 0 and rm == 5:
                size += 4
            size += {0: 0, 1: 1, 2: 4, 3: 0}[mod]
            if size == len(body):
                return True
        return False
