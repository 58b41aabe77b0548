/* The few operations that differ between instruction sets; everything else is written once over them. */
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if HR_ISA == HR_AVX512
#define LANES 16
#define PANEL_VECTORS 4
#define MAX_ROWS 6
typedef __m512 vfloat;
typedef __m512i vbits;
#else
#define LANES 8
#define PANEL_VECTORS 2
#define MAX_ROWS 4
typedef __m256 vfloat;
typedef __m256i vbits;
#endif
#define PANEL (LANES * PANEL_VECTORS)

typedef int32_t vint __attribute__((vector_size(4 * LANES)));

#if HR_ISA == HR_AVX512
INLINE vfloat load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, vfloat x) { _mm512_storeu_ps(p, x); }
INLINE vfloat splat(float x) { return _mm512_set1_ps(x); }
INLINE vbits load_bits(const uint32_t *p) { return _mm512_loadu_si512(p); }
INLINE vbits splat_bits(uint32_t x) { return _mm512_set1_epi32((int)x); }
INLINE vfloat fused(vfloat a, vfloat b, vfloat c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vfloat largest(vfloat a, vfloat b) { return _mm512_max_ps(a, b); }
INLINE vfloat smallest(vfloat a, vfloat b) { return _mm512_min_ps(a, b); }
INLINE float sum_lanes(vfloat x) { return _mm512_reduce_add_ps(x); }
INLINE float max_lanes(vfloat x) { return _mm512_reduce_max_ps(x); }
#else
INLINE vfloat load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store(float *p, vfloat x) { _mm256_storeu_ps(p, x); }
INLINE vfloat splat(float x) { return _mm256_set1_ps(x); }
INLINE vbits load_bits(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE vbits splat_bits(uint32_t x) { return _mm256_set1_epi32((int)x); }
INLINE vfloat fused(vfloat a, vfloat b, vfloat c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vfloat largest(vfloat a, vfloat b) { return _mm256_max_ps(a, b); }
INLINE vfloat smallest(vfloat a, vfloat b) { return _mm256_min_ps(a, b); }
INLINE float sum_lanes(vfloat x) {
    float lanes[LANES], sum = 0;
    store(lanes, x);
    for (int i = 0; i < LANES; ++i) sum += lanes[i];
    return sum;
}
INLINE float max_lanes(vfloat x) {
    float lanes[LANES], most;
    store(lanes, x);
    most = lanes[0];
    for (int i = 1; i < LANES; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
}
#endif

INLINE vfloat zeros(void) { return splat(0.0f); }

/* One step of a product: four bytes of an input row in all lanes, four bytes of one output's weights in each. */
INLINE vfloat dot(const int kind, vfloat sum, vbits x, vbits w) {
    if (kind == HR_F32) return fused((vfloat)x, (vfloat)w, sum);
#if HR_ISA == HR_AVX512
    if (kind == HR_BF16) return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
    return (vfloat)_mm512_dpbusd_epi32((vbits)sum, x, w);
#else
    if (kind == HR_BF16) {
        const vint high = (vint)splat_bits(0xffff0000u);
        sum = fused((vfloat)((vint)x << 16), (vfloat)((vint)w << 16), sum);
        return fused((vfloat)((vint)x & high), (vfloat)((vint)w & high), sum);
    }
    /* Unsigned by signed bytes, exactly: the even and the odd ones as 16-bit numbers. */
    vbits even_x = _mm256_and_si256(x, _mm256_set1_epi16(0xff)), odd_x = _mm256_srli_epi16(x, 8);
    vbits even_w = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), odd_w = _mm256_srai_epi16(w, 8);
    vbits products = _mm256_add_epi32(_mm256_madd_epi16(even_x, even_w), _mm256_madd_epi16(odd_x, odd_w));
    return (vfloat)_mm256_add_epi32((vbits)sum, products);
#endif
}

INLINE vfloat to_float(vint x) { return __builtin_convertvector(x, vfloat); }

/* e^x to 2 units in the last place; 0 or nearly so below -87. */
INLINE vfloat exponential(vfloat x) {
    const vfloat magic = splat(12582912.0f); /* 1.5 x 2^23: adding it rounds to a whole number */
    x = smallest(largest(x, splat(-87.0f)), splat(88.0f));
    vfloat shifted = fused(x, splat(1.44269504f), magic);
    vfloat whole = shifted - magic;
    vfloat r = fused(whole, splat(-0.693359375f), x);
    r = fused(whole, splat(2.12194440e-4f), r);
    vfloat p = splat(1.9875691500e-4f);
    p = fused(p, r, splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p, r * r, r + splat(1.0f));
    vint exponent = ((vint)shifted - (vint)magic) << 23;
    return (vfloat)((vint)p + exponent);
}

INLINE float bf16_to_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Round to nearest, ties to even, as torch does. */
INLINE uint16_t float_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
