/* The oracle against facts of the formats that can be written down by hand. */
#include "src/ref.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static void check_rows(void)
{
    static const uint8_t nibbles[16] = { 0x80, 0x0f, 0x9f };
    static const uint8_t bytes[32] = { 0, 128, 255 };
    static const bf16 one = 0x3f80;
    static const uint8_t e127 = 127, e128 = 128;
    uint32_t zero4 = 0x9, zero8 = 130;
    struct matrix m = { W_INT4, 1, 32, 32, nibbles, &one, NULL };
    float row[32];

    ref_row(row, &m, 0);
    ok(row[0] == -8 && row[1] == 0 && row[2] == 7, "int4: nibbles 0, 8, 15, low first");
    m.zero = &zero4;
    ref_row(row, &m, 0);
    ok(row[0] == -9 && row[1] == -1, "int4: a zero point of 9 - 8");
    m = (struct matrix){ W_INT8, 1, 32, 32, bytes, &one, NULL };
    ref_row(row, &m, 0);
    ok(row[0] == -128 && row[1] == 0 && row[2] == 127, "int8: stored plus 128");
    m.zero = &zero8;
    ref_row(row, &m, 0);
    ok(row[1] == -2, "int8: a zero point of 130 - 128");
    m = (struct matrix){ W_MXFP4, 1, 32, 32, nibbles, &e127, NULL };
    ref_row(row, &m, 0);
    ok(row[0] == 0 && row[2] == -6 && row[3] == 0 && row[4] == -6 && row[5] == -0.5f,
       "mxfp4: nibble 0xf is -6, 0x9 is -0.5");
    m.scale = &e128;
    ref_row(row, &m, 0);
    ok(row[5] == -1, "mxfp4: scale byte 128 doubles");
}

static void check_fp8(void)
{
    int bad = 0;

    for (int b = 0; b < 256; b++)
        if ((b & 0x7f) != 0x7f)
            bad += ref_fp8_from_f32(ref_fp8_to_f32((uint8_t)b)) != b;
    ok(!bad, "fp8: all 254 numbers survive a round trip");
    ok(ref_fp8_to_f32(0x7e) == 448 && ref_fp8_to_f32(0x01) == 0x1p-9f, "fp8: largest and smallest");
    ok(ref_fp8_from_f32(1e9f) == 0x7e && ref_fp8_from_f32(-1e9f) == 0xfe, "fp8: saturates");
    ok(ref_fp8_from_f32(1.0625f) == 0x38 && ref_fp8_from_f32(1.1875f) == 0x3a, "fp8: ties to even");
    ok(isnan(ref_fp8_to_f32(ref_fp8_from_f32(NAN))), "fp8: NaN stays NaN");
}

static void check_f16(void)
{
    int bad = 0;

    for (int u = 0; u < 65536; u++)
        if ((u & 0x7c00) != 0x7c00 || !(u & 0x3ff))
            bad += ref_f16_from_f32(ref_f16_to_f32((uint16_t)u)) != u;
    ok(!bad, "f16: every number survives a round trip");
    ok(ref_f16_to_f32(0x3c00) == 1 && ref_f16_to_f32(0x7bff) == 65504 &&
       ref_f16_to_f32(0x0001) == 0x1p-24f, "f16: one, largest, smallest");
    ok(ref_f16_from_f32(1 + 0x1p-11f) == 0x3c00 && ref_f16_from_f32(1 + 0x3p-11f) == 0x3c02 &&
       ref_f16_from_f32(65519) == 0x7bff && ref_f16_from_f32(65520) == 0x7c00,
       "f16: ties to even, and over the top");
    ok(isnan(ref_f16_to_f32(ref_f16_from_f32(NAN))), "f16: NaN stays NaN");
}

static void check_rope(void)
{
    struct rope r = { .dims = 4, .factor = 2, .inv_freq = { 1, 0.5f } };
    float head[6] = { 1, 2, 3, 4, 5, 6 };

    ref_rope(head, &r, 3);
    ok(fabsf(head[0] - 2 * (cosf(3) - 3 * sinf(3))) < 1e-5f &&
       fabsf(head[2] - 2 * (3 * cosf(3) + sinf(3))) < 1e-5f, "rope pairs (i, i + dims / 2)");
    ok(head[4] == 5 && head[5] == 6, "rope leaves the rest alone, unscaled");
}

static void check_route(void)
{
    static struct shape s = { .experts = 4, .topk = 2, .norm_topk = true };
    float logits[4] = { 0, 1, 2, 3 }, bias[4] = { 9, 0, 0, 0 }, w[2];
    uint16_t x[2];
    float s0 = 0.5f, s3 = 1 / (1 + expf(-3));

    ok(!ref_route(&s, logits, bias, x, w) && x[0] == 0 && x[1] == 3, "the bias selects");
    ok(fabsf(w[0] - s0 / (s0 + s3)) < 1e-6f, "the bias does not weigh");
    logits[3] = logits[2] = logits[1] = 0;
    bias[0] = 0;
    ok(!ref_route(&s, logits, bias, x, w) && x[0] == 0 && x[1] == 1, "the lower id wins a tie");
    logits[2] = NAN;
    ok(ref_route(&s, logits, bias, x, w) == -EDOM, "a NaN is an error, not an expert");
}

static void check_attend(void)
{
    float q[32] = { 0 }, k[64] = { 0 }, v[64], out[32], scratch[2];

    for (int i = 0; i < 64; i++)
        v[i] = i < 32 ? 1 : 3;
    ref_attend(out, q, k, v, 32, 32, 2, scratch);
    ok(fabsf(out[0] - 2) < 1e-6f && fabsf(out[31] - 2) < 1e-6f,
       "equal keys: the mean of the values");
    ok(fabsf(ref_softplus(0) - 0.693147f) < 1e-6f && ref_softplus(21) == 21, "softplus");
}

int main(void)
{
    check_rows();
    check_fp8();
    check_f16();
    check_rope();
    check_route();
    check_attend();
    return done();
}
