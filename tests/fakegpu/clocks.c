// The clocks that a card takes: its highest memory clock, and with it, as a V100's list goes,
// graphics clocks from 135 MHz to its highest in steps of 7.5 MHz, of which the half is not told.

#include "gpu.h"

static int highest(nvmlDevice_t gpu, const char *which, unsigned *clock) {
  return to_u32(find("gpus.%u.clocks_max.%s", gpu->index, which), clock);
}

int nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t gpu, unsigned *count, unsigned *clocks) {
  unsigned room = *count, memory = 0;
  int error = highest(gpu, "memory", &memory);
  if (error) return error;
  *count = 1;
  if (room < 1) return NVML_ERROR_INSUFFICIENT_SIZE;
  clocks[0] = memory;
  return NVML_SUCCESS;
}

int nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t gpu, unsigned memory, unsigned *count,
                                         unsigned *clocks) {
  const unsigned lowest = 135;
  unsigned room = *count, memory_max = 0, graphics_max = 0;
  int error = highest(gpu, "memory", &memory_max);
  if (!error) error = highest(gpu, "graphics", &graphics_max);
  if (error) return error;
  if (memory != memory_max || graphics_max < lowest) return NVML_ERROR_INVALID_ARGUMENT;
  *count = ((graphics_max - lowest) * 2 + 1) / 15 + 1;
  if (room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) clocks[i] = lowest + (*count - 1 - i) * 15 / 2;
  return NVML_SUCCESS;
}
