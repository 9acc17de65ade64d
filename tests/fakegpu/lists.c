// Retired pages and processes. Asked with too little room, a list answers how much it needs.

#include <stddef.h>

#include "gpu.h"

static const char *const kRetirementCauses[] = {"single_bit", "double_bit", NULL};

int nvmlDeviceGetRetiredPages_v2(nvmlDevice_t gpu, unsigned cause, unsigned *count,
                                 unsigned long long *addresses, unsigned long long *timestamps) {
  const char *list = name_of(kRetirementCauses, cause);
  unsigned room = *count;
  int error = to_u32(find("gpus.%u.retired_pages.%s", gpu->index, list), count);
  if (error) return error;
  if (room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) {
    to_u64(find("gpus.%u.retired_pages.%s.%u.address", gpu->index, list, i), &addresses[i]);
    if (timestamps)
      to_u64(find("gpus.%u.retired_pages.%s.%u.timestamp", gpu->index, list, i), &timestamps[i]);
  }
  return NVML_SUCCESS;
}

int nvmlDeviceGetRetiredPages(nvmlDevice_t gpu, unsigned cause, unsigned *count,
                              unsigned long long *addresses) {
  return nvmlDeviceGetRetiredPages_v2(gpu, cause, count, addresses, NULL);
}

struct process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

static int list_processes(const char *list, nvmlDevice_t gpu, unsigned *count,
                          struct process *processes) {
  const unsigned long long not_available = ~0ULL;
  unsigned room = *count;
  int error = to_u32(find("gpus.%u.%s", gpu->index, list), count);
  if (error) return error;
  if (room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) {
    processes[i] =
        (struct process){.memory = not_available, .gpu_instance = ~0U, .compute_instance = ~0U};
    to_u32(find("gpus.%u.%s.%u.pid", gpu->index, list, i), &processes[i].pid);
    to_u64(find("gpus.%u.%s.%u.memory", gpu->index, list, i), &processes[i].memory);
  }
  return NVML_SUCCESS;
}

#define GPU_PROCESSES(X)                                            \
  X(nvmlDeviceGetComputeRunningProcesses_v2, "compute_processes")   \
  X(nvmlDeviceGetComputeRunningProcesses_v3, "compute_processes")   \
  X(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics_processes") \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics_processes")
#define X(function, list)                                                      \
  int function(nvmlDevice_t gpu, unsigned *count, struct process *processes) { \
    return list_processes(list, gpu, count, processes);                        \
  }
GPU_PROCESSES(X)
#undef X
