/* The kernels for CPUs with AVX-512 with BF16 and VNNI, whatever this file's compiler targets by default. */
#if defined(__x86_64__)
#include <stdint.h>
#include <string.h>

#include "context.h"

#define HR_ISA HR_AVX512
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,fma,f16c")
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

const hr_kernels hr_avx512_kernels = {PANEL, pack, linear, rows, store_spans, attend, forward};
#endif
