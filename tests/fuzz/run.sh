#!/bin/sh
# run.sh PROGRAM SEEDS CORPUS: runs a libFuzzer program for $CLEW_FUZZ_SECONDS (30) over what is known so far and the seeds.
# An input that makes it fail is left beside the corpus, as CORPUS-crash-HASH.
set -eu
mkdir -p "$3"
set -- "$1" "$3" ${2:+$([ -d "$2" ] && echo "$2")}
exec "$1" -max_total_time="${CLEW_FUZZ_SECONDS:-30}" -timeout=10 -rss_limit_mb=3000 -artifact_prefix="$2-" -print_final_stats=1 \
  "$2" ${3:+"$3"}
