"""Other recorders, run on the same programs: what they recorded, as frames that tests/e2e/truth.py can judge."""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))

from recording import Location, Mapping, Stack  # noqa: E402

PERF_FRAME = re.compile(r"^\s+([0-9a-f]+) (.*) \(([^()]*(?:\([^()]*\))?[^()]*)\)$")


def perf_command(output, command, frequency=999, options=()):
    """perf as its documentation says for programs without frame pointers; `cpu-clock:u` is what an ordinary user gets on
    a machine without hardware counters."""
    return ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", str(frequency), "--call-graph", "dwarf", *options, "-o", output, "--", *command]


def perf_script(data, build_ids):
    """The text of `perf script` as stacks. perf prints addresses in the file, already one less for a caller."""
    run = subprocess.run(["perf", "script", "--no-inline", "-f", "-i", data, "-F", "comm,tid,ip,sym,dso"], capture_output=True, text=True, errors="replace")
    stacks = []
    for block in run.stdout.split("\n\n"):
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
            mapping = Mapping(path, build_ids.get(path, ""))
            locations.append(Location(mapping, address, (name,), "native", "perf", True, False, False))
        if block.strip():
            stacks.append(Stack(tuple(locations), "", 1))
    return stacks, run.stdout
