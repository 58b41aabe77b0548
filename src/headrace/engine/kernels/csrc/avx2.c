/* The kernels for CPUs with AVX2 and FMA, whatever this file's compiler targets by default. */
#if defined(__x86_64__)
#include <stdint.h>
#include <string.h>

#include "context.h"

#define HR_ISA HR_AVX2
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "vectors.h"
#include "products.h"
#include "attention.h"
#include "decoder.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const hr_kernels hr_avx2_kernels = {PANEL, pack, linear, rows, store_spans, attend, forward};
#endif
