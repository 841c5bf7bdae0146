#!/usr/bin/env bash
# Installs libclew into an empty folder and uses it from there, by find_package and by pkg-config; checks what it shows
# and what it needs.  check.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component library --prefix "$work/prefix" >/dev/null
lib=$(dirname "$(find "$work/prefix" -name libclew.so)")

# Visible: the functions that the header declares, all of them and no other.
declared=$(grep -ho 'clew_[a-z_]*(' "$work"/prefix/include/clew/{unwind,remote}.h | tr -d '(' | sort -u | grep -v -e '^clew_end' -e '^clew_read')
visible=$(nm -D --defined-only "$lib/libclew.so" | awk '$2 == "T" {sub(/@.*/, "", $3); print $3}' | sort -u)
[ "$declared" = "$visible" ] || { echo "visible symbols differ:"; diff <(echo "$declared") <(echo "$visible"); exit 1; }
needed=$(readelf -d "$lib/libclew.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -v -e '^libc\.so' -e '^ld-linux' || true)
[ -z "$needed" ] || { echo "libclew needs more than libc: $needed"; exit 1; }

mkdir "$work/consumer"
cp "$here"/consumer.c* "$here/remote.c" "$work/consumer"
# The worked example, as the page has it.
awk '/^```cpp/ {block = ""; inside = 1; next} /^```/ {if (inside && block ~ /int main/) printf "%s", block; inside = 0}
  inside {block = block $0 "\n"}' "$here/../../docs/library.md" >"$work/consumer/example.cpp"
cp "$here/CMakeLists.in" "$work/consumer/CMakeLists.txt"
export CLEW_CACHE_DIR=$work/cache
cmake -S "$work/consumer" -B "$work/out" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/out" >/dev/null
"$work/out/shared"
"$work/out/static"
"$work/out/remote"
# inner, outer and main of the waiting program, one after the other, by the symbols of the program.
cc -no-pie -O2 "$here/target.c" -o "$work/target"
coproc target { exec "$work/target"; }
target_pid=$target_PID
trap 'kill "$target_pid"; rm -rf "$work"' EXIT
read -r _ <&"${target[0]}"
until grep -q -e pause -e '^34 ' "/proc/$target_pid/wchan" "/proc/$target_pid/syscall" 2>/dev/null; do sleep 0.01; done
"$work/out/example" "$target_pid" >"$work/chain"
nm -S "$work/target" | python3 -c '
import sys
functions = [(int(at, 16), int(size, 16), name) for at, size, _, name in (line.split() for line in sys.stdin if line.count(" ") == 3)]
pcs = [int(line, 16) for line in open(sys.argv[1]).read().split() if line.startswith("0x")]
names = [name for pc in pcs for at, size, name in functions if at < pc <= at + size]
assert names[:3] == ["inner", "outer", "main"], names
' "$work/chain"
grep -q '^root$' "$work/chain"
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
# The package names the prefix that it was configured for; this one is elsewhere.
cc -Wall -Werror "$here/consumer.c" $(pkg-config --define-variable=prefix="$work/prefix" --cflags --libs clew) -o "$work/by-pkg-config"
"$work/by-pkg-config"
cc "$here/consumer.c" -I"$work/prefix/include" "$lib/libclew.a" -lstdc++ -static-pie -o "$work/static-pie"
"$work/static-pie"
