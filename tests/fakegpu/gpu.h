// What the sources of the fake library share: the GPU handle and the names of NVML's enumerators.
#pragma once

#include "state.h"

typedef struct gpu {
  unsigned index;
} *nvmlDevice_t;

extern const char *const kComputeModes[];

// The name of an enumerator, or one that no path has where the number is none of the list's.
const char *name_of(const char *const names[], unsigned number);

int nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t gpu, unsigned *lowest,
                                                 unsigned *highest);
