/* The loops of docs/bits.md, one after the other, as the page words them.
 *
 * Written from that page alone, without a look at native/: that the two agree bit for bit is the test. So nothing here is
 * fast, and nothing is shared with the kernel. scalar_bits.py compiles it (no contraction), and does the grid and the fold.
 * Arrays are C-contiguous; operands come widened to float.
 */
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float the_nan(void) { return from_bits(0x7FC00000u); }

/* "exp". Elsewhere than at x <= 0 the page defines nothing; NaN shows it. */
static float exp_of(float x) {
    if (!(x <= 0)) return the_nan();
    if (x < -0x1.5d3334p+6f) return 0;
    const float t = fmaf(x, 0x1.715476p+0f, 12583039.0f);
    const float n = t - 12583039.0f;
    float r = fmaf(n, -0x1.62e4p-1f, x);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float q = 0x1.6a2352p-10f;
    q = fmaf(q, r, 0x1.123a6ap-7f);
    q = fmaf(q, r, 0x1.5558f4p-5f);
    q = fmaf(q, r, 0x1.555490p-3f);
    q = fmaf(q, r, 0x1.fffffcp-2f);
    float p = fmaf(q, r, 1);
    p = fmaf(p, r, 1);
    return p * ldexpf(1, (int)n);
}

/* "tanh" */
static float tanh_of(float x) {
    if (isnan(x)) return the_nan();
    const float u = fabsf(x);
    if (u < 0.625f) {
        const float y = x * x;
        float q = -0x1.733f82p-8f;
        q = fmaf(q, y, 0x1.51c5d6p-6f);
        q = fmaf(q, y, -0x1.b83a14p-5f);
        q = fmaf(q, y, 0x1.1107acp-3f);
        q = fmaf(q, y, -0x1.55553ap-2f);
        return fmaf(x * y, q, x);
    }
    const float e = exp_of(u * -2);
    return copysignf((1 - e) / (1 + e), x);
}

/* "log" */
static float log_of(float x) {
    if (isnan(x) || x < 0) return the_nan();
    if (x == 0) return -INFINITY;
    if (x == INFINITY) return INFINITY;
    int32_t k = 0;
    if (x < 0x1p-126f) {
        x = x * 0x1p25f;
        k = -25;
    }
    const int32_t above = (int32_t)(to_bits(x) - 0x3F3504F3u);
    k += above >> 23;
    const float m = from_bits(((uint32_t)above & 0x007FFFFFu) + 0x3F3504F3u);
    const float f = m - 1;
    const float s = f / (2 + f);
    const float z = s * s;
    const float r = z * (0x1.555556p-1f + z * (0x1.999a7ep-2f + z * (0x1.243534p-2f + z * 0x1.e3bd10p-3f)));
    const float h = (0.5f * f) * f;
    const float kf = (float)k;
    return kf * 0x1.62e4p-1f - ((h - (s * (h + r) + kf * 0x1.7f7d1cp-20f)) - f);
}

/* "the largest, where -0 < +0"; NaN if either is NaN */
static float larger(float a, float b) {
    if (isnan(a) || isnan(b)) return the_nan();
    if (a == 0 && b == 0) return signbit(a) ? b : a;
    return a > b ? a : b;
}

void fma_each(int64_t count, const float *a, const float *b, const float *c, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = fmaf(a[i], b[i], c[i]);
}

void exp_each(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = exp_of(x[i]);
}

void tanh_each(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = tanh_of(x[i]);
}

void log_each(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = log_of(x[i]);
}

/* "Logits". bias, softcap and temperature are null when there is none; temperature is one per row. */
void logits(int64_t N, int64_t H, int64_t V, const float *X, const float *W, const float *bias, float scale,
            const float *softcap, const float *temperature, float *out) {
    for (int64_t i = 0; i < N; i++) {
        for (int64_t j = 0; j < V; j++) {
            float z = 0;
            for (int64_t first = 0; first < H; first += 128) {
                const int64_t end = first + 128 < H ? first + 128 : H;
                float c = 0;
                for (int64_t k = first; k < end; k++) c = fmaf(X[i * H + k], W[j * H + k], c);
                z = first == 0 ? c : z + c;
            }
            if (bias) z = z + bias[j];
            if (scale != 1) z = z * scale;
            if (softcap) z = *softcap * tanh_of(z / *softcap);
            if (temperature) z = z / temperature[i];
            out[i * V + j] = z;
        }
    }
}

/* The pairwise tree over the 16 accumulators. */
static float tree(const float a[16]) {
    float node[16];
    memcpy(node, a, sizeof node);
    for (int width = 16; width > 1; width /= 2) {
        for (int i = 0; i < width / 2; i++) node[i] = node[2 * i] + node[2 * i + 1];
    }
    return node[0];
}

/* "A tile": columns start .. start + n - 1 of logits [N, V], all of them unmasked. */
void tile(int64_t N, int64_t V, const float *all, int64_t start, int64_t n, float *max, float *sum_exp, float *weighted) {
    for (int64_t i = 0; i < N; i++) {
        const float *z = all + i * V + start;
        float m = -INFINITY;
        for (int64_t j = 0; j < n; j++) m = larger(m, z[j]);
        float s, t;
        if (isnan(m)) {
            s = t = the_nan();
        } else if (m == -INFINITY) {
            s = t = 0;
        } else if (m == INFINITY) {
            s = 0;
            for (int64_t j = 0; j < n; j++) s += z[j] == INFINITY;
            t = the_nan();
        } else {
            float a[16] = {0}, b[16] = {0};
            for (int64_t j = 0; j < n; j++) {
                const float d = z[j] - m;
                const float e = exp_of(d);
                a[j % 16] = a[j % 16] + e;
                b[j % 16] = b[j % 16] + (e == 0 ? 0 : e * d);
            }
            s = tree(a);
            t = tree(b);
        }
        max[i] = m;
        sum_exp[i] = s;
        weighted[i] = t;
    }
}

static float moved(float m, float s, float t, float f, float M) {
    if (m == M) return t;
    if (f == 0) return 0;
    return f * fmaf(s, m - M, t);
}

/* "Fold": a ⊕ b, element by element */
void merge(int64_t count, const float *am, const float *as, const float *at, const float *bm, const float *bs,
           const float *bt, float *max, float *sum_exp, float *weighted) {
    for (int64_t i = 0; i < count; i++) {
        const float M = larger(am[i], bm[i]);
        const float fa = am[i] == M ? 1 : exp_of(am[i] - M);
        const float fb = bm[i] == M ? 1 : exp_of(bm[i] - M);
        max[i] = M;
        sum_exp[i] = fmaf(bs[i], fb, as[i] * fa);
        weighted[i] = moved(am[i], as[i], at[i], fa, M) + moved(bm[i], bs[i], bt[i], fb, M);
    }
}

/* "Derived values" */
void logprob(int64_t count, const float *z, const float *m, const float *s, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = -(log_of(s[i]) - (z[i] - m[i]));
}

void entropy(int64_t count, const float *s, const float *t, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = log_of(s[i]) - t[i] / s[i];
}

void softmax(int64_t N, int64_t V, const float *z, const float *m, const float *s, float *out) {
    for (int64_t i = 0; i < N; i++) {
        for (int64_t j = 0; j < V; j++) out[i * V + j] = exp_of(z[i * V + j] - m[i]) / s[i];
    }
}

/* "Sums over a row": the terms of a tile, columns start .. start + n - 1 of logits [N, V], all of them unmasked. weight
 * [V] and dense [N, V] are null when there are none; sums over what isn't there are left out. */
void tile_sums(int64_t N, int64_t V, const float *all, int64_t start, int64_t n, const float *max, const float *weight,
               const float *dense, float *ties, float *column_sum, float *dense_total, float *dense_sum,
               float *dense_exp) {
    for (int64_t i = 0; i < N; i++) {
        float a[5][16] = {{0}};
        for (int64_t j = 0; j < n; j++) {
            const int64_t column = start + j, at = j % 16;
            const float z = all[i * V + column];
            const float d = z - max[i];
            const float w = weight ? weight[column] : 1;
            a[0][at] = a[0][at] + (z == max[i] ? 1 : 0);
            a[1][at] = a[1][at] + w * d;
            if (!dense) continue;
            const float q = dense[i * V + column];
            a[2][at] = a[2][at] + w * q;
            a[3][at] = a[3][at] + (w * q) * d;
            a[4][at] = a[4][at] + q * exp_of(d);
        }
        ties[i] = tree(a[0]);
        column_sum[i] = tree(a[1]);
        if (!dense) continue;
        dense_total[i] = tree(a[2]);
        dense_sum[i] = tree(a[3]);
        dense_exp[i] = tree(a[4]);
    }
}

/* Coefficients of a row each [N], by the letters of the page; null when left out. */
struct coefficients {
    const float *A, *K, *C, *U, *D, *T, *B, *L;
};

/* "The gradient of the logits": of the first `valid` columns of logits [N, V]; the others are left as they are. Where
 * there is none, weight, dense, target, softcap and temperature are null; temperature is one per row. */
void logit_gradient(int64_t N, int64_t V, int64_t valid, const float *logits, const float *max,
                    const struct coefficients *given, const float *weight, const float *dense, const int64_t *target,
                    float scale, const float *softcap, const float *temperature, float *out) {
    const struct coefficients f = *given;
    for (int64_t i = 0; i < N; i++) {
        for (int64_t j = 0; j < valid; j++) {
            const float z = logits[i * V + j];
            const float w = weight ? weight[j] : 1;
            const float d = z - max[i];
            const float e = exp_of(d);
            float g = 0;
            if (f.A && !f.K) g = e * f.A[i];
            if (f.A && f.K) g = e == 0 ? e * f.A[i] : e * fmaf(f.K[i], d, f.A[i]);
            if (f.A && f.C) g = g * (dense[i * V + j] - f.C[i]);
            if (f.A && f.L && e < f.L[i]) g = 0;
            if (f.U) g = fmaf(f.U[i], w, g);
            if (f.D) g = fmaf(f.D[i] * w, dense[i * V + j], g);
            if (f.T && z == max[i]) g = g + f.T[i];
            if (f.B && target[i] == j) g = g + f.B[i];
            if (temperature) g = g / temperature[i];
            if (softcap) {
                const float c = temperature ? z * temperature[i] : z;
                const float u = c / *softcap;
                g = g * fmaf(-u, u, 1);
            }
            if (scale != 1) g = g * scale;
            out[i * V + j] = g;
        }
    }
}

/* "input": the value of the segment with columns start .. start + n - 1 of G [N, V], all of them unmasked. */
void segment_input_gradient(int64_t N, int64_t H, int64_t V, const float *G, const float *W, int64_t start, int64_t n,
                            float *out) {
    for (int64_t i = 0; i < N; i++) {
        for (int64_t h = 0; h < H; h++) {
            float value = 0;
            for (int64_t first = 0; first < n; first += 128) {
                const int64_t end = first + 128 < n ? first + 128 : n;
                float c = 0;
                for (int64_t j = start + first; j < start + end; j++) c = fmaf(G[i * V + j], W[j * H + h], c);
                value = first == 0 ? c : value + c;
            }
            out[i * H + h] = value;
        }
    }
}

/* "weight": the first `valid` rows of the result [V, H]; the others are left as they are. */
void weight_gradient(int64_t N, int64_t H, int64_t V, int64_t valid, const float *G, const float *X, float *out) {
    for (int64_t j = 0; j < valid; j++) {
        for (int64_t h = 0; h < H; h++) {
            float value = 0;
            for (int64_t first = 0; first < N; first += 128) {
                const int64_t end = first + 128 < N ? first + 128 : N;
                float c = 0;
                for (int64_t i = first; i < end; i++) c = fmaf(G[i * V + j], X[i * H + h], c);
                value = first == 0 ? c : value + c;
            }
            out[j * H + h] = value;
        }
    }
}

/* "bias": the first `valid` elements of the result [V]; the others are left as they are. */
void bias_gradient(int64_t N, int64_t V, int64_t valid, const float *G, float *out) {
    for (int64_t j = 0; j < valid; j++) {
        float value = 0;
        for (int64_t first = 0; first < N; first += 128) {
            const int64_t end = first + 128 < N ? first + 128 : N;
            float a[16] = {0};
            for (int64_t i = first; i < end; i++) a[i % 16] = a[i % 16] + G[i * V + j];
            value = first == 0 ? tree(a) : value + tree(a);
        }
        out[j] = value;
    }
}

/* For the tests of a caller's floating-point mode, no part of the page: 0 for ties to even, 1 up, 2 down, 3 to zero. */
int set_rounding(int mode) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    return fesetround(modes[mode]);
}

int rounding(void) {
    switch (fegetround()) {
    case FE_TONEAREST: return 0;
    case FE_UPWARD: return 1;
    case FE_DOWNWARD: return 2;
    default: return 3;
    }
}
