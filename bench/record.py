#!/usr/bin/python3
"""Recording beside perf and samply, the same programs by an ordinary user, in one run.

    record.py [--clew build/clew] [--scale X] [--only REGEX] [--rounds N] [--json FILE]

For each program: how many stacks reach their root, the bytes that a sample takes on disk, how long it takes to show the
recording, and how much longer the program runs while it is recorded (median of rounds, each recorder in turn).

perf's stacks are complete where they end in the program's or the dynamic linker's start, or a thread's; that is judged by
names, or by __libc_start_main having a caller, as programs are stripped. A peer that is absent is skipped and named.
"""

import argparse
import glob
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

import recording  # noqa: E402
import workloads  # noqa: E402
import record_peers  # noqa: E402

ROOTS = {"_start", "clone", "clone3", "__clone", "__clone3", "_dl_start_user"}


def run(place, command):
    """Wall seconds and status of a command by the ordinary user."""
    env = dict(os.environ, HOME=place.path, TMPDIR="/tmp")
    started = time.monotonic()
    done = subprocess.run(recording.as_ordinary_user(command), cwd=place.path, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.monotonic() - started, done


def complete(stack):
    outer = stack.locations[-1].names[0] if stack.locations and stack.locations[-1].names else ""
    inner = stack.locations[-2].names[0] if len(stack.locations) > 1 and stack.locations[-2].names else ""
    return outer.split("@")[0] in ROOTS or inner.startswith("__libc_start_main")


class Perf:
    name = "perf"

    def __init__(self, place):
        self.present = shutil.which("perf") is not None
        self.file = os.path.join(place.path, "perf.data")

    def command(self, command):
        return record_peers.perf_command(self.file, command)

    def look(self, place):
        started = time.monotonic()
        with open(os.devnull, "w") as sink:
            subprocess.run(["perf", "script", "--no-inline", "-f", "-i", self.file], stdout=sink, stderr=sink)
        show = time.monotonic() - started
        stacks, _ = record_peers.perf_script(self.file, {})
        return {"samples": len(stacks), "complete": sum(complete(s) for s in stacks), "bytes": os.path.getsize(self.file), "show_s": show}


class Samply:
    name = "samply"

    def __init__(self, place):
        found = shutil.which("samply")
        self.present = found is not None
        self.program = place.reach(found) if found else None
        self.file = os.path.join(place.path, "samply.json.gz")

    def command(self, command):
        return [self.program, "record", "--save-only", "--no-open", "-r", "999", "-o", self.file, "--", *command]

    def look(self, place):
        return {"bytes": sum(os.path.getsize(f) for f in glob.glob(self.file))}


class Clew:
    name = "clew"
    present = True

    def __init__(self, place):
        self.place = place
        self.file = os.path.join(place.path, "clew.otlp.zst")

    def command(self, command):
        return [self.place.clew, "record", "-o", self.file, "--", *command]

    def look(self, place):
        text = subprocess.run([place.clew, "report", "--format", "summary-json", self.file], capture_output=True, text=True).stdout
        summary = json.loads(text)
        started = time.monotonic()
        subprocess.run([place.clew, "report", "--format", "folded", self.file], stdout=subprocess.DEVNULL)
        show = time.monotonic() - started
        return {"samples": summary["samples"], "complete": summary["complete"], "lost": summary["lost"], "bytes": os.path.getsize(self.file), "show_s": show}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clew", default=os.path.join(TOP, "build", "clew"))
    parser.add_argument("--scale", type=float, default=1, help="how much work the programs have; 1: 2 to 6 seconds each")
    parser.add_argument("--only", default="", help="programs whose name matches")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    place = recording.Workplace(options.clew)
    rows = []
    try:
        recorders = [Clew(place), Perf(place), Samply(place)]
        for absent in (r for r in recorders if not r.present):
            print(f"{absent.name} is not installed: skipped")
        recorders = [r for r in recorders if r.present]
        print(f"{'program':26}{'recorder':>9}{'samples':>9}{'complete %':>12}{'bytes/sample':>14}{'show s':>9}{'slower %':>10}")
        for workload in workloads.prepare(place, options.scale):
            if not re.search(options.only, workload.name):
                continue
            walls = {r.name: [] for r in recorders} | {"bare": []}
            seen = {}
            for _ in range(options.rounds):
                for recorder in [None, *recorders]:
                    if workload.before:
                        workload.before()
                    command = recorder.command(workload.command) if recorder else workload.command
                    wall, done = run(place, command)
                    if done.returncode != 0:
                        sys.exit(f"{workload.name}: {' '.join(command[:3])}...: status {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
                    walls[recorder.name if recorder else "bare"].append(wall)
            for recorder in recorders:
                look = seen[recorder.name] = recorder.look(place)
                samples = look.get("samples")
                percent = 100.0 * look["complete"] / samples if samples else None
                each = look["bytes"] / samples if samples else None
                # openssl speed runs for a fixed time.
                fixed_time = workload.command[:2] == ["openssl", "speed"]
                slower = None if fixed_time else 100.0 * (statistics.median(a / b for a, b in zip(walls[recorder.name], walls["bare"])) - 1)
                show = look.get("show_s")

                def cell(value, form):
                    return "–" if value is None else format(value, form)

                print(f"{workload.name:26}{recorder.name:>9}{cell(samples, ','):>9}{cell(percent, '.2f'):>12}{cell(each, ',.1f'):>14}{cell(show, '.3f'):>9}{cell(slower, '.1f'):>10}", flush=True)
                for what, unit, value in (("complete", "%", percent), ("bytes a sample", "bytes", each), ("show", "s", show), ("slower", "%", slower)):
                    if value is not None:
                        rows.append({"case": workload.name, "what": what, "unit": unit, "value": value, "peer": recorder.name})
            ours, perf = seen["clew"], seen.get("perf")
            if perf and perf["samples"]:
                print(f"{'':26}  perf ÷ clew: bytes a sample {perf['bytes'] / perf['samples'] / (ours['bytes'] / ours['samples']):,.0f} ×, time to show {perf['show_s'] / ours['show_s']:,.0f} ×")
    finally:
        place.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
