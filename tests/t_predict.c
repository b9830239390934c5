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
                        .context = 8192, .batch = 512, .uploads = true, .kv_type = KV_Q8 };
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
    m.matvec_gbps = 90;
    ok(near(1 / at(&all, &m, 0).decode_tps, (7.411e9 + 2.4949e9) / 90e9 + 48 * 15e-6, 0.001),
       "kernels that were seen to read 90 GB/s");
    m.matvec_gbps = 0;
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

    m.gpu[0] = (struct machine_gpu){ .name = "RTX 3090", .vram_gbps = 936, .h2d_gbps = 24 };
    a = at(&p, &m, 0);
    ok(p.fits && a.decode_tps > 20 && a.decode_tps < 60 && !strcmp(a.bottleneck, "RAM"),
       "RTX 3090 and dual-channel RAM: %.1f tok/s, bound by %s", a.decode_tps, a.bottleneck);
    /* Dense weights at 0.85 x 936 GB/s, 42 us a layer, a hand-over in nearly all of 47, and
     * the experts without a seat at 68 GB/s. */
    ok(near(1 / a.decode_tps, 7.411e9 / 795.6e9 + 48 * 42e-6 + 47 * (1 - pow(hit, 10)) * 9.2e-6 +
            2.4949e9 * (1 - hit) / 68e9, 0.001), "which is the sum of its parts");
    ok(near(a.bytes_per_token.vram + a.bytes_per_token.ram, 7.411e9 + 2.4949e9, 0.001),
       "every byte is in one tier");
    m.ram_read_gbps = 800;
    ok(!strcmp(at(&p, &m, 0).bottleneck, "VRAM"), "faster RAM: VRAM is the bottleneck");
    m.gpu[0].vram_gbps = 0;
    b = at(&p, &m, 0);
    ok(b.guessed_gpu && !a.guessed_gpu && b.decode_tps > 0, "a GPU that was not measured is told");
    m.gpu[0] = (struct machine_gpu){ .name = "H200", .vram_gbps = 4200, .h2d_gbps = 55 };
    p = place(100000000000, true, 100000000000);
    a = at(&p, &m, 0);
    ok(p.vram == needs.experts && !strcmp(a.bottleneck, "VRAM") &&
       near(1 / a.decode_tps, (7.411e9 + 2.4949e9) / 3570e9 + 48 * 42e-6, 0.001),
       "all seated: no hand-over, no RAM, %.0f tok/s", a.decode_tps);
}

/* Bytes a second at which a decode step's experts in RAM were foreseen to be read: the rest of
 * the step is the sum of test_gpu(). */
static double ram_speed(const struct placement *p, const struct machine *m)
{
    double hit = (double)p->vram / needs.experts;
    double others = 7.410996736e9 / 795.6e9 + 48 * 42e-6 + 47 * (1 - pow(hit, 10)) * 9.2e-6;
    struct shape s = shape;

    /* A first token sees itself: one row of 130 bytes for keys and values of 8 heads. */
    others += s.layers * 130.0 * 2 * 8 / 795.6e9;
    return 2.49495552e9 * (1 - hit) / (1 / at(p, m, 0).decode_tps - others);
}

/* Where the cores read 80 GB/s alone, 68 by the kernels. */
static void test_uploads(void)
{
    struct machine m = { .ram_read_gbps = 80, .drive_read_gbps = 7, .cores = 16, .gpus = 1,
                         .gpu = { { .name = "RTX 3090", .vram_gbps = 936, .h2d_gbps = 24 } } };
    struct placement p = place(100000000000, true, 23000000000);

    ok(p.uploads && near(ram_speed(&p, &m), 68e9, 0.0001), "not measured: no gain");
    m.gpu[0].ram_read_beside_gbps = 60;
    ok(near(ram_speed(&p, &m), 68e9, 0.0001), "one of two figures: no gain");
    m.gpu[0].h2d_beside_gbps = 20;
    ok(near(ram_speed(&p, &m), 0.85 * 60e9 + 0.95 * 20e9, 0.0001), "60 and 20 GB/s: 70");
    m.gpu[0].h2d_beside_gbps = 17;
    ok(near(ram_speed(&p, &m), 68e9, 0.0001), "60 and 17: the cores alone are faster");
    m.gpu[0].h2d_beside_gbps = 24;
    ok(near(ram_speed(&p, &m), 0.85 * 60e9 + 0.95 * 24e9, 0.0001), "60 and 24: 73.8");
    p.uploads = false;
    ok(near(ram_speed(&p, &m), 68e9, 0.0001), "never where nothing is to be uploaded");
    p = place(100000000000, false, 0);
    ok(!p.uploads && near(1 / at(&p, &m, 0).decode_tps, 9.906e9 / 68e9 + 48 * 15e-6, 0.001),
       "nor without the GPU");
}

/* A batch of 8192 tokens wants every expert; those without a seat come through PCIe while the
 * GPU multiplies. */
static void test_gpu_prefill(void)
{
    struct machine m = { .ram_read_gbps = 80, .drive_read_gbps = 7, .cpu_gmacs = 2000,
                         .cores = 16, .gpus = 1 };
    struct placement p = place(100000000000, true, 23000000000);
    double away = 63.870861312e9 * (1 - (double)p.vram / needs.experts), seconds;
    struct prediction a;

    /* One that multiplies so fast that only what it is fed with counts. */
    m.gpu[0] = (struct machine_gpu){ .name = "RTX 9090", .vram_gbps = 936, .h2d_gbps = 12,
                                     .gmacs = 1e6 };
    a = at(&p, &m, 0);
    ok(p.batch >= 2048 && !strcmp(a.prefill_bottleneck, "PCIe") &&
       near(a.prefill_tps, p.batch / (away / 11.4e9), 0.001), "PCIe of 12 GB/s: %.0f tok/s",
       a.prefill_tps);
    m.gpu[0].h2d_gbps = 50;
    m.gpu[0].gmacs = 0;
    a = at(&p, &m, 0);
    /* 7.833e9 products a token, and the keys before the middle of the batch. */
    seconds = 48 * 300e-6 + (63.871e9 + 7.411e9) / 795.6e9 +
              p.batch * (7.833e9 / 0.373 + (12 * 12288.0 * p.batch / 2 + 0.3397e9) / 0.32) / 35e12;
    ok(!strcmp(a.prefill_bottleneck, "GPU") && near(a.prefill_tps, p.batch / seconds, 0.001),
       "of 50 GB/s: the GPU multiplies %.0f tok/s", a.prefill_tps);
    m.gpu[0].gmacs = 1e6;
    p = place(20000000000, true, 23000000000);
    a = at(&p, &m, 0);
    ok(!strcmp(a.prefill_bottleneck, "drive") &&
       near(a.prefill_tps, p.batch / (63.870861312e9 * p.nvme / needs.experts / 6.65e9), 0.001),
       "20 GB of RAM: the drive gives %.0f tok/s", a.prefill_tps);
}

/* As many of the model's layers, and a batch of n tokens with so many experts seated. */
static double prompt_tps(int layers, int n, int seated, double gmacs)
{
    struct machine m = { .ram_read_gbps = 110, .drive_read_gbps = 7, .cpu_gmacs = 2000,
                         .cores = 16, .gpus = 1 };
    struct placement p = { .fits = true, .gpu = true, .batch = n, .vram = seated };
    double tps;

    m.gpu[0] = (struct machine_gpu){ .name = "H200", .vram_gbps = 4200, .h2d_gbps = 55.1,
                                     .gmacs = gmacs };
    shape.layers = layers;
    shape.sparse_layers = layers - 1;
    needs.experts = shape.sparse_layers * 256;
    needs.expert_bytes = (size_t)needs.experts * 5308416;
    needs.dense_bytes = needs.embed_bytes + 7410996736 / 48 * (size_t)layers;
    p.ram = needs.experts - seated;
    tps = at(&p, &m, 0).prefill_tps;
    full_size();
    return tps;
}

/* 24 layers, 8192 tokens, by hand.  Products a token: 6 full layers of 44.26 million and 18 of
 * 63.13 for attention's weights, 23 of 104.6 for experts, 113.2 of the dense layer: 3.921e9.
 * Keys and values: 6 x 12288 x 4096 and 18 x 18432 x 512: 0.4719e9.  31.25 GB of experts and 3.7
 * of dense weights are read once. */
static void test_prompt_by_hand(void)
{
    double bytes = (31.255e9 + 3.7055e9) / (0.85 * 4200e9);
    double seconds = 24 * 300e-6 + bytes + 8192 * (3.921e9 / 0.373 + 0.4719e9 / 0.32) / 380e12;
    /* 512 x 10 / 256 tokens an expert, 9.437 million products each, 5888 experts; cpu_gmacs
     * times 0.6.  Nearly every expert is chosen. */
    double link = 31.255e9 / (0.95 * 55.1e9), cores = 31.255e9 / (0.85 * 110e9) +
                  5888 * 20 * 9.437184e6 / 1200e9;

    ok(near(prompt_tps(24, 8192, 5888, 380000), 8192 / seconds, 0.001), "all seated: %.4f s",
       seconds);
    ok(near(prompt_tps(24, 8192, 0, 380000), 8192 / link, 0.001), "none seated: %.4f s", link);
    ok(near(prompt_tps(24, 512, 0, 380000), 512 * (1 / link + 1 / cores), 0.001),
       "512 tokens: PCIe alone takes %.3f s, the cores %.3f", link, cores);
    ok(near(prompt_tps(24, 513, 0, 380000), 513 / link, 0.001), "513: PCIe alone");
}

/* What an H200 beside 16 cores was seen to do with real layers; it was seen to multiply at
 * 350,000 to 395,000 gmacs. */
static void test_prompts_measured(void)
{
    static const struct {
        int layers, tokens, seated;
        double tps;
    } seen[] = { { 24, 512, 5888, 16695 }, { 24, 1024, 5888, 22631 }, { 24, 2048, 5888, 26800 },
                 { 24, 8192, 5888, 30563 }, { 24, 8192, 0, 13635 }, { 24, 512, 0, 1392 },
                 { 40, 1024, 3634, 1687 } };

    for (size_t i = 0; i < sizeof(seen) / sizeof(*seen); i++) {
        double low = prompt_tps(seen[i].layers, seen[i].tokens, seen[i].seated, 350000);
        double high = prompt_tps(seen[i].layers, seen[i].tokens, seen[i].seated, 395000);

        ok(near(low, seen[i].tps, 0.15) && near(high, seen[i].tps, 0.15),
           "%d layers, %d tokens, %d seated: %.0f tok/s, foreseen %.0f to %.0f", seen[i].layers,
           seen[i].tokens, seen[i].seated, seen[i].tps, low, high);
    }
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
    test_uploads();
    test_gpu_prefill();
    test_prompt_by_hand();
    test_prompts_measured();
    test_skew();
    test_line();
    return done();
}
