"""Judges a recording of one of tests/programs against its .chains file and the trace contract."""

import collections
import glob
import os
from dataclasses import dataclass, field

from chains import Chains, Frame
from elf import Elf, plain


class Truth:
    """What is known about a program before it runs: its chains, and the functions in each file built with it."""

    def __init__(self, source_folder, program_folder, name, static=False):
        self.chains = Chains().add_file(os.path.join(source_folder, "common.chains"))
        self.chains.add_file(os.path.join(source_folder, name + ".chains"))
        self.static = static
        self.stripped = os.path.exists(os.path.join(program_folder, name + ".full"))
        self.files = {}
        program = Elf(os.path.join(program_folder, name + (".full" if self.stripped else "")))
        for path in glob.glob(os.path.join(program_folder, "*.so")):
            elf = Elf(path)
            self.files[elf.build_id] = elf
        self.files[program.build_id] = program
        self.program = program
        self._system = {}

    def file_of(self, mapping):
        """Ours, by build-id."""
        return self.files.get(mapping.build_id) if mapping else None

    def system_file(self, mapping):
        if mapping is None or not mapping.path.startswith("/"):
            return None
        if mapping.path not in self._system:
            try:
                elf = Elf(mapping.path)
                self._system[mapping.path] = elf if elf.build_id == mapping.build_id else None
            except (OSError, ValueError):
                self._system[mapping.path] = None
        return self._system[mapping.path]

    def frame(self, location):
        """The frame as the truth sees it, from the address alone."""
        elf = self.file_of(location.mapping)
        if elf is None:
            return Frame(None, os.path.basename(location.mapping.path) if location.mapping else "?")
        address = location.address if location.exact else location.address - 1
        if elf.is_stub(address):
            return Frame(None, os.path.basename(elf.path), stub=True)
        name = elf.function(address)
        if self.static and elf is self.program and name not in self.chains.names:
            return Frame(None, "static")
        return Frame(name or "?")


@dataclass
class Verdict:
    samples: int = 0
    complete: int = 0
    lost: int = 0
    ends: dict = field(default_factory=dict)
    wrong: int = 0
    foreign_only: int = 0
    misnamed: int = 0
    problems: list = field(default_factory=list)  # lines, the most frequent first
    incomplete: list = field(default_factory=list)  # traces that ended early, the most frequent first
    broken: int = 0  # samples against T1, T3, T4
    guessed: int = 0

    @property
    def percent(self):
        return 100.0 * self.complete / self.samples if self.samples else 0.0


def judge(truth, recording):
    """Every sample against the chains; the summary against the samples."""
    verdict = Verdict(lost=recording.summary["lost"])
    problems = collections.Counter()
    ends = collections.Counter()
    incomplete = collections.Counter()
    for stack in recording.profile.stacks:
        verdict.samples += stack.count
        ends[stack.end] += stack.count
        complete = stack.end == "root"
        if complete:
            verdict.complete += stack.count
        if any(location.kind == "kernel" for location in stack.locations):
            locations = [location for location in stack.locations if location.kind != "kernel"]
        else:
            locations = list(stack.locations)
        frames = [truth.frame(location) for location in locations]
        text = ";".join(map(str, reversed(frames)))
        if frames and all(frame.own is None for frame in frames):
            verdict.foreign_only += stack.count
        where = " ".join(
            f"{os.path.basename(l.mapping.path) if l.mapping else '?'}+{l.address:#x}/{l.how}" for l in locations[:8]
        )
        if not complete:
            incomplete[f"ended {stack.end}: {text[-300:]} [leaf first: {where}]"] += stack.count
        kernel = [name for location in stack.locations if location.kind == "kernel" for name in location.names]
        # In exit and in execve: the user stack is gone, the kernel's is all there is.
        gone = not frames and any("exit" in name or "exec" in name or name.startswith("load_elf") for name in kernel)
        if not frames:
            text = "kernel only: " + ";".join(reversed(kernel))
        if not gone and not truth.chains.right(frames, complete):
            verdict.wrong += stack.count
            problems[f"wrong chain ({stack.end}): {text[-400:]} [leaf first: {where}]"] += stack.count
        broken = _contract(truth, locations, frames)
        if broken:
            verdict.broken += stack.count
            problems[f"{broken}: {text[-400:]}"] += stack.count
        for location, frame in zip(locations, frames):
            if frame.own and frame.own != "?" and not truth.stripped:
                printed = plain(location.names[-1]) if location.names else ""
                if printed != frame.own:
                    verdict.misnamed += stack.count
                    problems[f"misnamed: {frame.own} at {location.address:#x} is printed as {printed!r}"] += stack.count
        if any(location.guessed for location in locations):
            verdict.guessed += stack.count
    verdict.ends = {end: n for end, n in ends.most_common() if end != "root"}
    summary = recording.summary
    for key, expected in (("samples", verdict.samples), ("complete", verdict.complete)):
        if summary[key] != expected:
            problems[f"summary-json says {key} {summary[key]}, the profile has {expected}"] += 1
            verdict.broken += 1
    folded = sum(int(line.rsplit(" ", 1)[1]) for line in recording.folded.splitlines())
    if folded != verdict.samples:
        problems[f"folded has {folded} samples, the profile {verdict.samples}"] += 1
        verdict.broken += 1
    verdict.problems = [f"{count} × {line}" for line, count in problems.most_common()]
    verdict.incomplete = [f"{count} × {line}" for line, count in incomplete.most_common()]
    return verdict


def _contract(truth, locations, frames):
    """What T1, T3 and T4 forbid, as far as files on disk show it; "" where nothing is wrong."""
    for i, (location, frame) in enumerate(zip(locations, frames)):
        if location.mapping is None:
            return f"T4: frame {i} at {location.address:#x} lies in no mapping"
        elf = truth.file_of(location.mapping) or truth.system_file(location.mapping)
        if elf is None:
            continue
        address = location.address if location.exact else location.address - 1
        if not elf.is_code(address):
            return f"T4: frame {i} at {location.address:#x} of {location.mapping.path} is not executable"
        if i == 0:
            if not location.exact or location.how != "registers":
                return f"T1: the first frame is marked {location.how}, exact {location.exact}"
        elif not location.how:
            return f"T3: frame {i} does not say how it was found"
        # Stronger than T4, which exempts table steps: in our programs every caller but an interrupted one has called.
        elif not location.exact and i and not _uncalled(frame, frames) and not elf.follows_call(location.address):
            return f"T4: no call before frame {i} at {location.address:#x} of {location.mapping.path} ({location.how})"
    return ""


def system_contract(profile):
    """Programs that are not ours have no known chains; the trace contract holds for them all the same. Returns how many
    samples break it, and lines that say where."""
    files = {}
    problems = collections.Counter()
    for stack in profile.stacks:
        for i, location in enumerate(stack.locations):
            if location.kind == "kernel":
                continue
            if location.mapping is None:
                problems[f"T4: frame {i} at {location.address:#x} lies in no mapping"] += stack.count
                break
            path = location.mapping.path
            if path not in files:
                try:
                    elf = Elf(path)
                    files[path] = elf if elf.build_id == location.mapping.build_id else None
                except (OSError, ValueError):
                    files[path] = None
            elf = files[path]
            if elf is None:
                continue
            if not elf.is_code(location.address if location.exact else location.address - 1):
                problems[f"T4: frame {i} at {location.address:#x} of {path} is not executable"] += stack.count
                break
            vouched = location.exact or location.how in ("table", "sframe", "jit")
            if not vouched and not elf.follows_call(location.address):
                problems[f"T4: no call before frame {i} at {location.address:#x} of {path} ({location.how})"] += stack.count
                break
    return sum(problems.values()), [f"{count} × {line}" for line, count in problems.most_common(5)]


def ended_early(profile, count=6):
    """The most frequent incomplete traces of any program, a line each, root end first."""
    found = collections.Counter()
    for stack in profile.stacks:
        if stack.end != "root":
            frames = [
                f"{l.names[-1] if l.names else ''}<{os.path.basename(l.mapping.path) if l.mapping else '?'}+{l.address:#x} {l.how}>"
                for l in stack.locations
            ]
            found[f"ended {stack.end}: {';'.join(reversed(frames))[:260]} … leaf {frames[0] if frames else ''}"] += stack.count
    return [f"{n} × {line}" for line, n in found.most_common(count)]


def _uncalled(frame, frames):
    # What is returned to though nobody called from there: makecontext's trampoline in libc, which is a root, a signal
    # trampoline, and the entry of a coroutine of ours.
    return frame.own == "coroutine_entry" or frame is frames[-1] or frame.own is None
