// What is read of a GPU in one call.

#include <stdio.h>
#include <string.h>

#include "gpu.h"

// Enumerators by number, in the names of the doctor's facts.
const char *const kComputeModes[] = {"default", "exclusive_thread", "prohibited",
                                     "exclusive_process", NULL};
static const char *const kClocks[] = {"graphics", "sm", "memory", "video", NULL};
static const char *const kDriverModels[] = {"wddm", "wdm", "mcdm", NULL};
static const char *const kEccErrors[] = {"corrected", "uncorrected", NULL};
static const char *const kEccCounters[] = {"volatile", "aggregate", NULL};
static const char *const kInforomObjects[] = {"oem", "ecc", "power", NULL};
static const char *const kSensors[] = {"gpu", NULL};
static const char *const kThresholds[] = {"shutdown", "slowdown", "memory_max", "gpu_max", NULL};

const char *name_of(const char *const names[], unsigned number) {
  for (unsigned i = 0; names[i]; i++)
    if (i == number) return names[i];
  return "?";
}

#define GPU_TEXT(X)                              \
  X(nvmlDeviceGetUUID, "uuid")                   \
  X(nvmlDeviceGetName, "name")                   \
  X(nvmlDeviceGetSerial, "serial")               \
  X(nvmlDeviceGetBoardPartNumber, "part_number") \
  X(nvmlDeviceGetVbiosVersion, "vbios")          \
  X(nvmlDeviceGetInforomImageVersion, "inforom.image")
#define X(function, path)                                          \
  int function(nvmlDevice_t gpu, char *text, unsigned size) {      \
    return to_text(find("gpus.%u." path, gpu->index), text, size); \
  }
GPU_TEXT(X)
#undef X

#define GPU_U32(X)                                                   \
  X(nvmlDeviceGetMinorNumber, "minor_number")                        \
  X(nvmlDeviceGetPersistenceMode, "persistence")                     \
  X(nvmlDeviceGetAccountingMode, "accounting")                       \
  X(nvmlDeviceGetPerformanceState, "performance_state")              \
  X(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")          \
  X(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation_max")       \
  X(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")                    \
  X(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")                 \
  X(nvmlDeviceGetPcieReplayCounter, "pcie.replays")                  \
  X(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages.pending") \
  X(nvmlDeviceGetPowerUsage, "power.draw_mw")                        \
  X(nvmlDeviceGetPowerManagementLimit, "power.limit_mw")             \
  X(nvmlDeviceGetEnforcedPowerLimit, "power.enforced_mw")            \
  X(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_mw")
#define X(function, path)                                  \
  int function(nvmlDevice_t gpu, unsigned *out) {          \
    return to_u32(find("gpus.%u." path, gpu->index), out); \
  }
GPU_U32(X)
#undef X

#define GPU_U64(X)                                           \
  X(nvmlDeviceGetCurrentClocksEventReasons, "event_reasons") \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, "event_reasons")
#define X(function, path)                                   \
  int function(nvmlDevice_t gpu, unsigned long long *out) { \
    return to_u64(find("gpus.%u." path, gpu->index), out);  \
  }
GPU_U64(X)
#undef X

#define GPU_PAIR(X)                                     \
  X(nvmlDeviceGetEccMode, "ecc.current", "ecc.pending") \
  X(nvmlDeviceGetPowerManagementLimitConstraints, "power.min_mw", "power.max_mw")
#define X(function, first_path, second_path)                                         \
  int function(nvmlDevice_t gpu, unsigned *first, unsigned *second) {                \
    int error = to_u32(find("gpus.%u." first_path, gpu->index), first);              \
    return error ? error : to_u32(find("gpus.%u." second_path, gpu->index), second); \
  }
GPU_PAIR(X)
#undef X

// One of several: which one is the call's second argument.
#define GPU_U32_OF(X)                                                              \
  X(nvmlDeviceGetClockInfo, "clocks.", kClocks)                                    \
  X(nvmlDeviceGetMaxClockInfo, "clocks_max.", kClocks)                             \
  X(nvmlDeviceGetApplicationsClock, "application_clocks.", kClocks)                \
  X(nvmlDeviceGetDefaultApplicationsClock, "application_clocks.default_", kClocks) \
  X(nvmlDeviceGetTemperature, "temperature.", kSensors)                            \
  X(nvmlDeviceGetTemperatureThreshold, "temperature.", kThresholds)
#define X(function, prefix, names)                                                       \
  int function(nvmlDevice_t gpu, unsigned which, unsigned *out) {                        \
    return to_u32(find("gpus.%u." prefix "%s", gpu->index, name_of(names, which)), out); \
  }
GPU_U32_OF(X)
#undef X

int nvmlDeviceGetComputeMode(nvmlDevice_t gpu, unsigned *mode) {
  return to_enum(find("gpus.%u.compute_mode", gpu->index), kComputeModes, mode);
}

int nvmlDeviceGetDriverModel(nvmlDevice_t gpu, unsigned *current, unsigned *pending) {
  int error = to_enum(find("gpus.%u.driver_model.current", gpu->index), kDriverModels, current);
  if (error) return error;
  return to_enum(find("gpus.%u.driver_model.pending", gpu->index), kDriverModels, pending);
}

int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t gpu, int *major, int *minor) {
  const struct reading *reading = find("gpus.%u.compute_capability", gpu->index);
  if (reading->error) return reading->error;
  return sscanf(reading->text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

int nvmlDeviceGetInforomVersion(nvmlDevice_t gpu, unsigned object, char *text, unsigned size) {
  return to_text(find("gpus.%u.inforom.%s", gpu->index, name_of(kInforomObjects, object)), text,
                 size);
}

int nvmlDeviceValidateInforom(nvmlDevice_t gpu) {
  return find("gpus.%u.inforom.valid", gpu->index)->error;
}

int nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, unsigned type, unsigned counter,
                                unsigned long long *count) {
  return to_u64(find("gpus.%u.ecc.%s_%s", gpu->index, name_of(kEccCounters, counter),
                     name_of(kEccErrors, type)),
                count);
}

int nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, struct pci_info *info) {
  memset(info, 0, sizeof *info);
  int error = to_text(find("gpus.%u.pci.bus_id", gpu->index), info->bus_id, sizeof info->bus_id);
  if (!error) error = to_u32(find("gpus.%u.pci.device_id", gpu->index), &info->device_id);
  if (!error) error = to_u32(find("gpus.%u.pci.subsystem_id", gpu->index), &info->subsystem_id);
  sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
  return error;
}

struct utilization {
  unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, struct utilization *rates) {
  int error = to_u32(find("gpus.%u.utilization.gpu", gpu->index), &rates->gpu);
  return error ? error : to_u32(find("gpus.%u.utilization.memory", gpu->index), &rates->memory);
}

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, struct memory_v2 *memory) {
  int error = to_u64(find("gpus.%u.memory.total", gpu->index), &memory->total);
  if (!error) error = to_u64(find("gpus.%u.memory.reserved", gpu->index), &memory->reserved);
  if (!error) error = to_u64(find("gpus.%u.memory.free", gpu->index), &memory->free);
  return error ? error : to_u64(find("gpus.%u.memory.used", gpu->index), &memory->used);
}

struct memory_v1 {
  unsigned long long total, free, used;
};

// The first version counts what the driver reserves as used.
int nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, struct memory_v1 *memory) {
  struct memory_v2 info = {0};
  int error = nvmlDeviceGetMemoryInfo_v2(gpu, &info);
  if (!error) *memory = (struct memory_v1){info.total, info.free, info.used + info.reserved};
  return error;
}
