#!/bin/sh
# bench_engine_gpu.py: every step on tiny models over gpu_ref.c, and its limits where a program
# that has a GPU says known figures.
. "${srcdir:-.}/tests/tap.sh"

bench() { # expected status, arguments...
    want=$1
    shift
    python3 "$src/tests/bench_engine_gpu.py" --dir "$dir/room" --json "$dir/rows" \
        --model '--preset tiny --layers 5' --depth 16 --deep 32 --prompt 32 --tokens 4 \
        --rounds 1 "$@" >"$dir/out" 2>"$dir/err" </dev/null
    [ $? = "$want" ]
}
row() { # name, what its line holds: an expression
    grep -F "\"name\": \"$1\"," "$dir/rows" | grep -q -e "$2"
}
mkdir "$dir/room"
./laguna-offload run --device ref -n 1 Hello >/dev/null 2>&1
if [ $? = 69 ]; then
    echo "ok 1 - the bench over plain C # SKIP this program was built with CUDA"
    echo 1..1
    exit 0
fi

# What the whole engine measures here means little; that there is a figure means that it ran.
bench 0 --device ref start resident prefill cpu skewed even
result $? 'all steps of the engine'
row 'start, dense weights resident' '"unit": "s", "limit": 3\.' &&
    row 'decode at 32 beside 16, all resident' '"bar": 0.88, "sense": ">="' &&
    row 'prefill of 32, nothing resident' '"limit": null' &&
    row 'decode, all experts on the CPU, while it computes' '"value": [0-9].*"limit": [0-9]' &&
    row 'decode, a quarter of the experts resident, skewed, hits' '"value": [3-9][0-9]\.' &&
    row 'decode, a quarter of the experts resident, even, hits' '"value": [1-9][0-9]\.'
result $? 'a row each, and no limit where there is no GPU to measure'
[ -z "$(ls "$dir/room")" ]
result $? 'the models are gone'
bench 1 --device ref --program "$dir/none" start cpu &&
    grep -q '^could not run: start cpu$' "$dir/err"
result $? 'steps that cannot run are named'
bench 2 fast && grep -q 'near-full-24-32' "$dir/err"
result $? 'a step that does not exist'

# 4 sparse layers; a step takes 2 ms, of which 1.2 GB at 4000 GB/s are experts: 1.7 without.
cat >"$dir/program" <<'END'
#!/bin/sh
row() { # tokens a second, bytes in VRAM, in RAM, on the drive
    echo "{\"tps_mean\": $1, \"bytes_per_token\": {\"vram\": $2, \"ram\": $3, \"nvme\": $4}," \
        '"hit_vram": 1, "hit_ram": 0, "uploaded": 0, "io_wait": 0, "cpu_share": 0.75,' \
        '"gpu_wait": 0.2, "predicted_tps": 110}'
}
case " $* " in
*' plan '*)
    echo '{"machine": {"ram_read_gbps": 100, "drive_read_gbps": 2,
           "gpus": [{"vram_gbps": 4000, "h2d_gbps": 50, "gmacs": 350000}]},
           "bytes": {"dense": 3000000000, "experts": 30000000000, "vram_slot": 1000},
           "experts": {"vram": 100, "ram": 28, "nvme": 0}}' ;;
*' -n 4 '*' -p '* | *' -p '*' -n 4 '*) echo "[$(row 1000 0 0 0), $(row 100 0 0 5000000)]" ;;
*' -p '*' --vram-experts 0 '*) echo "[$(row 40 0 0 0)]" ;;
*' -p '*) echo "[$(row 640 0 0 0)]" ;;
*' -d 32 '*) echo "[$(row 450 0 0 0)]" ;;
*' --vram-experts 0 '*) echo "[$(row 125 0 500000000 0)]" ;;
*' --vram-experts 32000 '*) echo "[$(row 160 800000000 400000000 0)]" ;;
*) echo "[$(row 500 1200000000 0 0)]" ;;
esac
END
cat >"$dir/kernels" <<'END'
#!/bin/sh
echo '{"name": "a kernel", "value": 1, "unit": "us"}' >"$2"
END
chmod +x "$dir/program" "$dir/kernels"
bench 0 --program "$dir/program" --kernels "$dir/kernels" --models "$dir/models" \
    kernels resident prefill cpu skewed even near-full
result $? 'the same with figures that are known'
row 'decode at 16, all resident' '"value": 400.0,.* "limit": 90,.* "ok": false' &&
    row 'decode at 32 beside 16, all resident' '"limit": 500,.* "ratio": 0.9,.* "ok": true'
result $? 'all resident'
row 'prefill of 32, all resident' '"limit": 700\.0,' && row 'a kernel' '"us"' &&
    row 'prefill of 32, nothing resident' '"value": 0.8,.* "limit": 0.6,.* "ok": false'
result $? 'prompts: the library, and PCIe'
row 'decode, all experts on the CPU, while it computes' '"value": 83.3.*"ok": true' &&
    row 'hand-over to the CPU and back, beyond its computing' '"value": 7[45]\.'
result $? 'what the processor reads while it computes, and what a hand-over costs'
row 'decode, a quarter of the experts resident, even' '"limit": 165\.9.* "ok": false' &&
    row 'decode, a quarter of the experts resident, skewed' '"limit": 165\.9' &&
    row 'decode, a quarter of the experts resident, even, no uploads' '"value": 160'
result $? 'a quarter: the slower side and what all layers cost'
row 'decode, a quarter of the experts resident, even, predicted' '"ratio": 0.3125,.* "ok": false'
result $? 'a prediction that is off'
row 'near-full-24-32, from the drive' '"value": 0.5,.* "limit": 2.0' &&
    row 'near-full-card, decode, predicted' '"ratio": 0.1,.* "ok": true' &&
    [ "$(grep -c '^near-full-[a-z0-9-]*  *100.00    110.00    1000.0' "$dir/out")" = 3 ]
result $? 'a model that needs the drive: rows, and a table'
before=$(wc -l <"$dir/rows")
bench 0 --program "$dir/program" --models "$dir/models" skewed &&
    [ "$(wc -l <"$dir/rows")" = "$before" ] && [ -z "$(ls "$dir/room")" ] &&
    ! grep -q mkmodel "$dir/out"
result $? 'a row takes the place of its like, and models that have a place stay'
echo "1..$n"
