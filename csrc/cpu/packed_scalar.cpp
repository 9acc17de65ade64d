// Products with packed matrices for any CPU.
#include "packed_linear.h"

namespace volta {

const PackedLinear kPackedScalar[kFormats] = VOLTA_PACKED_TABLE;

}  // namespace volta
