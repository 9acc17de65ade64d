// The state of the fake GPUs: lines `path=value` or `path!error code`, named by $VOLTA_FAKE_NVML.
// The paths are those of the doctor's NVML facts (gpus.0.ecc.current).
#pragma once

// Return codes, as in nvml.h.
enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
  NVML_ERROR_UNKNOWN = 999,
};

struct reading {
  char *path;
  char *text;  // of a value
  int error;   // else the code to return
};

// Reads the state anew; NVML_ERROR_DRIVER_NOT_LOADED when there is none.
int state_load(void);

// The reading at a printf-style path; one that is not in the state is "not supported".
const struct reading *find(const char *path_format, ...);

// Writes a value back at once, unless the reading is an error or the state holds a set_error: then
// returns that.
int store(const char *text, const char *path_format, ...);

// What a reading says, as the type that a function returns; the result is NVML's return code.
int to_u32(const struct reading *reading, unsigned *out);
int to_u64(const struct reading *reading, unsigned long long *out);
int to_text(const struct reading *reading, char *out, unsigned size);
// The place of a name in a list that ends with NULL.
int to_enum(const struct reading *reading, const char *const names[], unsigned *out);
