#!/usr/bin/python3
"""Recording beside perf and samply, the same programs by an ordinary user, in one run.

    record.py [--clew build/clew] [--build build/tests/programs] [--scale X] [--only REGEX] [--rounds N] [--slow-down] [--json FILE]

For each program: how many stacks reach their root; for those of tests/programs, whose right chains are written down, how
many are right from end to end; the bytes that a sample takes on disk; how long it takes to show the recording; and how
much longer the program runs while it is recorded (median of rounds, each recorder in turn). A peer that is absent, or that
is not allowed to record here, is skipped and named.

--slow-down measures instead what recording costs the program itself: its own CPU time, user and system, by each recorder
and clew's in-process collector, beside the same program alone in the same round.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(TOP, "tests", "e2e"))

import check  # noqa: E402
import completeness  # noqa: E402
import record_peers  # noqa: E402
import recording  # noqa: E402
import workloads  # noqa: E402
from truth import Truth  # noqa: E402

FLAVOUR = "debian"  # as the distribution builds: -O2, no frame pointers


def run(place, command):
    """Wall seconds and status of a command by the ordinary user."""
    env = dict(os.environ, HOME=place.path, TMPDIR="/tmp")
    started = time.monotonic()
    done = subprocess.run(recording.as_ordinary_user(command), cwd=place.path, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.monotonic() - started, done


# Runs a command, and writes the CPU seconds that it used to a file: as the kernel accounts them, to the microsecond.
MEASURED = """
import os, sys
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file: print(used.ru_utime + used.ru_stime, file=file)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def timed(command):
    started = time.monotonic()
    output = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
    return output, time.monotonic() - started


class Perf:
    name = "perf"

    def __init__(self, place):
        self.absent = None if shutil.which("perf") else "not installed"
        self.file = os.path.join(place.path, "perf.data")

    def command(self, command):
        return record_peers.perf_command(self.file, command)

    def look(self):
        """The stacks, and how long it takes to show them."""
        text, show = timed(["perf", "script", "--no-inline", "-f", "-i", self.file, "-F", "comm,tid,ip,sym,dso"])
        return record_peers.perf_stacks(text), show


class Samply:
    name = "samply"

    def __init__(self, place):
        found = shutil.which("samply")
        if not found:
            self.absent = "not installed"
            return
        self.absent = "it needs kernel.perf_event_paranoid 1 or less" if recording.paranoid() > 1 else None
        self.program = place.reach(found)
        self.file = os.path.join(place.path, "samply.json.gz")
        self.roots = record_peers.SamplyRoots(place.clew)

    def command(self, command):
        return [self.program, "record", "--save-only", "--no-open", "-r", "999", "-o", self.file, "--", *command]

    def look(self):
        return record_peers.samply_stacks(self.file, self.roots), None  # a browser shows it


class Clew:
    name = "clew"
    absent = None

    def __init__(self, place):
        self.place = place
        self.file = os.path.join(place.path, "clew.otlp.zst")

    def command(self, command):
        return [self.place.clew, "record", "--collector", "perf", "-o", self.file, "--", *command]

    def look(self):
        _, show = timed([self.place.clew, "report", "--format", "folded", self.file])
        return recording.Profile(self.file).stacks, show


class Inprocess(Clew):
    name = "inprocess"

    def command(self, command):
        return [self.place.clew, "record", "--collector", "inprocess", "-o", self.file, "--", *command]


def fail(name, recorder, done):
    sys.exit(f"{name} by {recorder.name if recorder else 'itself'}: status {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")


def slow_down(place, recorders, options):
    """Rows: by how many % a recorder lengthens a program's CPU time, the median of the rounds and its spread."""
    report = os.path.join(place.path, "used")
    rows = []
    print(f"{'program':26}{'recorder':>11}{'rounds':>8}{'median %':>10}{'quartiles':>16}{'all':>16}")
    for name, command, before, truth in programs(place, options):
        if truth is not None or not re.search(options.only, name):
            continue  # those of tests/programs run for a fixed time
        slower = {r.name: [] for r in recorders}
        for number in range(options.rounds):
            used = {}
            turns = [None, *recorders]
            for recorder in turns[number % len(turns) :] + turns[: number % len(turns)]:
                if before:
                    before()
                measured = ["/usr/bin/python3", "-c", MEASURED, report, *command]
                _, done = run(place, recorder.command(measured) if recorder else measured)
                if done.returncode != 0:
                    fail(name, recorder, done)
                with open(report) as file:
                    used[recorder.name if recorder else "bare"] = float(file.read())
            for recorder in recorders:
                slower[recorder.name].append(100.0 * (used[recorder.name] / used["bare"] - 1))
        for recorder, found in slower.items():
            low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else 3 * found
            print(f"{name:26}{recorder:>11}{len(found):>8}{middle:>10.1f}{f'{low:.1f} to {high:.1f}':>16}{f'{min(found):.1f} to {max(found):.1f}':>16}", flush=True)
            rows.append({"case": name, "what": "CPU time", "unit": "% more", "value": middle, "peer": recorder})
    return rows


def right(truth, stack):
    frames = [truth.frame(location) for location in stack.locations if location.kind != "kernel"]
    return stack.end == "root" and truth.chains.right(frames, True)


def programs(place, options):
    """Name, command, what is to be done before each run, and the right chains where they are known."""
    for workload in workloads.prepare(place, options.scale):
        yield workload.name, workload.command, workload.before, None
    for program in completeness.own_programs(options.build):
        flavour, name = program.split("/")
        if flavour != FLAVOUR or ":" in name:
            continue
        folder = os.path.join(options.build, flavour)
        command = [os.path.join(place.reach_folder(folder), name), str(1.5 * options.scale)]
        yield name, command, None, Truth(check.PROGRAMS, folder, name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clew", default=os.path.join(TOP, "build", "clew"))
    parser.add_argument("--build", default=os.path.join(TOP, "build", "tests", "programs"))
    parser.add_argument("--scale", type=float, default=1, help="how much work the programs have; 1: 1.5 to 6 seconds each")
    parser.add_argument("--only", default="", help="programs whose name matches")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slow-down", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    place = recording.Workplace(options.clew)
    rows = []
    try:
        recorders = [Clew(place), Perf(place), Samply(place)]
        for recorder in recorders:
            if recorder.absent:
                print(f"{recorder.name}: skipped, {recorder.absent}")
        recorders = [r for r in recorders if not r.absent]
        if options.slow_down:
            rows = slow_down(place, [recorders[0], Inprocess(place), *recorders[1:]], options)
            return
        print(f"{'program':26}{'recorder':>9}{'samples':>9}{'complete %':>12}{'right %':>9}{'bytes/sample':>14}{'show s':>9}{'slower %':>10}")
        for name, command, before, truth in programs(place, options):
            if not re.search(options.only, name):
                continue
            walls = {r.name: [] for r in recorders} | {"bare": []}
            for _ in range(options.rounds):
                for recorder in [None, *recorders]:
                    if before:
                        before()
                    wall, done = run(place, recorder.command(command) if recorder else command)
                    if done.returncode != 0:
                        fail(name, recorder, done)
                    walls[recorder.name if recorder else "bare"].append(wall)
            # openssl speed and the programs of tests/programs run for a fixed time.
            fixed_time = truth is not None or command[:2] == ["openssl", "speed"]
            seen = {}
            for recorder in recorders:
                stacks, show = recorder.look()
                samples = sum(s.count for s in stacks)
                seen[recorder.name] = found = {
                    "complete": 100.0 * sum(s.count for s in stacks if s.end == "root") / max(1, samples),
                    "right": None if truth is None else 100.0 * sum(s.count for s in stacks if right(truth, s)) / max(1, samples),
                    "bytes a sample": os.path.getsize(recorder.file) / max(1, samples),
                    "show": show,
                    "slower": None if fixed_time else 100.0 * (statistics.median(a / b for a, b in zip(walls[recorder.name], walls["bare"])) - 1),
                }

                def cell(value, form):
                    return "–" if value is None else format(value, form)

                print(
                    f"{name:26}{recorder.name:>9}{samples:>9,}{cell(found['complete'], '.2f'):>12}{cell(found['right'], '.2f'):>9}"
                    f"{cell(found['bytes a sample'], ',.1f'):>14}{cell(show, '.3f'):>9}{cell(found['slower'], '.1f'):>10}",
                    flush=True,
                )
                units = {"complete": "%", "right": "%", "bytes a sample": "bytes", "show": "s", "slower": "%"}
                rows += [{"case": name, "what": what, "unit": units[what], "value": value, "peer": recorder.name} for what, value in found.items() if value is not None]
            if "perf" in seen:
                ours, perf = seen["clew"], seen["perf"]
                print(f"{'':26}  perf ÷ clew: bytes a sample {perf['bytes a sample'] / ours['bytes a sample']:,.0f} ×, time to show {perf['show'] / ours['show']:,.0f} ×")
    finally:
        place.close()
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
