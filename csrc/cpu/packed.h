// A packed matrix on the CPU, and the product of each instruction set: one function a format.
#pragma once

#include <cstdint>

#include "../formats.h"

namespace volta {

struct PackedMatrix {
  const uint8_t* data;
  const float* row_scale;
  int64_t n, k;
};

// y[m][n] for the rows of one tile, any m.
using PackedLinear = void (*)(const PackedMatrix& w, const float* x, float* y, int64_t m,
                              int64_t tile);

#define VOLTA_COUNT(number, name, F) +1
constexpr int kFormats = VOLTA_FORMATS(VOLTA_COUNT);
#undef VOLTA_COUNT

extern const PackedLinear kPackedScalar[kFormats];
extern const PackedLinear kPackedAvx2[kFormats];

}  // namespace volta
