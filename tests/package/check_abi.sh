#!/usr/bin/env bash
# Fails where the installed library's ABI is not what abi.txt says, and shows the difference.  check_abi.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --component library --prefix "$work/prefix" >/dev/null
library=$(find "$work/prefix" -name libclew.so)
include=$work/prefix/include

"$here/abi.sh" "$library" "$include" >"$work/abi"
if ! diff -u "$here/abi.txt" "$work/abi"; then
  cat <<END_OF_HELP
The ABI has changed. What is only new is a new minor version; where a line is gone or different, programs that were
linked before break: that is a new major version, which the SONAME carries. If it is meant, write it down:
  tests/package/abi.sh $1/libclew.so include >tests/package/abi.txt
END_OF_HELP
  exit 1
fi
[ "$(readlink "$library")" = "$(sed -n 's/^soname //p' "$here/abi.txt")" ] || { echo "libclew.so is no link to its SONAME"; exit 1; }

# Does it see what would break programs: a member moved, a prototype, an enumerator's value?
for change in 's/^  uint64_t pc;/  uint64_t pad, pc;/' 's/^CLEW_API bool clew_cursor_next(struct/& clew_cursor*, struct/' \
  's/CLEW_END_UNREADABLE = 4/CLEW_END_UNREADABLE = 15/'; do
  rm -rf "$work/changed"
  cp -r "$include" "$work/changed"
  sed -i "$change" "$work"/changed/clew/*.h
  "$here/abi.sh" "$library" "$work/changed" >"$work/changed_abi"
  if diff -q "$work/abi" "$work/changed_abi" >/dev/null; then
    echo "not noticed: $change"
    exit 1
  fi
done
