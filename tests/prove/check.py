"""Runs clew-prove on a command and demands that every chain is right: check.py [--wrong FUNCTION N] PROVE ARG... -- CMD...

With --wrong, exactly N chains must be wrong, all of them in FUNCTION (the control: a binary that lies)."""

import json
import os
import subprocess
import sys


def main():
    arguments = sys.argv[1:]
    function, wrong = None, 0
    if arguments[0] == "--wrong":
        function, wrong = arguments[1], int(arguments[2])
        arguments = arguments[3:]
    prove, *rest = arguments
    result = subprocess.run([prove, "--json", *rest], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    # The command's own output, of any kind, comes before.
    report = json.loads(result.stdout[result.stdout.rindex(b'{"instructions"') :])
    chains = report["right"] + report["wrong"] + sum(report["ended"].values())
    figures = {key: report[key] for key in ("instructions", "addresses", "right", "wrong", "ended", "peers")}
    print(json.dumps(figures))
    failures = []
    if chains == 0 or report["instructions"] < 10_000:
        failures.append("the command was not followed from its first instruction on")
    if report["wrong"] != wrong or report["ended"]:
        failures.append(f"{wrong} wrong and none ended early were expected")
    if "--faults" in rest:
        faults = report["faults"]
        print(json.dumps(faults))
        if faults["wrong"] or not all(faults["ended"].get(reason) for reason in ("unreadable", "not-mapped", "not-executable")):
            failures.append("a fault was answered wrongly, or never")
        if not report["undetectable"]:
            failures.append("no word became another return address")
    if {row["function"] for row in report["wrong_functions"]} != ({function} if function else set()):
        failures.append(f"wrong in {report['wrong_functions']}")
    if sum(row["count"] for row in report["wrong_functions"]) != wrong:
        failures.append("the rows do not add up")
    if result.returncode != (1 if wrong else 0):
        failures.append(f"exit status {result.returncode}")
    for failure in failures:
        print("FAILED:", failure)
    if failures:
        # Once more, for people. Another run's addresses may differ.
        subprocess.run([prove, *rest], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("CLEW_CACHE_DIR", "/tmp/clew-prove-cache")
    sys.exit(main())
