#!/bin/sh
# make bench: every figure beside its limit of the same run, as a table and in bench.json.
# Needs 20 GB of memory, and 9 GB on the drive of BENCH_DIR; takes some minutes.
set -eu
here=${1:-.} source=${2:-.} dir=${BENCH_DIR:-${TMPDIR:-/tmp}}/laguna-bench
rows=$here/bench.rows
rm -f "$rows"
mkdir -p "$dir"
trap 'rm -rf "$dir"' EXIT

"$here"/tests/bench_kernels --json "$rows" || missed=1
"$here"/tests/mkmodel --like "$source/models/nano" --out "$dir/model" --preset s21 --layers 6 \
    --format w4a16 --shards 2
cat "$dir"/model/*.safetensors >/dev/null
"$here"/tests/bench_step "$dir/model" start "$rows" || missed=1
"$here"/tests/bench_step "$dir/model" auto "$rows" || missed=1
"$here"/tests/bench_tiers "$dir/model" "$rows" || missed=1
"$here"/tests/bench_stream --json "$rows" "$dir"/model/model-00001-of-00002.safetensors || missed=1
"$here"/tests/bench_cache --json "$rows" || missed=1
awk 'BEGIN { print "[" } { printf "%s%s", NR > 1 ? ",\n" : "", $0 } END { print "\n]" }' \
    "$rows" >"$here/bench.json"
rm -f "$rows"
[ -z "${missed:-}" ] || echo 'some bars were missed: see MISSED above, or "ok": false in bench.json'
