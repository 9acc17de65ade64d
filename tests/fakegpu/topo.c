// How the GPUs are joined, from the state's `topo`: the matrices of the doctor's topo section, and
// `topo.switches`, the bus ids of the NVSwitches (six for each eight GPUs, as on HGX-2).

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum {
  kGpusPerBoard = 8,
  kSwitchesPerBoard = 6,
  kNvSwitchId = 0x1AC210DE,
  kRemoteGpu = 0,
  kRemoteSwitch = 2,
};

static const char *const kP2pStatuses[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U", NULL};

static const struct {
  const char *name;
  unsigned level;
} kLevels[] = {{"X", 0},     {"PIX", 10}, {"PXB", 20}, {"PHB", 30},
               {"NODE", 40}, {"SYS", 50}, {NULL, 0}};

// The number of NVLinks between two GPUs: n where the matrix has NVn.
static unsigned links_between(unsigned one, unsigned other) {
  const struct reading *reading = find("topo.links.%u.%u", one, other);
  unsigned links = 0;
  return !reading->error && sscanf(reading->text, "NV%u", &links) == 1 ? links : 0;
}

int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level) {
  const struct reading *reading = find("topo.links.%u.%u", one->index, other->index);
  if (reading->error) return reading->error;
  const char *name = reading->text;
  if (links_between(one->index, other->index)) {  // then the matrix does not show the way over PCIe
    const struct reading *a = find("topo.nodes.%u", one->index);
    const struct reading *b = find("topo.nodes.%u", other->index);
    name = strcmp(a->text, b->text) ? "SYS" : "NODE";
  }
  for (int i = 0; kLevels[i].name; i++) {
    if (!strcmp(kLevels[i].name, name)) {
      *level = kLevels[i].level;
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_UNKNOWN;
}

int nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned capability,
                           unsigned *status) {
  (void)capability;
  return to_enum(find("topo.p2p.%u.%u", one->index, other->index), kP2pStatuses, status);
}

static int is_active(nvmlDevice_t gpu, unsigned link) {
  unsigned active = 0;
  return !nvmlDeviceGetNvLinkState(gpu, link, &active) && active;
}

// The switch at the far end of a link, on a host that has switches.
static const struct reading *switch_of(nvmlDevice_t gpu, unsigned link) {
  return find("topo.switches.%u", gpu->index / kGpusPerBoard * kSwitchesPerBoard + link);
}

// The GPU at the far end of a link: links go to the peers in the order of the matrix's row, as
// many to each as it says. A link that is left over leads to a GPU that this host does not see.
static int peer_of(nvmlDevice_t gpu, unsigned link, struct gpu *peer) {
  unsigned count = 0, before = 0;
  nvmlDeviceGetCount_v2(&count);
  for (peer->index = 0; peer->index < count; peer->index++) {
    before += links_between(gpu->index, peer->index);
    if (link < before) return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t gpu, unsigned link, struct pci_info *info) {
  if (!is_active(gpu, link)) return NVML_ERROR_NOT_SUPPORTED;
  const struct reading *remote = switch_of(gpu, link);
  struct gpu peer;
  if (remote->error) {
    int error = peer_of(gpu, link, &peer);
    return error ? error : nvmlDeviceGetPciInfo_v3(&peer, info);
  }
  memset(info, 0, sizeof *info);
  info->device_id = kNvSwitchId;
  int error = to_text(remote, info->bus_id, sizeof info->bus_id);
  sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
  return error;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t gpu, unsigned link, unsigned *type) {
  if (!is_active(gpu, link)) return NVML_ERROR_NOT_SUPPORTED;
  *type = switch_of(gpu, link)->error ? kRemoteGpu : kRemoteSwitch;
  return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkCapability(nvmlDevice_t gpu, unsigned link, unsigned capability,
                                  unsigned *has) {
  unsigned version = 0;
  (void)capability;  // an NVLink 2.0 of a V100 has all of them
  int error = nvmlDeviceGetNvLinkVersion(gpu, link, &version);
  if (!error) *has = 1;
  return error;
}

// Sets the bits that a kernel list (0-19,40) names.
static void set_bits(const char *list, unsigned words, unsigned long long *bits) {
  memset(bits, 0, words * sizeof *bits);
  while (*list) {
    char *end;
    unsigned long first = strtoul(list, &end, 10), last = first;
    if (*end == '-') last = strtoul(end + 1, &end, 10);
    for (; first <= last && first < words * 64UL; first++) bits[first / 64] |= 1ULL << first % 64;
    list = *end ? end + 1 : end;
  }
}

int nvmlDeviceGetCpuAffinity(nvmlDevice_t gpu, unsigned words, unsigned long long *cpus) {
  const struct reading *list = find("topo.cpus.%u", gpu->index);
  if (!list->error) set_bits(list->text, words, cpus);
  return list->error;
}

int nvmlDeviceGetMemoryAffinity(nvmlDevice_t gpu, unsigned words, unsigned long long *nodes,
                                unsigned scope) {
  (void)scope;
  const struct reading *node = find("topo.nodes.%u", gpu->index);
  if (!node->error) set_bits(node->text, words, nodes);
  return node->error;
}
