/* A token costs its bytes: every tier is read once, at the speed of that tier.
 *
 *   on the CPU   layers + dense / ram + max(experts / ram, missed / drive)
 *   with a GPU   layers + dense / vram + max(seated / vram, others / ram, missed / drive)
 *
 * because the reads of a layer overlap the computing of what is there, and nothing else: the
 * next layer's router needs this layer's result.  `layers` is what a layer costs whatever its
 * bytes: threads and processors that wait for each other, a hand-over where the GPU lacks an
 * expert that was chosen; `drive` holds 0.1 ms for each layer that misses an expert.  `ram` is
 * what the kernels were seen to read, else 0.85 of the read loop.  With a GPU the experts in RAM
 * are read by the cores and by the GPU across PCIe, where both together are faster than the cores.
 * A prompt is bound by the processor besides: a batch reads each expert once, and multiplies it
 * by every token that chose it.
 *
 *   on the CPU   max((dense + max(experts / ram, missed / drive)), products)
 *   with a GPU   max(layers + read / vram + products + attention, absent / PCIe, missed / drive)
 *
 * because experts stream into VRAM while the GPU multiplies.  In a short batch the CPU takes some
 * of the absent ones.  Measured on an H200 (350,000 to 395,000 gmacs, PCIe 55.1 GB/s) beside 16
 * cores, 24 real layers, in tok/s: 512, 1024, 2048 and 8192 tokens, all seated, 16,695, 22,631,
 * 26,800 and 30,563; 8192, none seated, 13,635, and 512 1392; 40 layers, 3634 of 9984 experts
 * seated, 1024 tokens 1687.  t_predict.c compares. */
#include "src/predict.h"
#include "cpu/kv.h"
#include "src/split.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double ram_efficiency = 0.85, vram_efficiency = 0.85, drive_efficiency = 0.95;
static const double read_seconds = 100e-6;      /* until the drive's first byte */
static const double product_efficiency = 0.6;   /* of the loop over one hot matrix */
static const double core_gmacs = 40;            /* where nobody measured: AVX2, a core */
static const double handoff_seconds = 9.2e-6;   /* a layer, CPU and GPU */
static const double boundary_seconds = 15e-6;   /* a layer: workers meet, a dozen times */
/* A layer on the GPU: nine kernels that wait for each other, and the latency of memory at the
 * beginning and end of each.  Measured on an H200: 71 us for the mean layer's 94 MB, of which
 * 27 are those bytes at 0.85 of 4100 GB/s.  A prompt's batch has three dozen kernels, which
 * begin with tiles to fill and dequantise what cuBLAS multiplies. */
static const double gpu_layer_seconds = 42e-6, gpu_batch_layer_seconds = 300e-6;
static const double gpu_gmacs = 35000;          /* where nobody measured: RTX 3090 */
/* Of the GPU's large product, by a prompt on an H200: a further token's products, mostly those of
 * experts, whose tiles have tails and padding, and attention (full layers 0.33, windows 0.26). */
static const double gpu_product_efficiency = 0.373, gpu_attention_efficiency = 0.32;
static const double h2d_efficiency = 0.95;      /* 31.3 GB in 0.601 s */
static const double guessed_vram_gbps = 400, guessed_h2d_gbps = 12;

/* --- who is chosen how often -------------------------------------------------------------- */

static int downwards(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

int skew_open(struct skew *s, const struct popularity *p, struct err *e)
{
    size_t n = (size_t)p->layers * (size_t)p->experts;
    double all = 0, sum = 0;

    *s = (struct skew){ malloc((n + 1) * sizeof(*s->share)), (int)n };
    if (!s->share)
        return fail(e, -ENOMEM, "out of memory");
    s->share[0] = 0;
    for (size_t i = 0; i < n; i++) {
        s->share[i + 1] = policy_lasting(&p->layer[i / (size_t)p->experts],
                                         (int)(i % (size_t)p->experts));
        all += (double)s->share[i + 1];
    }
    if (!(all > 0)) {
        skew_close(s);
        return 0;
    }
    qsort(s->share + 1, n, sizeof(*s->share), downwards);
    for (size_t i = 1; i <= n; i++) {
        sum += (double)s->share[i];
        s->share[i] = (float)(sum / all);
    }
    return 0;
}

void skew_close(struct skew *s)
{
    free(s->share);
    *s = (struct skew){ NULL, s->experts };
}

double skew_hits(const struct skew *s, int n)
{
    if (n <= 0 || !s->experts)
        return 0;
    if (n >= s->experts)
        return 1;
    return s->share ? (double)s->share[n] : (double)n / s->experts;
}

/* --- bytes and products of a token --------------------------------------------------------- */

/* KV that a token at this depth reads: all of it in full layers, a window in the others. */
static double kv_read_bytes(const struct shape *s, enum kv_type type, int depth)
{
    double row = (double)kv_row_bytes(type, s->head_dim) + (type == KV_Q8 ? 2 : 0), rows = 0;

    for (int i = 0; i < s->layers; i++)
        rows += s->layer[i].full || depth < s->window ? depth + 1 : s->window;
    return rows * row * 2 * s->kv_heads;
}

/* Multiplications. */
struct macs {
    double products, attention;         /* with weights, with keys and values */
};

/* Those of one token, without the head, which a prompt needs once. */
static struct macs token_macs(const struct shape *s, int depth)
{
    double hidden = s->hidden, dim = s->head_dim;
    struct macs n = { 0, 0 };

    for (int i = 0; i < s->layers; i++) {
        const struct layer_shape *l = &s->layer[i];
        double keys = l->full || depth < s->window ? depth : s->window;

        n.products += hidden * dim * (2.0 * l->heads + 2.0 * s->kv_heads) + hidden * l->gate_rows;
        n.attention += 2 * keys * dim * l->heads;
        if (l->dense)
            n.products += 3 * hidden * s->dense_inner;
        else
            n.products += hidden * (s->experts + 3.0 * s->shared_inner +
                                    3.0 * s->expert_inner * s->topk);
    }
    return n;
}

/* The share of a layer's experts that n tokens choose between them. */
static double chosen_share(const struct shape *s, int n)
{
    return s->experts ? 1 - pow(1 - (double)s->topk / s->experts, n) : 0;
}

/* --- times --------------------------------------------------------------------------------- */

struct speeds {
    double ram, vram, drive, h2d;       /* bytes a second */
    double shared_ram;                  /* of a decode step's experts in RAM, whoever reads them */
    double cpu_macs, gpu_macs;          /* a second; the GPU's are those of its large product */
};

/* Weights that the cores multiply by a token, GB/s. */
static double cores_gbps(const struct machine *m)
{
    return m->matvec_gbps > 0 ? m->matvec_gbps : m->ram_read_gbps * ram_efficiency;
}

/* While the CPU computes experts where they lie, the GPU may fetch others. */
static double shared_ram_speed(const struct machine *m, const struct placement *p)
{
    const struct machine_gpu *g = &m->gpu[0];
    double alone = cores_gbps(m);
    double cores = g->ram_read_beside_gbps * alone / m->ram_read_gbps;
    double link = g->h2d_beside_gbps * h2d_efficiency;
    bool both = p->gpu && p->uploads && cores > 0 && link > 0;

    return (both ? fmax(alone, cores + link) : alone) * 1e9;
}

static struct speeds speeds_of(const struct machine *m, const struct placement *p,
                               struct prediction *out)
{
    const struct machine_gpu *g = &m->gpu[0];
    double gmacs = m->cpu_gmacs > 0 ? m->cpu_gmacs * product_efficiency : m->cores * core_gmacs;

    out->guessed_gpu = p->gpu && !(g->vram_gbps > 0 && g->h2d_gbps > 0);
    return (struct speeds){
        .ram = cores_gbps(m) * 1e9,
        .vram = (g->vram_gbps > 0 ? g->vram_gbps : guessed_vram_gbps) * vram_efficiency * 1e9,
        .drive = m->drive_read_gbps * drive_efficiency * 1e9,
        .h2d = (g->h2d_gbps > 0 ? g->h2d_gbps : guessed_h2d_gbps) * h2d_efficiency * 1e9,
        .shared_ram = shared_ram_speed(m, p),
        .cpu_macs = gmacs * 1e9,
        .gpu_macs = (g->gmacs > 0 ? g->gmacs : gpu_gmacs) * 1e9,
    };
}

static double take(double amount, double speed)
{
    return amount > 0 ? amount / speed : 0;
}

/* What all layers of a token cost whatever their bytes. */
static double layers_seconds(const struct shape *s, const struct placement *p, double hit_vram)
{
    double handed = s->sparse_layers * (1 - pow(hit_vram, s->topk));

    return p->gpu ? s->layers * gpu_layer_seconds + handed * handoff_seconds
                  : s->layers * boundary_seconds;
}

static double on_cpu(struct macs each, int tokens, const struct speeds *v)
{
    return tokens * (each.products + each.attention) / v->cpu_macs;
}

static void predict_decode(struct prediction *out, const struct needs *n,
                           const struct placement *p, const struct speeds *v, double kv_bytes)
{
    const struct shape *s = n->shape;
    double each = n->experts ? (double)n->expert_bytes / n->experts : 0;
    double routed = each * s->sparse_layers * s->topk;
    double dense = (double)(n->dense_bytes - n->embed_bytes) + kv_bytes;
    double missed = routed * (1 - out->hit_vram - out->hit_ram);
    double seated = routed * out->hit_vram, in_ram = routed - seated;
    double waits = missed > 0 ? s->sparse_layers *
                                (1 - pow(out->hit_vram + out->hit_ram, s->topk)) : 0;
    double ram = take(in_ram, v->shared_ram);
    double drive = take(missed, v->drive) + waits * read_seconds;
    double vram = take(seated, v->vram), macs = p->gpu ? 0 : on_cpu(token_macs(s, 0), 1, v);
    double base = take(dense, p->gpu ? v->vram : v->ram) + layers_seconds(s, p, out->hit_vram);
    double longest = fmax(fmax(ram, drive), vram);

    out->bytes_per_token = (struct tier_bytes){ seated + (p->gpu ? dense : 0),
                                                in_ram - missed + (p->gpu ? 0 : dense), missed };
    out->decode_tps = 1 / fmax(base + longest, macs);
    out->bottleneck = macs > base + longest ? "processor"
                      : drive > ram && drive > vram && drive > base ? "drive"
                      : !p->gpu || (ram > vram && ram > base) ? "RAM" : "VRAM";
}

/* A batch on the GPU, all that it multiplies being there: each weight is read once. */
static double on_gpu(const struct needs *n, const struct placement *p, const struct speeds *v,
                     double experts_bytes, int depth)
{
    struct macs each = token_macs(n->shape, depth);
    double bytes = (double)(n->dense_bytes - n->embed_bytes) + experts_bytes;
    double macs = each.products / gpu_product_efficiency +
                  each.attention / gpu_attention_efficiency;

    return n->shape->layers * gpu_batch_layer_seconds + take(bytes, v->vram) +
           p->batch * macs / v->gpu_macs;
}

/* Experts that VRAM lacks, a share of all: they cross PCIe, but where the batch is short the CPU
 * computes some where they lie, so many that both end at the same time. */
static double absent_seconds(const struct needs *n, const struct placement *p,
                             const struct speeds *v, double bytes, double share)
{
    const struct shape *s = n->shape;
    double macs = 3.0 * s->hidden * s->expert_inner * s->topk * s->sparse_layers * p->batch;
    double link = take(bytes, v->h2d), cores = take(bytes, v->ram) + share * macs / v->cpu_macs;

    return p->batch > SPLIT_TOKENS || !(link > 0) ? link : 1 / (1 / link + 1 / cores);
}

static void predict_prefill(struct prediction *out, const struct needs *n,
                            const struct placement *p, const struct speeds *v, int depth)
{
    const struct shape *s = n->shape;
    double chosen = (double)n->expert_bytes * chosen_share(s, p->batch);
    /* A batch wants nearly all experts alike: popularity does not help it. */
    double missed = n->experts ? (double)p->nvme / n->experts : 0;
    double absent = n->experts ? 1 - (double)p->vram / n->experts : 0;
    double across = p->gpu ? absent_seconds(n, p, v, chosen * absent, absent)
                           : take(chosen, v->ram);
    double base = p->gpu ? 0 : take((double)(n->dense_bytes - n->embed_bytes), v->ram);
    double macs = p->gpu ? on_gpu(n, p, v, chosen, depth + p->batch / 2)
                         : on_cpu(token_macs(s, depth + p->batch / 2), p->batch, v);
    double drive = take(chosen * missed, v->drive), longest = fmax(across, drive);

    out->prefill_tps = p->batch / fmax(base + longest, macs);
    out->prefill_bottleneck = macs > base + longest ? (p->gpu ? "GPU" : "processor")
                              : drive >= across ? "drive" : p->gpu ? "PCIe" : "RAM";
}

void predict(struct prediction *out, const struct needs *n, const struct placement *p,
             enum kv_type type, const struct machine *m, const struct skew *s, int depth)
{
    struct speeds v;

    *out = (struct prediction){ .bottleneck = "RAM" };
    v = speeds_of(m, p, out);
    out->hit_vram = skew_hits(s, p->vram);
    out->hit_ram = skew_hits(s, p->vram + p->ram) - out->hit_vram;
    if (!n->experts)
        out->hit_ram = 1;
    predict_decode(out, n, p, &v, kv_read_bytes(n->shape, type, depth));
    predict_prefill(out, n, p, &v, depth);
}

void prediction_line(char *out, size_t size, const struct prediction *p, double achieved_tps)
{
    snprintf(out, size, "predicted %.4g tok/s (%s), achieved %.4g, %.0f %%", p->decode_tps,
             p->bottleneck, achieved_tps, 100 * achieved_tps / p->decode_tps);
}
