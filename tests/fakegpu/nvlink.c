// NVLinks, and NVML's numbered fields, which hold their speed.

#include <stddef.h>

#include "gpu.h"

static const char *const kLinkErrors[] = {"replays", "recoveries", "crc_flit", "crc_data", NULL};

// Success if the GPU has the link: the number of links is known only by asking for one too many.
static int check_link(nvmlDevice_t gpu, unsigned link) {
  unsigned count = 0;
  int error = to_u32(find("gpus.%u.nvlinks", gpu->index), &count);
  if (error) return error;
  return link < count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

#define LINK_U32(X)                     \
  X(nvmlDeviceGetNvLinkState, "active") \
  X(nvmlDeviceGetNvLinkVersion, "version")
#define X(function, path)                                                                   \
  int function(nvmlDevice_t gpu, unsigned link, unsigned *out) {                            \
    int error = check_link(gpu, link);                                                      \
    return error ? error : to_u32(find("gpus.%u.nvlinks.%u." path, gpu->index, link), out); \
  }
LINK_U32(X)
#undef X

int nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t gpu, unsigned link, unsigned counter,
                                    unsigned long long *count) {
  int error = check_link(gpu, link);
  if (error) return error;
  return to_u64(find("gpus.%u.nvlinks.%u.%s", gpu->index, link, name_of(kLinkErrors, counter)),
                count);
}

struct field_value {
  unsigned field, scope;
  long long timestamp, latency_us;
  unsigned value_type;
  int error;
  union {
    unsigned u32;
    unsigned long long u64;
  } value;
};

enum {
  kValueTypeU32 = 1,
  kFieldMemoryTemperature = 82,
  kFieldLinkSpeedL0 = 84,   // to 89: links 0 to 5
  kFieldLinkSpeedL6 = 132,  // to 137: links 6 to 11
};

int nvmlDeviceGetFieldValues(nvmlDevice_t gpu, int count, struct field_value *values) {
  for (struct field_value *v = values; v < values + count; v++) {
    const struct reading *reading;
    if (v->field == kFieldMemoryTemperature)
      reading = find("gpus.%u.temperature.memory", gpu->index);
    else if (v->field - kFieldLinkSpeedL0 < 6)
      reading = find("gpus.%u.nvlinks.%u.speed_mbps", gpu->index, v->field - kFieldLinkSpeedL0);
    else
      reading = find("gpus.%u.nvlinks.%u.speed_mbps", gpu->index, v->field - kFieldLinkSpeedL6 + 6);
    v->value_type = kValueTypeU32;
    v->error = to_u32(reading, &v->value.u32);
  }
  return NVML_SUCCESS;
}
