// The same products, compiled for AVX2, FMA and F16C.
#include "packed_linear.h"

namespace volta {

const PackedLinear kPackedAvx2[kFormats] = VOLTA_PACKED_TABLE;

}  // namespace volta
