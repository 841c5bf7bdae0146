"""Proves the unwinder: runs clew-prove on each case and demands that every chain is right.

prove.py BUILD_DIR [--json FILE] [NAME...]: prints one table row a case, then the same cases' sampled instructions for the
peers that are built in."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PEERS = ("libunwind", "libdw")
PEER_SAMPLE = 200
LEAST_INSTRUCTIONS = 20_000_000
FLAVOURS = ("gcc_O0", "gcc_O1", "gcc_O2", "gcc_O3", "gcc_Os", "clang_O0", "clang_O1", "clang_O2", "clang_O3", "clang_Os",
            "lazy", "cet", "frame_pointer", "static")
# Of tests/programs, in the flavours in which they differ.
PROGRAMS = ("debian/throw", "clang/throw", "debian/dlopen", "debian/plt", "nopie/plt", "cet/plt", "o0/drap", "o3/drap",
            "clang/drap", "realign/drap", "debian/noreturn", "clang/noreturn", "debian/asm", "debian/expr", "debian/coroasm",
            "debian/dense", "clang/dense", "debian/vfork", "static/tail", "debian/deleted")


def cases(build, text):
    programs = build / "tests" / "programs"
    features = build / "tests" / "prove" / "programs"
    bash = "for ((i = 0; i < 300; i++)); do x=$((x + i)); y=${x//1/2}; done; echo $x $y"
    sql = ("create table t(a, b); insert into t values(1,'x'),(2,'y'),(3,'z'); create index i on t(b);"
           "select a, upper(b) from t where a > 1 order by b desc; select count(*), sum(a) from t group by b;")
    for flavour in FLAVOURS:
        yield f"features, {flavour}", ["--threads"], [features / f"features_{flavour}"]
    for program in PROGRAMS:
        yield f"{program.split('/')[1]}, {program.split('/')[0]}", ["--threads"], [programs / program, "0"]
    yield "ls -lR", [], ["ls", "-lR", SOURCE / "docs"]
    yield "sort", [], ["sort", "-r", text]
    yield "gzip", [], ["gzip", "-c", text]
    yield "openssl dgst", [], ["openssl", "dgst", "-sha512", text]
    yield "openssl enc", [], ["openssl", "enc", "-aes-256-cbc", "-pbkdf2", "-iter", "10", "-k", "word", "-in", text]
    yield "sqlite3", [], ["sqlite3", ":memory:", sql]
    yield "bash", [], ["bash", "-c", bash]
    yield "python3 -c", [], ["/usr/bin/python3", "-I", "-S", "-c", "print(sorted(str(i * i) for i in range(50))[:3])"]


def prove(build, options, command):
    """clew-prove's report, the command's own output before it left out."""
    run = [build / "clew-prove", "--json", *options, "--", *command]
    result = subprocess.run(run, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if result.returncode not in (0, 1):
        raise RuntimeError(f"clew-prove ended with {result.returncode}: {' '.join(map(str, run))}")
    return json.loads(result.stdout[result.stdout.rindex(b'{"instructions"'):])


def share(count):
    chains = count["right"] + count["wrong"] + count["ended"]
    return f"{100 * count['right'] / chains:.3f} %" if chains else "-"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--json", help="write the figures to this file too")
    parser.add_argument("names", nargs="*", help="cases; all of them without")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {name for name, _, _ in cases(arguments.build, "")}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    work = tempfile.mkdtemp(prefix="clew-prove-")
    os.environ["CLEW_CACHE_DIR"] = work + "/cache"
    text = work + "/text"
    pathlib.Path(text).write_text((SOURCE / "docs" / "architecture.md").read_text()[:2000])
    rows, failures, instructions, chains = [], [], 0, 0
    print("| program | instructions | addresses | clew | " + " | ".join(PEERS) + " |")
    print("|---|--:|--:|--:|" + "--:|" * len(PEERS))
    sampled = ["--sample", str(PEER_SAMPLE), *(f"--peer={peer}" for peer in PEERS)]
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    runs = [(name, pool.submit(prove, arguments.build, options, command),
             pool.submit(prove, arguments.build, [*options, *sampled], command))
            for name, options, command in cases(arguments.build, text)
            if not arguments.names or name in arguments.names]
    for name, every, judged in runs:
        report, peers = every.result(), judged.result()["peers"]
        ours = {"right": report["right"], "wrong": report["wrong"], "ended": sum(report["ended"].values())}
        if ours["wrong"] or ours["ended"]:
            failures.append(f"{name}: {ours['wrong']} wrong, {ours['ended']} ended: {report['wrong_functions'][:5]}")
        instructions += report["instructions"]
        chains += sum(ours.values())
        rows.append({"case": name, "instructions": report["instructions"], "addresses": report["addresses"], "clew": ours,
                     "peers": peers})
        print(f"| {name} | {report['instructions']:,} | {report['addresses']:,} | {share(ours)} | "
              + " | ".join(share(peers[peer]) for peer in PEERS) + " |", flush=True)
    total = {peer: {key: sum(row["peers"][peer][key] for row in rows) for key in ("right", "wrong", "ended")}
             for peer in PEERS}
    print(f"| **all** | {instructions:,} | | {100 * sum(row['clew']['right'] for row in rows) / max(chains, 1):.5f} % | "
          + " | ".join(share(total[peer]) for peer in PEERS) + " |")
    if not arguments.names and instructions < LEAST_INSTRUCTIONS:
        failures.append(f"{instructions} instructions are fewer than {LEAST_INSTRUCTIONS}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"rows": rows, "peers": total}))
    shutil.rmtree(work)
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
