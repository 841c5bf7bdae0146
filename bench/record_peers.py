"""Other recorders, run on the same programs: what they recorded, as stacks that tests/e2e/truth.py can judge."""

import gzip
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))

from elf import Elf  # noqa: E402
from recording import Location, Mapping, Stack  # noqa: E402

PERF_FRAME = re.compile(r"^\s+([0-9a-f]+) (.*) \(([^()]*(?:\([^()]*\))?[^()]*)\)$")
ROOTS = {"_start", "clone", "clone3", "__clone", "__clone3", "_dl_start_user"}
START_BYTES = 64  # of a program's or the dynamic linker's entry, at most


def perf_command(output, command, frequency=999, options=()):
    """perf as its documentation says for programs without frame pointers; `cpu-clock:u` is what an ordinary user gets on
    a machine without hardware counters."""
    return ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", str(frequency), "--call-graph", "dwarf", *options, "-o", output, "--", *command]


def _build_id(path, known={}):
    if path not in known:
        try:
            known[path] = Elf(path).build_id
        except (OSError, ValueError):
            known[path] = ""
    return known[path]


def perf_stacks(text):
    """The output of `perf script -F comm,tid,ip,sym,dso` as stacks. perf prints addresses in the file, already one less for a
    caller. The root is judged by names, or by __libc_start_main having a caller, as programs are stripped."""
    stacks = []
    for block in text.split("\n\n"):
        locations = []
        for line in block.split("\n")[1:]:
            match = PERF_FRAME.match(line)
            if not match or match.group(3) == "inlined":
                continue
            address, name, path = int(match.group(1), 16), match.group(2), match.group(3)
            if name == "[unknown]" and path == "[unknown]":
                locations.append(Location(None, address, (), "native", "perf", True, False, False))
                continue
            path = path.removesuffix(" (deleted)")
            locations.append(Location(Mapping(path, _build_id(path)), address, (name,), "native", "perf", True, False, False))
        if not block.strip():
            continue
        outermost = [location.names[0].split("@")[0] if location.names else "" for location in locations[-2:]]
        root = outermost and (outermost[-1] in ROOTS or outermost[0].startswith("__libc_start_main") and len(outermost) == 2)
        stacks.append(Stack(tuple(locations), "root" if root else "", 1))
    return stacks


class SamplyRoots:
    """Which addresses in a file are where a stack may end: the entry, and a thread's first function (which stripped files do
    not name: where clew's table says so)."""

    def __init__(self, clew):
        self.clew = clew
        self.known = {}

    def _ranges(self, path):
        ranges = []
        try:
            entry = int.from_bytes(Elf(path).data[24:32], "little")
        except (OSError, ValueError):
            return ranges
        ranges.append((entry, entry + START_BYTES))
        rows = [line.split() for line in subprocess.run([self.clew, "table", "dump", path], capture_output=True, text=True).stdout.splitlines()]
        starts = [int(row[0], 16) for row in rows]
        ranges += [(start, end) for start, end, row in zip(starts, starts[1:], rows) if row[1] == "root"]
        return ranges

    def __contains__(self, location):
        if location.mapping is None:
            return False
        path = location.mapping.path
        if path not in self.known:
            self.known[path] = self._ranges(path)
        return any(start <= location.address < end for start, end in self.known[path])


def _base(path):
    """The lowest address that a file asks to be loaded at: 0 but for programs that lie at a fixed place."""
    try:
        return min((vaddr for vaddr, *_ in Elf(path).segments), default=0) & ~4095
    except (OSError, ValueError):
        return 0


def samply_stacks(file, roots):
    """A profile of `samply record --save-only` (the Firefox Profiler's processed format, not symbolized) as stacks. Addresses
    are relative to the file's lowest one, already one less for a caller."""
    with gzip.open(file) as opened:
        profile = json.load(opened)
    mappings = [Mapping(lib["path"], lib.get("codeId") or "") for lib in profile["libs"]]
    bases = [_base(mapping.path) for mapping in mappings]
    stacks = []
    for thread in profile["threads"]:
        names = thread["stringArray"]
        table, frames, functions, resources = (thread[key] for key in ("stackTable", "frameTable", "funcTable", "resourceTable"))

        def location(frame):
            function = frames["func"][frame]
            resource = functions["resource"][function]
            known = resource is not None and resource >= 0
            lib = resources["lib"][resource] if known else None
            address = frames["address"][frame] + (bases[lib] if known else 0)
            return Location(mappings[lib] if known else None, address, (names[functions["name"][function]],), "native", "samply", True, False, False)

        for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"] or [1] * len(thread["samples"]["stack"])):
            locations = []
            while stack is not None:
                locations.append(location(table["frame"][stack]))
                stack = table["prefix"][stack]
            if locations and weight > 0:
                stacks.append(Stack(tuple(locations), "root" if locations[-1] in roots else "", weight))
    return stacks
