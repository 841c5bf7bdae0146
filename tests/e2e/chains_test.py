"""The checker itself: it must reject what is wrong, or nothing that it passes means anything."""

import glob
import os
import unittest

from chains import Chains, Frame
from elf import Elf, plain

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs")


def trace(text):
    """Frames leaf first from a chain written root first."""
    frames = []
    for word in text.split():
        if word == "~plt":
            frames.append(Frame(None, "program", stub=True))
        elif word.startswith("~"):
            frames.append(Frame(None, word[1:]))
        else:
            frames.append(Frame(word))
    return frames[::-1]


class ChainsTest(unittest.TestCase):
    def chains(self, *lines):
        return Chains().add_text("\n".join(lines))

    def test_complete_trace_matches_from_root_to_leaf(self):
        chains = self.chains("let start = _start ~{2}", "$start main (a b? | c)")
        for good in ("_start ~libc ~libc main a", "_start ~libc ~libc main a b", "_start ~libc ~libc main c"):
            self.assertTrue(chains.right(trace(good), True), good)
        for bad in (
            "main a",  # no root
            "_start ~libc main a",  # a frame left out
            "_start ~libc ~libc ~libc main a",  # a frame too many
            "_start ~libc ~libc main b",  # the caller skipped
            "_start ~libc ~libc main",  # the leaf lost
            "_start ~libc ~libc main c b",  # a wrong caller
            "_start ~libc ~libc main a a b",
            "",
        ):
            self.assertFalse(chains.right(trace(bad), True), bad)

    def test_incomplete_trace_matches_the_leaf_end(self):
        chains = self.chains("_start ~{2} main a b")
        for good in ("b", "a b", "main a b", "~libc main a b"):
            self.assertTrue(chains.right(trace(good), False), good)
        for bad in ("a", "main a", "main b", "x b"):
            self.assertFalse(chains.right(trace(bad), False), bad)

    def test_foreign_frames_match_only_where_foreign(self):
        chains = self.chains("main ~* ", "main ~+ f", "g ~plt ~ld*", "h ~libc ~vdso*")
        for good in ("main", "main ~libc ~ld", "main ~libc f", "g ~plt", "g ~plt ~ld-linux-x86-64.so.2", "h ~libc.so.6 ~[vdso]"):
            self.assertTrue(chains.right(trace(good), True), good)
        for bad in ("main f", "main ~libc f f", "g ~libc", "g ~plt ~libc", "h ~libc ~libm"):
            self.assertFalse(chains.right(trace(bad), True), bad)

    def test_constructors_and_destructors(self):
        chains = Chains().add_file(PROGRAMS + "/common.chains")
        for good in (
            "~ld ~ld _init",
            "~ld ~ld frame_dummy register_tm_clones",
            "_start ~libc ~libc frame_dummy",
            "_start ~libc ~libc ~libc ~libc ~ld ~ld deregister_tm_clones",
            "_start ~libc ~libc ~libc ~libc ~ld ~ld __do_global_dtors_aux ~libc ~libc",
        ):
            self.assertTrue(chains.right(trace(good), True), good)
        for bad in ("frame_dummy", "_start frame_dummy ~libc main", "_start ~libc ~ld __do_global_dtors_aux main", "_start ~libc ~libc ?"):
            self.assertFalse(chains.right(trace(bad), True), bad)

    def test_counted_repetition(self):
        chains = self.chains("main f{3} g", "main f{1,2}")
        for good in ("main f f f g", "main f", "main f f"):
            self.assertTrue(chains.right(trace(good), True), good)
        for bad in ("main f f g", "main f f f f g", "main f f f", "main"):
            self.assertFalse(chains.right(trace(bad), True), bad)

    def test_a_mistake_in_a_file_is_named(self):
        for bad in ("main (a", "main ) a", "main $unknown", "* a", "main %"):
            with self.assertRaises(ValueError):
                self.chains(bad)

    def test_every_file_reads(self):
        files = sorted(glob.glob(PROGRAMS + "/*.chains"))
        self.assertGreater(len(files), 15)
        for path in files:
            chains = Chains().add_file(PROGRAMS + "/common.chains")
            if not path.endswith("common.chains"):
                chains.add_file(path)
            self.assertIn("main", chains.names)

    def test_every_function_is_in_a_chain(self):
        # A function that no chain names is a wrong chain the day that a sample falls into it. At -O0 nothing is inlined;
        # what differs between flavours is the compiler's start code, which common.chains names.
        if not os.environ.get("CLEW_PROGRAMS"):
            self.skipTest("CLEW_PROGRAMS does not say where tests/programs are built")
        folder = os.path.join(os.environ["CLEW_PROGRAMS"], "o0")
        names = sorted(name for name in os.listdir(folder) if os.path.exists(f"{PROGRAMS}/{name}.chains"))
        self.assertGreater(len(names), 15)
        missing = []
        for name in names:
            chains = Chains().add_file(PROGRAMS + "/common.chains").add_file(f"{PROGRAMS}/{name}.chains")
            functions = {plain(function) for _, _, function in Elf(os.path.join(folder, name)).functions}
            own = {function for function in functions if not function.startswith(("std::", "__gnu_cxx::", "operator"))}
            missing += [f"{name}: {function}" for function in sorted(own - chains.names - {"burn"})]  # in burn.h for all
        self.assertEqual(missing, [])


class ElfTest(unittest.TestCase):
    def test_plain_names(self):
        self.assertEqual(plain("burn(unsigned long)"), "burn")
        self.assertEqual(plain("Guard::~Guard()"), "Guard::~Guard")
        self.assertEqual(plain("thrower.cold"), "thrower")
        self.assertEqual(plain("f(int) [clone .cold]"), "f")

    def test_start_and_end_code_has_names(self):
        # crtstuff's functions have no size; gcc has put them in front of ours since ever, each at a multiple of 16.
        if not os.environ.get("CLEW_PROGRAMS"):
            self.skipTest("CLEW_PROGRAMS does not say where tests/programs are built")
        elf = Elf(os.path.join(os.environ["CLEW_PROGRAMS"], "debian", "plain"))
        starts = {name: start for start, _, name in elf.functions}
        for name in ("deregister_tm_clones", "register_tm_clones", "__do_global_dtors_aux", "frame_dummy", "_init", "_fini"):
            self.assertEqual(elf.function(starts[name]), name)
            self.assertEqual(elf.function(starts[name] + 4), name)
        self.assertEqual(elf.function(starts["main"]), "main")

    def test_call_before(self):
        elf = object.__new__(Elf)
        for text, expected in (
            ("90909090e811223344", True),  # call rel32
            ("90909090909090ffd0", True),  # call *%rax
            ("909090909090 41ffd4", True),  # call *%r12
            ("9090909090 90ff5010", True),  # call *16(%rax)
            ("909090 ff1511223344", True),  # call *disp(%rip)
            ("90 42ff94e011223344", True),  # call *disp(%rax,%r12,8)
            ("90909090e911223344", False),  # jmp rel32
            ("90909090909090ffe0", False),  # jmp *%rax
            ("909090909090909090", False),
        ):
            code = bytes.fromhex(text.replace(" ", ""))
            elf.segments = [(0, len(code), 0, len(code), True)]
            elf.data = code
            self.assertEqual(elf.follows_call(len(code)), expected, text)


if __name__ == "__main__":
    unittest.main()
