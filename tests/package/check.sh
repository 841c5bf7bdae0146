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
declared=$(grep -ho 'clew_[a-z_]*(' "$work/prefix/include/clew/unwind.h" | tr -d '(' | sort -u | grep -v '^clew_end')
visible=$(nm -D --defined-only "$lib/libclew.so" | awk '$2 == "T" {sub(/@.*/, "", $3); print $3}' | sort -u)
[ "$declared" = "$visible" ] || { echo "visible symbols differ:"; diff <(echo "$declared") <(echo "$visible"); exit 1; }
needed=$(readelf -d "$lib/libclew.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -v -e '^libc\.so' -e '^ld-linux' || true)
[ -z "$needed" ] || { echo "libclew needs more than libc: $needed"; exit 1; }

mkdir "$work/consumer"
cp "$here"/consumer.c* "$work/consumer"
cp "$here/CMakeLists.in" "$work/consumer/CMakeLists.txt"
export CLEW_CACHE_DIR=$work/cache
cmake -S "$work/consumer" -B "$work/out" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/out" >/dev/null
"$work/out/shared"
"$work/out/static"
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
# The package names the prefix that it was configured for; this one is elsewhere.
cc -Wall -Werror "$here/consumer.c" $(pkg-config --define-variable=prefix="$work/prefix" --cflags --libs clew) -o "$work/by-pkg-config"
"$work/by-pkg-config"
cc "$here/consumer.c" -I"$work/prefix/include" "$lib/libclew.a" -lstdc++ -static-pie -o "$work/static-pie"
"$work/static-pie"
