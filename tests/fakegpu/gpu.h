// What the sources of the fake library share: the GPU handle and the names of NVML's enumerators.
#pragma once

#include "state.h"

typedef struct gpu {
  unsigned index;
} *nvmlDevice_t;

extern const char *const kComputeModes[];

// The name of an enumerator, or one that no path has where the number is none of the list's.
const char *name_of(const char *const names[], unsigned number);

struct pci_info {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetNvLinkState(nvmlDevice_t gpu, unsigned link, unsigned *active);
int nvmlDeviceGetNvLinkVersion(nvmlDevice_t gpu, unsigned link, unsigned *version);
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, struct pci_info *info);
int nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t gpu, unsigned *lowest,
                                                 unsigned *highest);
