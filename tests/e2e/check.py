#!/usr/bin/python3
"""One end-to-end test: records a program of tests/programs by an ordinary user and judges every sample.

    check.py [--collector inprocess] --clew build/clew --build build/tests/programs FLAVOUR/NAME[:ARGUMENT] [SECONDS]

Exit status 0: right; 1: wrong, with the reasons; 77: cannot be run here.
"""

import argparse
import math
import os
import sys

import recording
from truth import Truth, judge

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "..", "programs")


# What ends the first samples of a thread, until clew has seen it and copies more of its stack, or stops it: that takes the
# longer the busier the machine is, and then does not happen again. Where clew does not adapt at all, it is most samples.
AT_THE_START = ("stack-cut", "other-stack")
START_SHARE = 0.05

# Samples a second of CPU time, at least, on a busy machine. cpu-clock at 999 Hz, of which kernel time yields none at paranoid
# 2; timers of CPU time no oftener than the kernel's tick, which is 250 Hz or more on Debian.
FEWEST = {"perf": 333, "inprocess": 80, "bpf": 333}


def allowed_incomplete(samples):
    """How many samples of a short run may end early.

    The claim is 0.1 % (docs/completeness.md judges it on long runs). A run of 1,500 samples that has exactly 0.1 % has 1.5
    of them on average and often 3; a test that failed then would fail by chance. Two more than 0.1 % still catches 0.3 %.
    """
    return math.floor(samples * 0.001) + 2


def run(place, build, program, seconds, collector):
    path, _, argument = program.partition(":")
    flavour, name = path.split("/")
    folder = os.path.join(build, flavour)
    truth = Truth(PROGRAMS, folder, name, static=flavour == "static")
    reached = place.reach_folder(folder)
    command = [os.path.join(reached, name), str(seconds)] + ([argument] if argument else [])
    result = recording.record(place, command, collector=collector)
    return judge(truth, result), result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clew", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--collector", default="perf", choices=sorted(FEWEST))
    parser.add_argument("program")
    parser.add_argument("seconds", type=float, nargs="?", default=1.5)
    options = parser.parse_args()
    place = recording.Workplace(options.clew)
    try:
        verdict, result = run(place, options.build, options.program, options.seconds, options.collector)
    except recording.CannotRecord as reason:
        print(f"SKIP: {reason}")
        return 77
    except RuntimeError as error:
        print(f"FAILED: {error}")
        return 1
    finally:
        place.close()
    print(
        f"{options.program}: {verdict.samples} samples, complete {verdict.complete} ({verdict.percent:.2f} %), lost {verdict.lost}, "
        f"ends {verdict.ends}, wrong {verdict.wrong}, broken {verdict.broken}, misnamed {verdict.misnamed}, "
        f"foreign only {verdict.foreign_only}, guessed {verdict.guessed}, {result.summary.get('bytes', 0)} bytes"
    )
    for line in verdict.problems[:12] + verdict.incomplete[:6]:
        print("  " + line)
    failures = []

    def must(condition, what):
        if not condition:
            failures.append(what)

    must(result.status == 0, f"clew record ended with {result.status}: {result.stderr.strip()[-500:]}")
    fewest = options.seconds * FEWEST[options.collector]
    must(verdict.samples >= fewest, f"only {verdict.samples} samples in {options.seconds} s of CPU")
    must(verdict.lost == 0, f"{verdict.lost} samples lost")
    must(verdict.wrong == 0, f"{verdict.wrong} samples with a wrong chain")
    must(verdict.broken == 0, f"{verdict.broken} against the trace contract")
    must(verdict.misnamed == 0, f"{verdict.misnamed} misnamed")
    # Chains that are all libc and ld.so say little; only a start, an end and a clone may look like that.
    must(verdict.foreign_only <= verdict.samples * 0.1 + 5, f"{verdict.foreign_only} samples without a function of ours")
    incomplete = verdict.samples - verdict.complete
    at_start = sum(verdict.ends.get(end, 0) for end in AT_THE_START)
    incomplete -= min(at_start, math.floor(verdict.samples * START_SHARE))
    must(incomplete <= allowed_incomplete(verdict.samples), f"{incomplete} samples incomplete: {verdict.ends}")
    for failure in failures:
        print("FAILED: " + failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
