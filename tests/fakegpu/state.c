#define _GNU_SOURCE  // asprintf, getline
#include "state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct reading *readings;
static size_t reading_count;

static void state_free(void) {
  for (size_t i = 0; i < reading_count; i++) {
    free(readings[i].path);
    free(readings[i].text);
  }
  free(readings);
  readings = NULL;
  reading_count = 0;
}

// Where no variable names it: a fake host has it at one place, as a library must that any program
// loads.
#ifndef FAKE_STATE
#define FAKE_STATE NULL
#endif

static const char *state_file(void) {
  const char *named = getenv("VOLTA_FAKE_NVML");
  return named ? named : FAKE_STATE;
}

int state_load(void) {
  const char *file_name = state_file();
  FILE *file = file_name ? fopen(file_name, "r") : NULL;
  if (!file) return NVML_ERROR_DRIVER_NOT_LOADED;
  state_free();
  char *line = NULL;
  size_t size = 0;
  while (getline(&line, &size, file) > 0) {
    line[strcspn(line, "\n")] = '\0';
    size_t end = strcspn(line, "=!");
    if (!line[end]) continue;
    readings = realloc(readings, (reading_count + 1) * sizeof *readings);
    readings[reading_count++] = (struct reading){
        .path = strndup(line, end),
        .text = strdup(line + end + 1),
        .error = line[end] == '!' ? atoi(line + end + 1) : NVML_SUCCESS,
    };
  }
  free(line);
  fclose(file);
  return NVML_SUCCESS;
}

// Written beside the state and renamed, so that no reader sees half of it.
static int state_save(void) {
  const char *file_name = state_file();
  char *new_name = NULL;
  if (asprintf(&new_name, "%s.new", file_name) < 0) return NVML_ERROR_UNKNOWN;
  FILE *file = fopen(new_name, "w");
  int failed = !file;
  if (file) {
    for (size_t i = 0; i < reading_count; i++)
      fprintf(file, "%s%c%s\n", readings[i].path, readings[i].error ? '!' : '=', readings[i].text);
    failed = fclose(file) || rename(new_name, file_name);
  }
  free(new_name);
  return failed ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static struct reading *vfind(const char *path_format, va_list arguments) {
  static struct reading missing = {.text = "", .error = NVML_ERROR_NOT_SUPPORTED};
  char path[128];
  vsnprintf(path, sizeof path, path_format, arguments);
  for (size_t i = 0; i < reading_count; i++)
    if (!strcmp(readings[i].path, path)) return &readings[i];
  return &missing;
}

const struct reading *find(const char *path_format, ...) {
  va_list arguments;
  va_start(arguments, path_format);
  const struct reading *reading = vfind(path_format, arguments);
  va_end(arguments);
  return reading;
}

int store(const char *text, const char *path_format, ...) {
  va_list arguments;
  va_start(arguments, path_format);
  struct reading *reading = vfind(path_format, arguments);
  va_end(arguments);
  if (reading->error) return reading->error;
  int refused = find("set_error")->error;
  if (refused != NVML_ERROR_NOT_SUPPORTED) return refused;
  free(reading->text);
  reading->text = strdup(text);
  return state_save();
}

int to_u64(const struct reading *reading, unsigned long long *out) {
  if (!reading->error) *out = strtoull(reading->text, NULL, 0);
  return reading->error;
}

int to_u32(const struct reading *reading, unsigned *out) {
  unsigned long long wide = 0;
  int error = to_u64(reading, &wide);
  if (!error) *out = (unsigned)wide;
  return error;
}

int to_text(const struct reading *reading, char *out, unsigned size) {
  if (reading->error) return reading->error;
  if (strlen(reading->text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(out, reading->text);
  return NVML_SUCCESS;
}

int to_enum(const struct reading *reading, const char *const names[], unsigned *out) {
  if (reading->error) return reading->error;
  for (*out = 0; names[*out]; ++*out)
    if (!strcmp(names[*out], reading->text)) return NVML_SUCCESS;
  return NVML_ERROR_UNKNOWN;
}
