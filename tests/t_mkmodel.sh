#!/bin/sh
# What mkmodel writes: the files' form in every format, the same bytes from the same seed,
# routing as asked for, and the full shape as a sparse file.
. "${srcdir:-.}/tests/tap.sh"
if ! command -v python3 >/dev/null; then echo '1..0 # SKIP no python3'; exit 0; fi

make_model() { # name, options
    name=$1
    shift
    tests/mkmodel --out "$dir/$name" --like "$src/models/nano" "$@" >"$dir/$name.log" 2>&1 ||
        { sed 's/^/# /' "$dir/$name.log"; return 1; }
}
inspect() {
    python3 "$src/tests/mkmodel_check.py" "$@" >"$dir/log" 2>&1
    rc=$?
    sed 's/^/# /' "$dir/log"
    return $rc
}

for format in bf16 w4a16 mxfp4 mixed; do
    make_model $format --format $format --shards 3 && inspect form "$dir/$format" $format
    result $? "$format: headers, index and JSON"
done
make_model again --format w4a16 --shards 3 && diff -r "$dir/w4a16" "$dir/again" >/dev/null
result $? 'the same seed gives the same bytes'
make_model other --format w4a16 --shards 3 --seed 2 &&
    ! cmp -s "$dir/w4a16/model-00001-of-00003.safetensors" \
        "$dir/other/model-00001-of-00003.safetensors"
result $? 'another seed gives others'
inspect routes "$dir/bf16" 0.25 0.25
result $? 'even routing: every expert used within 512 tokens'
make_model skew --format bf16 --skew 0.35:0.7 && inspect routes "$dir/skew" 0.35 0.7
result $? 'skewed routing takes its share'
make_model words --vocab 3000 --layers 2 && inspect form "$dir/words" w4a16
result $? 'a vocabulary of its own'
make_model full --preset s21 --sparse --shards 4 && inspect form "$dir/full" w4a16 sparse &&
    [ "$(du -sm "$dir/full" | cut -f1)" -lt 200 ]
result $? "the full shape, sparse: $(cat "$dir/full.log")"
for bad in '--topk 33' '--hidden 100' '--heads 5' '--format int8' '--skew 2' '--shards x' word; do
    # shellcheck disable=SC2086
    tests/mkmodel --out "$dir/bad" $bad >/dev/null 2>&1
    [ $? = 64 ]
    result $? "refused: $bad"
done
echo "1..$n"
