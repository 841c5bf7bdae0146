"""Real programs as they are installed, each with a fixed amount of work: what completeness.py and bench/record.py record."""

import os
import random
import shutil
import subprocess
from dataclasses import dataclass

import recording

PYTHON_BENCHMARK = """
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
class Node:
    def __init__(self, depth): self.children = [Node(depth - 1) for _ in range(4)] if depth else []
    def count(self): return 1 + sum(child.count() for child in self.children)
words = {}
for i in range(%(rounds)d):
    fib(20); Node(5).count()
    for word in ("%%d" %% (j * 7919) for j in range(2000)): words[word] = words.get(word, 0) + 1
    sorted(words.items(), key=lambda item: (item[1], item[0]))
"""

PERL_BENCHMARK = r"""
sub fib { my $n = shift; return $n < 2 ? $n : fib($n - 1) + fib($n - 2) }
my %%seen; my $text = join(" ", map { "word$_ " . ($_ * 7919) } 1 .. 3000);
for my $round (1 .. %(rounds)d) {
  fib(17);
  while ($text =~ /(\w+?)(\d+)\s+(\d+)/g) { $seen{$1 . ($3 %% 97)} += $2 }
  my @order = sort { $seen{$a} <=> $seen{$b} || $a cmp $b } keys %%seen;
  (my $copy = $text) =~ s/(\d)(\d)/$2$1/g;
}
"""

SQLITE_QUERY = """
create table t(a integer, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < %(rows)d)
insert into t select (i * 7919) %% 10007, hex(i * 104729), i / 3.0 from n;
create index by_a on t(a);
select count(*), sum(x.c) from t x join t y on x.a = y.a where x.b < y.b;
select a, group_concat(b) from t group by a order by length(group_concat(b)) desc limit 5;
select count(distinct substr(b, 2, 3)) from t where b like '%%1%%2%%';
"""

CPLUSPLUS_FILE = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Row {
  std::map<std::string, std::vector<double>> values;
  std::unordered_map<int, std::set<std::string>> names;
  std::variant<int, double, std::string, std::vector<int>> value;
  void fill(int n) {
    for (int i = 0; i < n * N; i++) { values[std::to_string(i)].push_back(i); names[i %% N].insert(std::to_string(i * N)); }
    std::sort(values["1"].begin(), values["1"].end(), [](double a, double b) { return a * N < b; });
    value = std::vector<int>(N, n);
    std::visit([this](auto& v) { if constexpr (sizeof(v) > 8) names.clear(); }, value);
  }
  bool match(const std::string& text) {
    return std::regex_search(text, std::regex("(a|b)*c{" + std::to_string(N) + "}[0-9]+"));
  }
};
%(rows)s
int main() { return 0; }
"""


NAMES = [
    "openssl sha, aes, ghash",
    "openssl rsa, ecdsa, ecdh",
    "openssl aes-256-gcm",
    "openssl chacha20-poly1305",
    "xz -6",
    "g++ -O2, one large file",
    "gcc -O2, many small files",
    "python3",
    "perl",
    "sqlite3",
    "git gc",
]


@dataclass
class Workload:
    name: str
    command: list
    before: object = None  # called before each run, where the run uses its input up


def _git_repository(folder, commits):
    random.seed(1)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    files = {f"dir{i % 7}/file{i}.txt": [random.choice(words) + str(random.random()) for _ in range(400)] for i in range(120)}
    stream = []
    for number in range(commits):
        changed = files if number == 0 else random.sample(sorted(files), 6)
        stream.append(f"commit refs/heads/main\ncommitter A <a@example.org> {1600000000 + number} +0000\ndata 2\nc\n")
        for name in changed:
            lines = files[name]
            for _ in range(5):
                lines[random.randrange(len(lines))] = random.choice(words) + str(random.random())
            text = "\n".join(lines)
            stream.append(f"M 100644 inline {name}\ndata {len(text)}\n{text}\n")
    subprocess.run(recording.as_ordinary_user(["git", "init", "-q", "-b", "main", folder]), check=True)
    subprocess.run(
        recording.as_ordinary_user(["git", "-C", folder, "fast-import", "--quiet"]), input="".join(stream).encode(), check=True
    )


def prepare(place, scale=1.0):
    """The workloads, their inputs made in `place`. At scale 1 each takes 2 to 6 seconds of CPU."""
    inputs = os.path.join(place.path, "inputs")
    os.makedirs(inputs, exist_ok=True)
    os.chmod(inputs, 0o777)

    def write(name, text):
        path = os.path.join(inputs, name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(path, 0o644)
        return path

    data = b""
    for name in sorted(os.listdir("/usr/bin")):
        path = os.path.join("/usr/bin", name)
        if os.path.isfile(path) and len(data) < 8_000_000 * scale:
            with open(path, "rb") as file:
                data += file.read(400_000)
    xz_input = write("data", data)
    rows = "\n".join(f"template struct Row<{n}>;" for n in range(1, 2 + max(1, int(3 * scale))))
    big = write("big.cpp", CPLUSPLUS_FILE % {"rows": rows})
    small = [write(f"small{i}.c", f'#include <stdio.h>\nint f{i}(int n) {{ for (int i = 0; i < n; i++) printf("%d", i * {i}); return n; }}\n') for i in range(4)]
    query = write("query.sql", SQLITE_QUERY % {"rows": int(300_000 * scale)})
    repository = os.path.join(inputs, "repository")
    _git_repository(repository, int(350 * scale))
    working = os.path.join(inputs, "working")

    def fresh_repository():
        shutil.rmtree(working, ignore_errors=True)
        subprocess.run(recording.as_ordinary_user(["cp", "-r", repository, working]), check=True)

    seconds = str(max(1, round(scale)))
    openssl = ["openssl", "speed", "-seconds", seconds]
    openssl_long = ["openssl", "speed", "-seconds", str(4 * int(seconds)), "-bytes", "8192"]  # one algorithm
    compile_small = " ".join(f"gcc -O2 -c {path} -o /dev/null;" for path in small)
    commands = [
        openssl + ["-bytes", "8192", "sha256", "sha512", "aes-256-cbc", "ghash"],
        openssl + ["rsa2048", "ecdsap256", "ecdhx25519"],
        openssl_long + ["-evp", "aes-256-gcm"],
        openssl_long + ["-evp", "chacha20-poly1305"],
        ["xz", "-6", "-T1", "-k", "-c", xz_input],
        ["g++", "-O2", "-c", big, "-o", "/dev/null"],
        ["sh", "-c", f"for i in $(seq {max(1, int(40 * scale))}); do {compile_small} done"],
        ["/usr/bin/python3", "-c", PYTHON_BENCHMARK % {"rounds": int(1400 * scale)}],
        ["perl", "-e", PERL_BENCHMARK % {"rounds": int(500 * scale)}],
        ["sqlite3", "-batch", ":memory:", f".read {query}"],
        # The repository is the ordinary user's, also where root records.
        ["git", "-C", working, "-c", "safe.directory=*", "gc", "--aggressive", "--prune=now", "--quiet"],
    ]
    return [Workload(name, command, fresh_repository if name == "git gc" else None) for name, command in zip(NAMES, commands)]
