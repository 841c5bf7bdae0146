"""The judge of other recorders' stacks: a root that it does not know would count against them."""

import gzip
import json
import os
import tempfile
import unittest

import record_peers
from elf import Elf

PROGRAMS = os.environ["CLEW_PROGRAMS"]


def stacks_of(path, *chains):
    """What is read from a profile as samply 0.13 writes it, of stacks of addresses in one file, leaf first."""
    thread = {
        "stringArray": ["f"],
        "resourceTable": {"lib": [0]},
        "funcTable": {"resource": [0], "name": [0]},
        "frameTable": {"func": [], "address": []},
        "stackTable": {"frame": [], "prefix": []},
        "samples": {"stack": [], "weight": None},
    }
    for chain in chains:
        prefix = None
        for address in reversed(chain):
            thread["frameTable"]["func"].append(0)
            thread["frameTable"]["address"].append(address)
            thread["stackTable"]["frame"].append(len(thread["frameTable"]["address"]) - 1)
            thread["stackTable"]["prefix"].append(prefix)
            prefix = len(thread["stackTable"]["frame"]) - 1
        thread["samples"]["stack"].append(prefix)
    with tempfile.NamedTemporaryFile(suffix=".json.gz") as file:
        with gzip.open(file.name, "wt") as packed:
            json.dump({"libs": [{"path": path, "codeId": None}], "threads": [thread]}, packed)
        return record_peers.samply_stacks(file.name, record_peers.SamplyRoots(os.environ["CLEW"]))


class SamplyTest(unittest.TestCase):
    def check(self, flavour, base):
        path = os.path.join(PROGRAMS, flavour, "plain")
        elf = Elf(path)
        entry = int.from_bytes(elf.data[24:32], "little")
        main = next(start for start, _, name in elf.functions if name == "main")
        whole, cut = stacks_of(path, [main - base, entry + 20 - base], [main - base])
        self.assertEqual([location.address for location in whole.locations], [main, entry + 20])
        self.assertEqual((whole.end, cut.end), ("root", ""))

    def test_a_program_that_can_lie_anywhere(self):
        self.check("debian", 0)

    def test_a_program_at_a_fixed_address(self):
        self.check("nopie", 0x400000)  # ld's default, as readelf -lW shows it


if __name__ == "__main__":
    unittest.main()
