/* The devices' memory: address space of the process, which takes no room until it is written. */
#define _GNU_SOURCE
#include <driver_types.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

#define HOST (-1)
#define UNKNOWN (-2)
#define PAGE ((size_t)4096)
#define LARGEST_COPY_WITH_HOST (64 * MIB)

typedef struct {
    uintptr_t start;
    size_t bytes;
    int device; /* HOST for pinned memory */
    size_t pooled; /* of the device's pool, from which cudaMallocAsync takes */
} Block;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Block *blocks;
static size_t count, room;
static size_t used[64], pinned;
static size_t pool[64], pool_high[64]; /* what was asked for, and the most since it was set */

size_t total_bytes(void) { return (size_t)number("MIB", 143156) * MIB; }

size_t used_bytes(int physical) {
    /* What an H200's context takes; a process that has not touched the device has none, but who
       asks has touched it. */
    size_t context = (size_t)number("CONTEXT_MIB", 512) * MIB;
    size_t tenant = (size_t)number_of_device("TENANT_MIB", physical, 0) * MIB;
    return context + tenant + used[physical];
}

size_t standin_used_bytes(int physical) { return used_bytes(physical); } /* for nvml.c */

/* MAP_NORESERVE: a probe allocates tens of GiB, of which the kernel promises nothing and gives
   pages only where something is written. */
static void *map(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int add(void **p, size_t bytes, int device, size_t pooled) {
    pthread_mutex_lock(&mutex);
    *p = NULL;
    int fits = device == HOST ? pinned + bytes <= (size_t)number("HOST_MIB", 1 << 20) * MIB
                              : used_bytes(device) + bytes <= total_bytes();
    if (fits) *p = map(bytes);
    if (*p) {
        if (count == room) {
            room = room ? 2 * room : 1024;
            blocks = realloc(blocks, room * sizeof *blocks);
        }
        blocks[count++] = (Block){(uintptr_t)*p, bytes, device, pooled};
        if (device != HOST) {
            used[device] += bytes;
            pool[device] += pooled;
            if (pool[device] > pool_high[device]) pool_high[device] = pool[device];
        } else {
            pinned += bytes;
        }
    }
    pthread_mutex_unlock(&mutex);
    return *p ? SUCCESS : NO_MEMORY;
}

static Block find(const void *p) {
    Block found = {0, 0, UNKNOWN};
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < count && found.device == UNKNOWN; i++)
        if ((uintptr_t)p - blocks[i].start < blocks[i].bytes) found = blocks[i];
    pthread_mutex_unlock(&mutex);
    return found;
}

static size_t rounded(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

#define GRANULARITY (2 * MIB) /* the driver's */

int allocate(void **p, size_t bytes, int physical) {
    return add(p, rounded(bytes, GRANULARITY), physical, 0);
}

void release(void *p) {
    if (!p) return;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].start != (uintptr_t)p) continue;
        if (blocks[i].device != HOST) {
            used[blocks[i].device] -= blocks[i].bytes;
            pool[blocks[i].device] -= blocks[i].pooled;
        } else {
            pinned -= blocks[i].bytes;
        }
        munmap(p, blocks[i].bytes);
        blocks[i] = blocks[--count];
        break;
    }
    pthread_mutex_unlock(&mutex);
}

/* Small copies are made, for what is read of them decides: losses, step counts, flags. Large ones
   between devices are left out: nothing looks at weights, and every page written would become
   real memory. With the host more is copied: batches of tokens, and offloaded parameters. */
void copy(void *to, const void *from, size_t bytes) {
    int there = find(to).device, here = find(from).device;
    if (there >= 0 && here >= 0 && bytes > LARGEST_WRITE) return;
    if ((there >= 0 || here >= 0) && bytes > LARGEST_COPY_WITH_HOST) return;
    memmove(to, from, bytes);
}

static int set(void *p, int value, size_t bytes) {
    if (bytes <= LARGEST_WRITE) memset(p, value, bytes); /* as in copy */
    return SUCCESS;
}

int cudaMemGetInfo(size_t *free, size_t *total) {
    int code = fault(this_device());
    if (code) return code;
    *total = total_bytes();
    size_t taken = used_bytes(this_device());
    *free = taken < *total ? *total - taken : 0;
    return SUCCESS;
}

int cudaMalloc(void **p, size_t bytes) {
    int code = fault(this_device());
    return code ? code : allocate(p, bytes, this_device());
}

int cudaMallocAsync(void **p, size_t bytes, void *stream) {
    int code = fault(this_device());
    size_t pooled = rounded(bytes, 512); /* as torch's own allocator counts */
    return code ? code : add(p, pooled, this_device(), pooled);
}

int cudaFree(void *p) {
    release(p);
    return SUCCESS; /* of a lost device too, so that processes end by themselves */
}

int cudaFreeAsync(void *p, void *stream) { return cudaFree(p); }

int cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    return add(p, rounded(bytes, PAGE), HOST, 0);
}

int cudaFreeHost(void *p) { return cudaFree(p); }

int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p) {
    int device = find(p).device;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = device >= 0      ? cudaMemoryTypeDevice
                       : device == HOST ? cudaMemoryTypeHost
                                        : cudaMemoryTypeUnregistered;
    attributes->device = device;
    for (int i = 0; i < visible_devices(); i++) /* torch's devices are the visible ones */
        if (physical_device(i) == device) attributes->device = i;
    attributes->devicePointer = (void *)p;
    attributes->hostPointer = device == HOST ? (void *)p : NULL;
    return SUCCESS;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    int code = fault(this_device());
    if (!code) copy(to, from, bytes);
    return code;
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    return cudaMemcpy(to, from, bytes, kind);
}

int cudaMemset(void *p, int value, size_t bytes) {
    int code = fault(this_device());
    return code ? code : set(p, value, bytes);
}

int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) {
    return cudaMemset(p, value, bytes);
}

/* Nothing is kept in a pool that is not given out, so what is reserved is what is used. */

int cudaDeviceGetDefaultMemPool(void **found, int device) {
    *found = (void *)((uintptr_t)physical_device(device) + 1);
    return SUCCESS;
}

int cudaMemPoolGetAttribute(void *which, int attribute, void *value) {
    int device = (int)((uintptr_t)which - 1);
    int high = attribute == cudaMemPoolAttrReservedMemHigh ||
               attribute == cudaMemPoolAttrUsedMemHigh;
    *(uint64_t *)value = !which ? 0 : high ? pool_high[device] : pool[device];
    return SUCCESS;
}

int cudaMemPoolSetAttribute(void *which, int attribute, void *value) {
    int device = (int)((uintptr_t)which - 1);
    if (which && attribute == cudaMemPoolAttrUsedMemHigh) pool_high[device] = pool[device];
    return SUCCESS;
}
