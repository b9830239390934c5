/* Predictions against sums done by hand, and in which direction every figure moves them. */
#include "src/predict.h"
#include "tests/tap.h"

#include <math.h>
#include <stdlib.h>

static struct shape shape;
static struct needs needs;

/* Laguna-S-2.1's sizes. */
static void full_size(void)
{
    shape = (struct shape){ .layers = 48, .sparse_layers = 47, .hidden = 3072, .head_dim = 128,
                            .kv_heads = 8, .window = 512, .vocab = 100352, .experts = 256,
                            .topk = 10, .expert_inner = 1024, .shared_inner = 1024,
                            .dense_inner = 12288, .max_heads = 72, .max_positions = 1048576 };
    for (int i = 0; i < shape.layers; i++)
        shape.layer[i] = (struct layer_shape){ .full = i % 4 == 0, .dense = i == 0,
                                               .heads = i % 4 ? 72 : 48, .gate_rows = 72 };
    needs = (struct needs){ .shape = &shape, .dense_bytes = 8027559424,
                            .embed_bytes = 616562688, .expert_bytes = 63870861312,
                            .slot_bytes = 5316608, .vram_dense_bytes = 8027758592,
                            .vram_slot_bytes = 5308416, .experts = 47 * 256 };
}

static struct placement place(size_t ram_bytes, bool gpu, size_t vram_bytes)
{
    struct budget b = { .ram_bytes = ram_bytes, .ram_experts_bytes = SIZE_MAX, .gpu = gpu,
                        .vram_bytes = vram_bytes, .vram_experts_bytes = SIZE_MAX,
                        .context = 8192, .batch = 512, .kv_type = KV_Q8 };
    struct placement p;

    placement_plan(&p, &needs, &b);
    return p;
}

static struct prediction at(const struct placement *p, const struct machine *m, int depth)
{
    struct skew even = { NULL, needs.experts };
    struct prediction out;

    predict(&out, &needs, p, KV_Q8, m, &even, depth);
    return out;
}

static bool near(double a, double b, double share)
{
    return fabs(a / b - 1) < share;
}

static void test_ram(void)
{
    struct machine m = { .ram_read_gbps = 80, .drive_read_gbps = 7, .cpu_gmacs = 2000,
                         .cores = 16 };
    struct placement all = place(100000000000, false, 0), half = place(40000000000, false, 0);
    struct prediction p = at(&all, &m, 0), q;

    /* 7.41 GB dense and 2.495 GB of experts at 68 GB/s, and 48 layers of 15 us. */
    ok(near(1 / p.decode_tps, (7.411e9 + 2.4949e9) / 68e9 + 48 * 15e-6, 0.001),
       "all in RAM: %.3f tok/s", p.decode_tps);
    ok(!strcmp(p.bottleneck, "RAM") && p.hit_ram == 1 && !p.bytes_per_token.nvme,
       "bound by RAM, nothing from the drive");
    ok(near(p.bytes_per_token.ram, 7.411e9 + 2.4949e9, 0.001), "%.3f GB a token",
       p.bytes_per_token.ram * 1e-9);
    q = at(&half, &m, 0);
    ok(q.bytes_per_token.nvme > 1e9 && !strcmp(q.bottleneck, "drive") &&
       near(1 / q.decode_tps, 7.411e9 / 68e9 + q.bytes_per_token.nvme / 6.65e9 + 48 * 15e-6 +
            47 * 100e-6, 0.002), "half of it: the drive gives %.2f GB a token, %.2f tok/s",
       q.bytes_per_token.nvme * 1e-9, q.decode_tps);
    ok(near(q.hit_ram, (double)half.ram / needs.experts, 1e-6), "even routing: hits are slots");
    m.drive_read_gbps = 0;
    ok(at(&half, &m, 0).decode_tps == 0, "no drive, and experts on it: nothing");
    m.drive_read_gbps = 7;
    p = at(&all, &m, 100000);
    ok(p.decode_tps < at(&all, &m, 0).decode_tps && p.bytes_per_token.ram > 9.9e9 + 2.4e9,
       "100,000 tokens deep: the full layers' keys and values are read too");
    m.cpu_gmacs = 10;
    p = at(&all, &m, 0);
    ok(!strcmp(p.bottleneck, "processor") && !strcmp(p.prefill_bottleneck, "processor"),
       "a slow processor is the bottleneck");
}

static void test_prefill(void)
{
    struct machine m = { .ram_read_gbps = 80, .drive_read_gbps = 7, .cpu_gmacs = 2000,
                         .cores = 16 };
    struct placement all = place(100000000000, false, 0), none = place(10000000000, false, 0);
    struct prediction p = at(&all, &m, 0), q = at(&none, &m, 0);

    ok(p.prefill_tps > 50 && p.prefill_tps < 400, "a prompt in RAM: %.1f tok/s (%s)",
       p.prefill_tps, p.prefill_bottleneck);
    ok(!strcmp(q.prefill_bottleneck, "drive") && near(q.prefill_tps, 512 / (63.87 / 6.65), 0.1),
       "from the drive: a batch reads nearly all experts, %.1f tok/s", q.prefill_tps);
}

static void test_gpu(void)
{
    struct machine m = { .ram_read_gbps = 80, .drive_read_gbps = 7, .cpu_gmacs = 2000,
                         .cores = 16, .gpus = 1 };
    struct placement p = place(100000000000, true, 23000000000);
    struct prediction a, b;
    double hit = (double)p.vram / needs.experts;

    m.gpu[0] = (struct machine_gpu){ "RTX 3090", 24000000000, 936, 24, 0, 0 };
    a = at(&p, &m, 0);
    ok(p.fits && a.decode_tps > 20 && a.decode_tps < 60 && !strcmp(a.bottleneck, "RAM"),
       "RTX 3090 and dual-channel RAM: %.1f tok/s, bound by %s", a.decode_tps, a.bottleneck);
    /* Dense weights at 0.85 x 936 GB/s, 60 us a layer, a hand-over in nearly all of 47, and
     * the experts without a seat at 68 GB/s. */
    ok(near(1 / a.decode_tps, 7.411e9 / 795.6e9 + 48 * 60e-6 + 47 * (1 - pow(hit, 10)) * 9.2e-6 +
            2.4949e9 * (1 - hit) / 68e9, 0.001), "which is the sum of its parts");
    ok(near(a.bytes_per_token.vram + a.bytes_per_token.ram, 7.411e9 + 2.4949e9, 0.001),
       "every byte is in one tier");
    m.ram_read_gbps = 800;
    ok(!strcmp(at(&p, &m, 0).bottleneck, "VRAM"), "faster RAM: VRAM is the bottleneck");
    m.gpu[0].vram_gbps = 0;
    b = at(&p, &m, 0);
    ok(b.guessed_gpu && !a.guessed_gpu && b.decode_tps > 0, "a GPU that was not measured is told");
    m.gpu[0] = (struct machine_gpu){ "H200", 140000000000, 4200, 55, 0, 0 };
    p = place(100000000000, true, 100000000000);
    a = at(&p, &m, 0);
    ok(p.vram == needs.experts && !strcmp(a.bottleneck, "VRAM") &&
       near(1 / a.decode_tps, (7.411e9 + 2.4949e9) / 3570e9 + 48 * 60e-6, 0.001),
       "all seated: no hand-over, no RAM, %.0f tok/s", a.decode_tps);
}

/* A batch of 8192 tokens wants every expert; those without a seat come through PCIe while the
 * GPU multiplies. */
static void test_gpu_prefill(void)
{
    struct machine m = { .ram_read_gbps = 80, .drive_read_gbps = 7, .cpu_gmacs = 2000,
                         .cores = 16, .gpus = 1 };
    struct placement p = place(100000000000, true, 23000000000);
    double away = 63.870861312e9 * (1 - (double)p.vram / needs.experts);
    struct prediction a;

    /* One that multiplies so fast that only what it is fed with counts. */
    m.gpu[0] = (struct machine_gpu){ "RTX 9090", 24000000000, 936, 12, 0, 1e6 };
    a = at(&p, &m, 0);
    ok(p.batch >= 2048 && !strcmp(a.prefill_bottleneck, "PCIe") &&
       near(a.prefill_tps, p.batch / (away / 12e9), 0.001), "PCIe of 12 GB/s: %.0f tok/s",
       a.prefill_tps);
    m.gpu[0].h2d_gbps = 50;
    m.gpu[0].gmacs = 0;
    a = at(&p, &m, 0);
    ok(!strcmp(a.prefill_bottleneck, "GPU") && a.prefill_tps > 1500 && a.prefill_tps < 1800,
       "of 50 GB/s: the GPU multiplies %.0f tok/s", a.prefill_tps);
    m.gpu[0].gmacs = 1e6;
    p = place(20000000000, true, 23000000000);
    a = at(&p, &m, 0);
    ok(!strcmp(a.prefill_bottleneck, "drive") &&
       near(a.prefill_tps, p.batch / (63.870861312e9 * p.nvme / needs.experts / 6.65e9), 0.001),
       "20 GB of RAM: the drive gives %.0f tok/s", a.prefill_tps);
}

static void test_skew(void)
{
    struct popularity p;
    struct skew s = { NULL, 0 };
    struct err e;
    uint16_t often = 3, seldom = 1;

    if (popularity_open(&p, 2, 4, 1, &e) || skew_open(&s, &p, &e))
        exit(99);
    ok(!s.share && s.experts == 8 && skew_hits(&s, 2) == 0.25, "no statistics: even");
    for (int i = 0; i < 90; i++)
        popularity_note(&p, 1, &often, 1);
    for (int i = 0; i < 10; i++)
        popularity_note(&p, 0, &seldom, 1);
    ok(!skew_open(&s, &p, &e) && skew_hits(&s, 0) == 0 && near(skew_hits(&s, 1), 0.9, 0.02) &&
       near(skew_hits(&s, 2), 1, 0.001) && skew_hits(&s, 8) == 1, "the most used come first");
    skew_close(&s);
    popularity_close(&p);
}

static void test_line(void)
{
    struct prediction p = { .decode_tps = 40, .bottleneck = "RAM" };
    char line[128];

    prediction_line(line, sizeof(line), &p, 38);
    ok(!strcmp(line, "predicted 40 tok/s (RAM), achieved 38, 95 %"), "%s", line);
}

int main(void)
{
    full_size();
    test_ram();
    test_prefill();
    test_gpu();
    test_gpu_prefill();
    test_skew();
    test_line();
    return done();
}
