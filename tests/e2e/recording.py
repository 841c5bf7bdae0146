"""Runs `clew record` as an ordinary user, and reads what it wrote: one OTLP ProfilesData message in zstd frames.

The reader is the tests' own, so that the writer's mistakes are not read back as they were meant. Fields:
opentelemetry-proto 1.11.0, opentelemetry/proto/profiles/v1development/profiles.proto.
"""

import collections
import ctypes
import ctypes.util
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

# A user of this run's own: the kernel's memory for rings is counted by user (perf_event_mlock_kb), and other recordings at
# the same time, of another checkout's tests for instance, would take from it.
ORDINARY_USER = 61184 + os.getpid() % 4000  # of the numbers that systemd keeps for users that come and go


# ---- protobuf (https://protobuf.dev/programming-guides/encoding/) ----


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def fields(data):
    """Every (number, value) of a message; a value is an int or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind == 5:
            value, at = int.from_bytes(data[at : at + 4], "little"), at + 4
        else:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, value


def packed(value):
    if isinstance(value, int):
        return [value]
    out, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        out.append(number)
    return out


def zstd_decompress(data):
    """All frames of a zstd file, by the system's libzstd."""
    lib = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    for name in ("ZSTD_createDStream", "ZSTD_decompressStream", "ZSTD_freeDStream"):
        getattr(lib, name).restype = ctypes.c_void_p if name == "ZSTD_createDStream" else ctypes.c_size_t

    class Buffer(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t)]

    stream = ctypes.c_void_p(lib.ZSTD_createDStream())
    source = ctypes.create_string_buffer(data, len(data))
    room = ctypes.create_string_buffer(1 << 20)
    into = Buffer(ctypes.cast(room, ctypes.c_void_p), len(room), 0)
    taken = Buffer(ctypes.cast(source, ctypes.c_void_p), len(data), 0)
    out = []
    while True:
        into.pos = 0
        result = lib.ZSTD_decompressStream(stream, ctypes.byref(into), ctypes.byref(taken))
        if lib.ZSTD_isError(ctypes.c_size_t(result)):
            raise ValueError("damaged zstd frame")
        out.append(room.raw[: into.pos])
        if taken.pos == taken.size and into.pos < into.size:
            break
    lib.ZSTD_freeDStream(stream)
    return b"".join(out)


# ---- the profile ----


@dataclass(frozen=True)
class Mapping:
    path: str
    build_id: str


@dataclass(frozen=True)
class Location:
    mapping: Mapping | None
    address: int
    names: tuple  # innermost inlined function first
    kind: str
    how: str
    exact: bool  # the interrupted instruction, not a return address
    signal: bool
    guessed: bool


@dataclass
class Stack:
    """Equal stacks with an equal end, counted."""

    locations: tuple  # leaf first
    end: str
    count: int
    pids: set = field(default_factory=set)


def _attribute(data, strings):
    key, value = 0, None
    for number, content in fields(data):
        if number == 1:
            key = content
        elif number == 2:
            for kind, inner in fields(content):
                if kind == 1:
                    value = inner.decode()
                elif kind in (2, 3):
                    value = inner
                elif kind == 5:
                    value = [next((v.decode() for n, v in fields(e) if n == 1), "") for _, e in fields(inner)]
                elif kind == 8:
                    value = strings[inner]
    return strings[key], value


class Profile:
    def __init__(self, path):
        with open(path, "rb") as file:
            data = zstd_decompress(file.read())
        tables = collections.defaultdict(list)
        profiles = []
        for number, value in fields(data):
            if number == 2:
                for table, entry in fields(value):
                    tables[table].append(entry)
            elif number == 1:
                for n, scopes in fields(value):
                    if n == 2:
                        profiles += [v for n2, v in fields(scopes) if n2 == 2]
        strings = [s.decode() for s in tables[5]]
        attributes = [_attribute(a, strings) for a in tables[6]]

        def attribute_map(indices):
            return dict(attributes[i] for i in indices)

        def message(entry):
            single, lists = {}, collections.defaultdict(list)
            for n, v in fields(entry):
                single[n] = v
                lists[n].append(v)
            return single, lists

        mappings = []
        for entry in tables[1]:
            one, lists = message(entry)
            found = attribute_map(i for v in lists[5] for i in packed(v))
            mappings.append(Mapping(strings[one.get(4, 0)], found.get("process.executable.build_id.gnu", "")))
        functions = [strings[message(entry)[0].get(1, 0)] for entry in tables[3]]
        locations = []
        for entry in tables[2]:
            one, lists = message(entry)
            found = attribute_map(i for v in lists[4] for i in packed(v))
            names = tuple(functions[message(line)[0].get(1, 0)] for line in lists[3])
            index = one.get(1, 0)
            locations.append(
                Location(
                    mappings[index] if index else None,
                    one.get(2, 0),
                    names,
                    found.get("profile.frame.type", ""),
                    found.get("clew.frame.how", ""),
                    bool(found.get("clew.frame.exact_pc")),
                    bool(found.get("clew.frame.signal")),
                    bool(found.get("clew.frame.guessed")),
                )
            )
        stacks = [tuple(locations[i] for _, v in fields(entry) for i in packed(v)) for entry in tables[7]]
        merged = {}
        self.samples = 0
        for profile in profiles:
            for number, value in fields(profile):
                if number != 2:
                    continue
                one, lists = message(value)
                found = attribute_map(i for v in lists[2] for i in packed(v))
                count = sum(len(packed(v)) for v in lists[4])
                key = (stacks[one.get(1, 0)], found.get("clew.trace.end", ""))
                stack = merged.setdefault(key, Stack(key[0], key[1], 0))
                stack.count += count
                stack.pids.add(found.get("process.pid"))
                self.samples += count
        self.stacks = list(merged.values())


# ---- recording ----


class CannotRecord(Exception):
    """Nothing can be recorded here: the test is skipped, with the reason."""


def paranoid():
    with open("/proc/sys/kernel/perf_event_paranoid") as file:
        return int(file.read())


def as_ordinary_user(command):
    """The command, run by an ordinary user where the caller is root."""
    if os.geteuid() != 0:
        return list(command)
    return ["setpriv", f"--reuid={ORDINARY_USER}", f"--regid={ORDINARY_USER}", "--clear-groups", *command]


def reachable(path):
    return subprocess.run(as_ordinary_user(["test", "-r", path, "-a", "-x", path])).returncode == 0


class Workplace:
    """A folder that the ordinary user may write to, with clew and programs where that user can reach them."""

    def __init__(self, clew):
        self.path = tempfile.mkdtemp(prefix="clew-e2e-")
        os.chmod(self.path, 0o777)
        self.clew = self.reach(os.path.abspath(clew))

    def reach(self, path):
        if reachable(path):
            return path
        copied = os.path.join(self.path, os.path.basename(path))
        shutil.copy(path, copied)
        os.chmod(copied, 0o755)
        return copied

    def reach_folder(self, path):
        path = os.path.abspath(path)
        if reachable(path):
            return path
        copied = os.path.join(self.path, "programs", os.path.basename(path))
        shutil.copytree(path, copied, dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "a+rX", self.path], check=True)
        os.chmod(self.path, 0o777)
        return copied

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass
class Recording:
    summary: dict
    profile: Profile
    folded: str
    file: str
    status: int
    stderr: str
    wall_s: float
    user_s: float
    report_s: float
    environment: dict = field(default_factory=dict)


def record(place, command, frequency=999, options=(), environment=None, timeout=600, collector="perf"):
    if collector == "bpf" and os.geteuid() != 0:
        raise CannotRecord("BPF programs need root")
    if collector == "perf" and paranoid() > 2:
        raise CannotRecord("perf_event_paranoid is above 2: an ordinary user may not record")
    output = os.path.join(place.path, "recording.otlp.zst")
    for old in (output, output + ".1"):
        if os.path.exists(old):
            os.unlink(old)
    full = [place.clew, "record", "-o", output, "-F", str(frequency), "--collector", collector, *options, "--", *command]
    if collector != "bpf":
        full = as_ordinary_user(full)
    env = dict(os.environ, HOME=place.path, TMPDIR="/tmp", **(environment or {}))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    run = subprocess.run(full, cwd=place.path, env=env, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    stderr = run.stderr.decode(errors="replace")
    if not os.path.exists(output):
        raise RuntimeError(f"no recording (status {run.returncode}): {stderr.strip()[-2000:]}")

    def report(form):
        out = subprocess.run(
            as_ordinary_user([place.clew, "report", "--format", form, output]), cwd=place.path, env=env, capture_output=True
        )
        if out.returncode != 0:
            raise RuntimeError(f"report --format {form}: status {out.returncode}: {out.stderr.decode(errors='replace')}")
        return out.stdout.decode()

    started = time.monotonic()
    folded = report("folded")
    report_s = time.monotonic() - started
    return Recording(
        json.loads(report("summary-json")),
        Profile(output),
        folded,
        output,
        run.returncode,
        stderr,
        wall,
        after.ru_utime - before.ru_utime,
        report_s,
    )
