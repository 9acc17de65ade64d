// The C interface of packed matrices: formats.h says how a tile is made, packing.h what of.
//
// data is [n / 32, rounded up][k / chunk, rounded up][bytes of a tile] and starts at a multiple of
// 16 bytes, codes at a multiple of 4; k is a multiple of what the format's groups need.
#pragma once

#include <cstdint>

extern "C" {

// Rows beyond n and columns beyond k become codes and scales of zero. Arrays that a format does not
// have are null.
int volta_pack_cpu(int format, const uint8_t* codes, const void* scales_a, const void* scales_b,
                   const void* scales_c, const void* scales_d, uint8_t* data, int64_t n, int64_t k,
                   int threads);
int volta_pack_cuda(int format, const uint8_t* codes, const void* scales_a, const void* scales_b,
                    const void* scales_c, const void* scales_d, uint8_t* data, int64_t n, int64_t k,
                    cudaStream_t stream);

// The inverse. The arrays of scales are zeros on entry.
int volta_unpack_cpu(int format, const uint8_t* data, uint8_t* codes, void* scales_a,
                     void* scales_b, void* scales_c, void* scales_d, int64_t n, int64_t k,
                     int threads);
int volta_unpack_cuda(int format, const uint8_t* data, uint8_t* codes, void* scales_a,
                      void* scales_b, void* scales_c, void* scales_d, int64_t n, int64_t k,
                      cudaStream_t stream);

// For each row of the tiles, n rounded up to 32, the power of two that brings its largest weight
// (before its row's scale) to 2^14 or more, below 2^15: so multiplied, weights fit FP16.
int volta_half_factor_cpu(int format, const uint8_t* data, float* half_factor, int64_t n, int64_t k,
                          int threads);
int volta_half_factor_cuda(int format, const uint8_t* data, float* half_factor, int64_t n,
                           int64_t k, cudaStream_t stream);

// w[n][k] = row_factor[n] * the packed weight: FP32 on the CPU, FP16 on CUDA, there w starts at a
// multiple of 16 bytes. A range of tiles is a matrix as well.
int volta_dequantize_cpu(int format, const uint8_t* data, const float* row_factor, void* w,
                         int64_t n, int64_t k, int threads);
int volta_dequantize_cuda(int format, const uint8_t* data, const float* row_factor, void* w,
                          int64_t n, int64_t k, cudaStream_t stream);

// y[m][n] = sum over k of x[m][k] * W[n][k] in FP32, for any m.
int volta_linear_cpu(int format, const float* x, const uint8_t* data, const float* row_scale,
                     float* y, int64_t m, int64_t n, int64_t k, int threads, int isa);

}  // extern "C"
