// A libnvidia-ml.so.1 whose GPUs live in a text file (state.h). Signatures follow nvml.h.
//
// This file opens the library and its GPUs; the others answer about them. Functions of one shape
// are rows of a table there: to answer another call, add a row.

#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

#define MAX_GPUS 16

static struct gpu gpus[MAX_GPUS];
static int users;  // nvmlInit less nvmlShutdown

// The error that the state holds against a step that otherwise succeeds.
static int refusal(const struct reading *reading) {
  return reading->error == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : reading->error;
}

// A driver that is wedged: nothing but SIGKILL ends the process. Or one that takes it down.
static void obey(const char *fault) {
  if (!strcmp(fault, "hang")) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;) pause();
  }
  if (!strcmp(fault, "crash")) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int error = state_load();
  if (!error) obey(find("fault")->text);
  if (!error) error = refusal(find("init_error"));
#ifdef FAKE_VERSION
  if (!error && strcmp(find("driver_version")->text, FAKE_VERSION))
    error = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
#endif
  if (!error) users++;
  return error;
}

int nvmlShutdown(void) {
  if (!users) return NVML_ERROR_UNINITIALIZED;
  users--;
  return NVML_SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
  return to_text(find("nvml_version"), text, size);
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  return users ? to_text(find("driver_version"), text, size) : NVML_ERROR_UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
  return users ? to_u32(find("cuda_version"), (unsigned *)version) : NVML_ERROR_UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  return users ? to_u32(find("device_count"), count) : NVML_ERROR_UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *gpu) {
  unsigned count = 0;
  int error = nvmlDeviceGetCount_v2(&count);
  if (error) return error;
  if (index >= count || index >= MAX_GPUS) return NVML_ERROR_INVALID_ARGUMENT;
  error = refusal(find("gpus.%u.handle_error", index));
  if (error) return error;
  gpus[index].index = index;
  *gpu = &gpus[index];
  return NVML_SUCCESS;
}
