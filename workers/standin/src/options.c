/* What the environment says that this machine is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define MOST 64

const char *option(const char *name, const char *otherwise) {
    char full[64];
    snprintf(full, sizeof full, "STANDIN_%s", name);
    const char *value = getenv(full);
    return value && *value ? value : otherwise;
}

long number(const char *name, long otherwise) { return number_of_device(name, 0, otherwise); }

long number_of_device(const char *name, int device, long otherwise) {
    const char *value = option(name, NULL);
    if (!value) return otherwise;
    if (!strchr(value, ',')) return atol(value);
    for (; device > 0 && value; device--)
        if ((value = strchr(value, ','))) value++;
    return value ? atol(value) : otherwise;
}

void capability(int *major, int *minor) {
    *major = 9, *minor = 0;
    sscanf(option("CAPABILITY", "9.0"), "%d.%d", major, minor);
}

/* Of an entry of CUDA_VISIBLE_DEVICES, an index or the beginning of a UUID, the device; -1: none.
   bin/nvidia-smi writes the same UUIDs. */
static int named(const char *entry, size_t length, int devices) {
    int slices = (int)number("MIG", 0);
    const char *kind = slices ? "MIG" : "GPU";
    if (length && entry[0] >= '0' && entry[0] <= '9') {
        int index = atoi(entry);
        return index < devices ? index : -1;
    }
    for (int i = 0; i < devices; i++) {
        char uuid[64];
        snprintf(uuid, sizeof uuid, "%s-%08d-1111-2222-3333-444444444444", kind, i);
        if (length > 4 && !strncmp(uuid, entry, length)) return i;
    }
    return -1;
}

static int find_visible(int found[MOST]) {
    int devices = (int)number("DEVICES", 1);
    if (devices > MOST) devices = MOST;
    const char *entry = getenv("CUDA_VISIBLE_DEVICES");
    if (!entry) {
        if (number("MIG", 0) && devices > 1) devices = 1; /* CUDA then takes the first slice only */
        for (int i = 0; i < devices; i++) found[i] = i;
        return devices;
    }
    int count = 0;
    while (*entry && count < MOST) {
        size_t length = strcspn(entry, ",");
        int device = named(entry, length, devices);
        if (device < 0) break; /* CUDA shows what stands before the first that it does not know */
        found[count++] = device;
        entry += length;
        if (*entry) entry++;
    }
    return count;
}

static int known[MOST], count_known = -1;

int visible_devices(void) {
    /* Once, as CUDA does: torch's own processes change the variable later. Two threads that are
       here at the same time find the same. */
    if (count_known < 0) count_known = find_visible(known);
    return count_known;
}

int physical_device(int device) {
    return device >= 0 && device < visible_devices() ? known[device] : 0;
}
