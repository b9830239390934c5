#!/bin/sh
# plan, bench, stats and doctor from outside, on nano: what they print, and how they exit.
. "${srcdir:-.}/tests/tap.sh"
export LAGUNA_MODEL="$src/models/nano"

run() { # expected status, arguments...
    want=$1
    shift
    ./laguna-offload "$@" >"$dir/out" 2>"$dir/err" </dev/null
    [ $? = "$want" ]
}
says() { grep -q -e "$1" "$dir/out"; }
warns() { grep -q -e "$1" "$dir/err"; }

run 0 plan && says '^fits  *yes$' && says '896 in RAM'
result $? 'plan: nano fits'
[ "$(find "$dir/cache" -name 'machine-*.json' | wc -l)" = 1 ]
result $? 'the figures of the machine are kept'
run 0 plan --json && says '"experts": {"vram": 0, "ram": 896, "nvme": 0}' &&
    says '"experts": 12386304' && says '"fits": true' && says '"elsewhere": null'
result $? 'plan --json'
sed 's/.*"machine": \({.*}\), "bytes".*/\1/' "$dir/out" >"$dir/machine"
run 0 plan --machine "$dir/machine" --ram-experts 4M --json && says '"ram": 146, "nvme": 750'
result $? 'plan --machine takes what --json printed'
: >"$dir/empty"
run 65 plan --machine "$dir/empty" && warns "$dir/empty"
result $? 'an empty description is bad data'
run 66 plan --machine "$dir/none"
result $? 'a missing one is missing'
sed 's/"cores"/"corse"/' "$dir/machine" >"$dir/typo"
run 65 plan --machine "$dir/typo" && warns corse
result $? 'a key that does not exist is named'
cat >"$dir/box" <<'END'
{"ram_bytes": 64000000000, "ram_read_gbps": 80, "drive_read_gbps": 7, "cores": 16, "isa": "avx2",
 "gpus": [{"name": "RTX 3090", "vram_bytes": 25438126080, "vram_gbps": 936, "h2d_gbps": 24}]}
END
run 0 plan --machine "$dir/box" --json && says '"experts": {"vram": 896, "ram": 0, "nvme": 0}'
result $? 'a machine with a GPU'
run 0 plan --machine "$dir/box" --json --device cpu && says '"vram": 0, "ram": 896'
result $? 'the same without it'
run 69 plan --machine "$dir/box" --device cuda:1
result $? 'a GPU that the machine lacks'
run 3 plan --machine "$dir/box" --kv-type f32 && says '^fits  *no: f32 KV is for the CPU'
result $? 'f32 KV and a GPU'
run 0 plan --machine "$dir/box" --vram 24G && warns '24576 MB, and 24259 MB of RTX 3090 are free'
result $? 'more VRAM than there is: a warning'
run 0 plan --machine "$dir/box" --vram-reserve 1G --json && says '"fits": true'
result $? '--vram-reserve'
sed 's/"h2d_gbps": 24/&, "free_bytes": 1000000/' "$dir/box" >"$dir/busy"
run 3 plan --machine "$dir/busy" && says '^fits  *no: .* of VRAM are needed and 0 MB may be used'
result $? 'a card that others have taken'

sed 's/"gpus": \[\(.*\)\]}/"gpus": [\1, \1]}/' "$dir/box" >"$dir/two"
run 0 plan --machine "$dir/two" --device cuda:1 --vram 1M,2G --json && says '"vram": 896, "ram": 0'
result $? 'the second card has the second size'
run 3 plan --machine "$dir/two" --device cuda:1 --vram 2G,1M && says ' 1 MB may be used (--vram)'
result $? 'and no other'
run 0 plan --machine "$dir/two" --device cuda:1 --vram 1M --json && says '"vram": 896, "ram": 0'
result $? 'a card without one is auto'

# Laguna-S-2.1 as a file of holes, a 24 GB card, and less RAM than would hold the rest.
number() { # key: the first number after it
    sed "s/.*\"$1\": \([0-9]*\).*/\1/" "$dir/part"
}
part() { # key: what stands in its braces
    sed "s/.*\"$1\": {\([^{}]*\)}.*/\1/" "$dir/out" >"$dir/part"
}
tests/mkmodel --out "$dir/full" --like "$LAGUNA_MODEL" --preset s21 --sparse >/dev/null 2>&1
result $? 'the full size, sparse'
run 0 plan -m "$dir/full" --machine "$dir/box" --ram 32G -c 131072 --json && says '"fits": true' &&
    part experts && v=$(number vram) r=$(number ram) d=$(number nvme) &&
    [ $((v + r + d)) = $((47 * 256)) ] && [ "$v" -gt 500 ] && [ "$r" -gt 4000 ] && [ "$d" -gt 0 ]
result $? "each expert is in one tier: $v in VRAM, $r in RAM, $d on the drive"
part bytes && [ "$(number vram)" -le $((25438126080 / 16 * 15)) ] &&
    [ "$(number vram)" -gt 23000000000 ] && [ "$(number ram)" -le $((32 << 30)) ] &&
    [ "$(number vram_slot)" = 5308416 ]
result $? 'within both budgets, and VRAM is full'
kv=$(number kv) dense=$(number vram_dense) scratch=$(number vram_scratch) all=$(number vram)
part slots && [ $((dense + kv + scratch + ($(number vram) + $(number vram_staging)) * 5308416)) \
    -ge $((all - 100000)) ]
result $? 'the items of VRAM add up'
run 0 plan -m "$dir/full" --machine "$dir/box" --ram 32G -c 131072 --json && part bytes &&
    kv=$(number kv) && [ "$(number parked)" = "$kv" ] &&
    batch=$(sed 's/.*"batch": \([0-9]*\).*/\1/' "$dir/out") &&
    [ "$(number pinned)" -ge $((batch * 12288)) ] &&
    fixed=$((kv + $(number pinned) + $(number mirror) + $(number snapshots) + $(number scratch))) &&
    all=$(number ram) slot=$(number slot) && part slots &&
    [ $((fixed + ($(number ram) + $(number ram_staging)) * slot)) = "$all" ]
result $? 'and those of RAM, with a conversation that waits, and staging'
speed() { # the decode speed foreseen, in tok/s: box, arguments...
    run 0 plan -m "$dir/full" --ram 64G -c 8192 --json --machine "$@" &&
        sed 's/.*"decode_tps": \([0-9.]*\).*/\1/' "$dir/out"
}
sed 's/"h2d_gbps": 24/&, "ram_read_beside_gbps": 60, "h2d_beside_gbps": 20/' "$dir/box" >"$dir/both"
sed 's/"h2d_gbps": 24/&, "ram_read_beside_gbps": 50, "h2d_beside_gbps": 20/' "$dir/box" >"$dir/less"
alone=$(speed "$dir/box") less=$(speed "$dir/less") both=$(speed "$dir/both")
[ "$(speed "$dir/both" --upload-share 0)" = "$alone" ]
result $? '--upload-share 0: the cores alone'
awk "BEGIN { exit !($alone > 0 && $less == $alone && $both > $alone * 1.01 && $both < $alone * 1.03) }"
result $? "$both tok/s where PCIe and the cores read 70 GB/s, $alone by the cores' 68, $less by 61.5"
run 0 plan --machine "$dir/both" --json &&
    says '"h2d_gbps": 24, "ram_read_beside_gbps": 60, "h2d_beside_gbps": 20}'
result $? 'figures taken side by side are told'
run 0 plan --machine "$dir/both" && says 'RTX 3090, 25.4 GB, PCIe 20.0 beside memory 60.0 GB/s$'
result $? 'to people too'
run 0 plan -m "$dir/full" --machine "$dir/box" -c 131072 && says '^VRAM  *dense weights' &&
    says "^memory   windows' KV .* MB, KV of a conversation that waits 3.* GB, the GPU's staging " &&
    says '^expect .* tok/s' && says ' VRAM .* RAM .* drive'
result $? 'plan, for people'
run 3 plan --ram 4M -c 32768 && says '^fits  *no: .* MB' && says '^vllm serve .*--max-model-len 32768'
result $? 'plan: what does not fit exits 3, with the numbers and another way'
run 78 plan -c 40000
result $? 'a context that the model has no positions for'
echo garbage >"$(find "$dir/cache" -name 'machine-*.json')"
run 0 plan && warns 'measured again'
result $? 'damaged figures: a warning, and new ones'
run 0 plan && ! warns 'measured again'
result $? 'once'
run 64 plan words
result $? 'plan takes no operand'

run 66 stats && warns 'no statistics'
result $? 'stats: nothing was kept yet'
mkdir -p "$dir/state/laguna-offload"
run 0 run --temp 0 -n 20 'What is ls?'
result $? 'a run'
run 0 stats && says '^layer   7 |' && says '100 %   100.0 %'
result $? 'stats: a heat map and a curve'
run 0 stats --csv && says '^1,0,' && says '^kept,hits'
result $? 'stats --csv'
run 0 stats --json && says '"curve": \['
result $? 'stats --json'
run 0 stats --svg "$dir/heat.svg" && grep -q '</svg>' "$dir/heat.svg" && [ ! -s "$dir/out" ]
result $? 'stats --svg'
run 66 stats --svg "$dir/none/heat.svg"
result $? 'a picture that cannot be written'

run 0 bench -p 16 -n 4 -r 2 -c 8192 --json && says '^\[{"test": "pp16"' &&
    says '{"test": "tg4"' && says '"hit_ram": 1.0000' && says '"predicted_tps": [0-9]' &&
    says '"cpu_share": 0.0000, "gpu_wait": 0.0000'
result $? 'bench --json'
run 0 bench -n 4 -d 0,20 -r 1 -c 8192 && says '| *tg4 @ d20 |' && ! says pp
result $? 'bench at depths'
run 0 bench -p 8 -r 1 -c 8192 --csv && says '^pp8,0,' && [ "$(wc -l <"$dir/out")" = 2 ]
result $? 'bench --csv'
run 0 bench -n 4 -r 1 -c 8192 --ram-experts 0 --json && says '"hit_ram": 0.0000' &&
    says '"nvme": [1-9]'
result $? 'bench counts what the drive gives'
run 65 bench -p 4 --file "$dir/empty"
result $? 'bench: an empty text'
run 64 bench -p 9000 -c 8192 && warns 8192
result $? 'bench: a test longer than the context'
run 64 bench -p 4,,5
result $? 'bench: no list'

run 0 doctor || run 1 doctor
result $? 'doctor'
[ "$(grep -c -e '^fine ' -e '^slow ' -e '^broken ' "$dir/out")" -ge 12 ]
result $? 'a line each'
run 1 doctor -m "$dir" && says '^broken  model'
result $? 'doctor: a directory without a model is broken'
./laguna-offload doctor --json >"$dir/out" 2>"$dir/err"
says '^\[{"check": "isa", "health": "fine"'
result $? 'doctor --json'
echo "1..$n"
