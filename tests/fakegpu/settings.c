// What can be set on a GPU; every setting is written back to the state at once.

#include <stdio.h>
#include <string.h>

#include "gpu.h"

static const char *number(unsigned value) {
  static char text[16];
  snprintf(text, sizeof text, "%u", value);
  return text;
}

int nvmlDeviceSetPersistenceMode(nvmlDevice_t gpu, unsigned mode) {
  return store(number(mode), "gpus.%u.persistence", gpu->index);
}

int nvmlDeviceSetAccountingMode(nvmlDevice_t gpu, unsigned mode) {
  return store(number(mode), "gpus.%u.accounting", gpu->index);
}

// As on the card, current stays what it is until the next boot.
int nvmlDeviceSetEccMode(nvmlDevice_t gpu, unsigned mode) {
  return store(number(mode), "gpus.%u.ecc.pending", gpu->index);
}

int nvmlDeviceSetComputeMode(nvmlDevice_t gpu, unsigned mode) {
  const char *name = name_of(kComputeModes, mode);
  if (!strcmp(name, "?")) return NVML_ERROR_INVALID_ARGUMENT;
  return store(name, "gpus.%u.compute_mode", gpu->index);
}

int nvmlDeviceSetPowerManagementLimit(nvmlDevice_t gpu, unsigned milliwatts) {
  unsigned lowest = 0, highest = 0;
  int error = nvmlDeviceGetPowerManagementLimitConstraints(gpu, &lowest, &highest);
  if (error) return error;
  if (milliwatts < lowest || milliwatts > highest) return NVML_ERROR_INVALID_ARGUMENT;
  error = store(number(milliwatts), "gpus.%u.power.limit_mw", gpu->index);
  return error ? error : store(number(milliwatts), "gpus.%u.power.enforced_mw", gpu->index);
}

// A card takes only the clocks on its list; here, any up to its maximum.
int nvmlDeviceSetApplicationsClocks(nvmlDevice_t gpu, unsigned memory, unsigned graphics) {
  unsigned memory_max = 0, graphics_max = 0;
  int error = to_u32(find("gpus.%u.clocks_max.memory", gpu->index), &memory_max);
  if (!error) error = to_u32(find("gpus.%u.clocks_max.graphics", gpu->index), &graphics_max);
  if (error) return error;
  if (memory > memory_max || graphics > graphics_max) return NVML_ERROR_INVALID_ARGUMENT;
  error = store(number(memory), "gpus.%u.application_clocks.memory", gpu->index);
  return error ? error : store(number(graphics), "gpus.%u.application_clocks.graphics", gpu->index);
}

int nvmlDeviceResetApplicationsClocks(nvmlDevice_t gpu) {
  unsigned memory = 0, graphics = 0;
  int error = to_u32(find("gpus.%u.application_clocks.default_memory", gpu->index), &memory);
  if (!error)
    error = to_u32(find("gpus.%u.application_clocks.default_graphics", gpu->index), &graphics);
  return error ? error : nvmlDeviceSetApplicationsClocks(gpu, memory, graphics);
}
