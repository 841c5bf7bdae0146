#!/usr/bin/python3
"""The whole table of docs/completeness.md: every program, recorded by an ordinary user.

    completeness.py [--collector inprocess] [--clew build/clew] [--build build/tests/programs] [--seconds S] [--scale X] [--only REGEX] [--json FILE]

Prints a Markdown table as it goes, then what was wrong. Exit status 1 where a program misses the claim: 99.9 % complete,
0 lost, no wrong chain.
"""

import argparse
import glob
import json
import os
import re
import sys

import check
import recording
import workloads
from truth import ended_early, system_contract

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..", "..")
FLAVOURS = ["debian", "o0", "o3", "clang", "nopie", "cet", "realign", "static", "stripped"]
ARGUMENTS = {"deleted": ["", "memfd"]}


def own_programs(build):
    for flavour in FLAVOURS:
        for source in sorted(glob.glob(os.path.join(check.PROGRAMS, "*.chains"))):
            name = os.path.basename(source).removesuffix(".chains")
            if os.path.exists(os.path.join(build, flavour, name)):
                for argument in ARGUMENTS.get(name, [""]):
                    yield f"{flavour}/{name}" + (f":{argument}" if argument else "")


def row(name, samples, complete, lost, ends, wrong, size):
    percent = 100.0 * complete / samples if samples else 0.0
    # Never rounded up to 100.
    shown = f"{int(percent * 1000) / 1000:.3f}"
    reasons = ", ".join(f"{end} {count}" for end, count in ends.items() if end != "root") or "–"
    print(f"| {name} | {samples:,} | {shown} | {lost} | {reasons} | {wrong} | {size:.1f} |", flush=True)
    return {"program": name, "samples": samples, "complete": complete, "lost": lost, "ends": ends, "wrong": wrong, "bytes_per_sample": size}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clew", default=os.path.join(TOP, "build", "clew"))
    parser.add_argument("--build", default=os.path.join(TOP, "build", "tests", "programs"))
    parser.add_argument("--seconds", type=float, default=5, help="CPU seconds of each program of ours")
    parser.add_argument("--scale", type=float, default=3, help="how much work the real programs have")
    parser.add_argument("--only", default="", help="programs whose name matches")
    parser.add_argument("--collector", default="perf", choices=sorted(check.FEWEST))
    parser.add_argument("--json")
    options = parser.parse_args()
    place = recording.Workplace(options.clew)
    rows, failures, problems = [], [], []

    def judge(entry, wrong_lines):
        rows.append(entry)
        name, samples = entry["program"], entry["samples"]
        if not samples or entry["complete"] < 0.999 * samples or entry["lost"] or entry["wrong"]:
            failures.append(name)
        problems.extend(f"{name}: {line}" for line in wrong_lines)

    print("| program | samples | complete % | lost | incomplete because | wrong chains | bytes a sample |")
    print("|---|--:|--:|--:|---|--:|--:|")
    try:
        chosen = [name for name in workloads.NAMES if re.search(options.only, name)]
        for workload in workloads.prepare(place, options.scale) if chosen else []:
            if workload.name not in chosen:
                continue
            if workload.before:
                workload.before()
            result = recording.record(place, workload.command, collector=options.collector)
            if result.status != 0:
                failures.append(workload.name)
                problems.append(f"{workload.name}: status {result.status}: {result.stderr.strip()[-300:]}")
                continue
            broken, lines = system_contract(result.profile)
            summary = result.summary
            size = summary["bytes"] / max(1, summary["samples"])
            judge(row(workload.name, summary["samples"], summary["complete"], summary["lost"], summary["end_reasons"], broken, size), lines + ended_early(result.profile))
        for program in own_programs(options.build):
            if options.only and not re.search(options.only, program):
                continue
            try:
                verdict, result = check.run(place, options.build, program, options.seconds, options.collector)
            except RuntimeError as error:
                failures.append(program)
                problems.append(f"{program}: {error}")
                continue
            size = result.summary["bytes"] / max(1, verdict.samples)
            wrong = verdict.wrong + verdict.broken + verdict.misnamed
            judge(row(program, verdict.samples, verdict.complete, verdict.lost, verdict.ends, wrong, size), verdict.problems[:5] + verdict.incomplete[:4])
    finally:
        place.close()
    samples, complete = sum(r["samples"] for r in rows), sum(r["complete"] for r in rows)
    if samples:
        print(f"\n{len(rows)} programs, {samples:,} samples, {100.0 * complete / samples:.4f} % complete, "
              f"{sum(r['lost'] for r in rows)} lost, {sum(r['wrong'] for r in rows)} wrong")
    for line in problems:
        print("  " + line)
    print("below the claim: " + (", ".join(failures) or "none"))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows, "problems": problems}, file, indent=1)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
