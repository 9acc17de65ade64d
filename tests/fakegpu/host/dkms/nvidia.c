// A module of NVIDIA's name for DKMS to build really; it does nothing.
#include <linux/module.h>

MODULE_LICENSE(FAKE_LICENSE);
MODULE_VERSION(FAKE_VERSION);
