// Samples that the driver keeps: two at the ends of the state's span, both with its mean.

#include <stddef.h>

#include "gpu.h"

enum { kUtilization = 1, kValueIsUnsignedInt = 1, kSamples = 2 };

struct sample {
  unsigned long long microseconds;
  union {
    unsigned number;
    unsigned long long whole;
  } value;
};

int nvmlDeviceGetSamples(nvmlDevice_t gpu, unsigned kind, unsigned long long since,
                         unsigned *value_kind, unsigned *count, struct sample *samples) {
  const unsigned long long first = 1000000;
  unsigned mean, span_ms;
  (void)since;
  if (kind != kUtilization) return NVML_ERROR_NOT_SUPPORTED;
  int error = to_u32(find("gpus.%u.utilization_samples.mean", gpu->index), &mean);
  if (!error) error = to_u32(find("gpus.%u.utilization_samples.span_ms", gpu->index), &span_ms);
  if (error) return error;
  *value_kind = kValueIsUnsignedInt;
  *count = kSamples;
  for (unsigned i = 0; samples && i < kSamples; i++) {
    samples[i].microseconds = first + i * 1000ULL * span_ms;
    samples[i].value.whole = 0;
    samples[i].value.number = mean;
  }
  return NVML_SUCCESS;
}
