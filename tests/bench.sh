#!/bin/sh
# make bench: every figure beside its limit of the same run, as a table and in bench.json.
# Takes some minutes, 20 GB of memory, and 9 GB on the drive of BENCH_DIR.
#
# BENCH_MODEL    mkmodel's options for the model whose steps are measured
# BENCH_KERNELS  options of bench_kernels
# A row that misses its bar is no failure; a benchmark that cannot run is one.
set -eu
here=${1:-.} source=${2:-.} failed=
model=${BENCH_MODEL:---preset s21 --layers 6 --format w4a16 --shards 2}
dir=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/laguna-bench.XXXXXX")
rows=$dir/rows
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
: >"$rows"

rows_of() { # program, its arguments after --json
    program=$1
    shift
    "$here/tests/$program" --json "$rows" "$@" || failed="$failed $program"
}

# The options are words.
# shellcheck disable=SC2086
rows_of bench_kernels ${BENCH_KERNELS:-}
# shellcheck disable=SC2086
"$here"/tests/mkmodel --like "$source/models/nano" --out "$dir/model" $model
cat "$dir"/model/*.safetensors >/dev/null
rows_of bench_step "$dir/model" start
rows_of bench_step "$dir/model" auto
rows_of bench_tiers "$dir/model"
set -- "$dir"/model/*.safetensors
rows_of bench_stream "$1"
rows_of bench_cache

{ echo '['; sed '$!s/$/,/' "$rows"; echo ']'; } >"$here/bench.json"
echo
echo "$(wc -l <"$rows") rows in $here/bench.json, $(grep -c '"ok": false' "$rows" || :) missed"
[ -z "$failed" ] || { echo "could not run:$failed" >&2; exit 1; }
