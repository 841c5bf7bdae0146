#!/usr/bin/env bash
# Prints what a program that was linked with libclew relies upon: its name, the functions with their prototypes, and the
# layout of all that they take and give.  abi.sh LIBRARY INCLUDE_FOLDER >abi.txt
set -euo pipefail
export LC_ALL=C
library=$1
include=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A pointer to each function and each type: then the debug information describes them.
headers=("$include"/clew/*.h)
nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sort >"$work/functions"
grep -hoE '^(struct|enum) clew_[a-z_]* \{' "${headers[@]}" | cut -d ' ' -f 1,2 | sort >"$work/types"
grep -hoE '^typedef .*\(\*clew_[a-z_]*' "${headers[@]}" | sed 's/.*(\*//' | sort >>"$work/types"
{
  for header in "${headers[@]}"; do echo "#include <clew/${header##*/}>"; done
  sed 's/\([a-z_]*\)@.*/__typeof__(\1)* \1_;/' "$work/functions"
  sed 's/.*\(clew.*\)/& *\1_;/' "$work/types"
} >"$work/all.c"
cc -g -c "$work/all.c" -I"$include" -o "$work/all.o"

readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/soname \1/p'
cat >"$work/print.py" <<'END_OF_PRINT'
import gdb, os
def read(name):
    with open(os.environ["CLEW_ABI"] + "/" + name) as file:
        for line in file.read().splitlines():
            yield line, gdb.lookup_global_symbol(line.split("@")[0].split()[-1] + "_").type.target()
for line, type in read("functions"):
    print(f"\n{line}\n  {type}")
for line, type in read("types"):
    print(f"\n{line}: {type.sizeof} bytes")
    if type.code == gdb.TYPE_CODE_STRUCT:
        for field in type.fields():
            print(f"  {field.bitpos // 8}: {field.type} {field.name}, {field.type.sizeof} bytes")
    elif type.code == gdb.TYPE_CODE_ENUM:
        for field in type.fields():
            print(f"  {field.name} = {field.enumval}")
    else:
        print(f"  {type.strip_typedefs().target()}")
END_OF_PRINT
CLEW_ABI=$work gdb -nx -batch -x "$work/print.py" "$work/all.o"
