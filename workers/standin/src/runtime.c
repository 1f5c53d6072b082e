/* CUDA's runtime: devices, streams, events and launches. Nothing is ever computed. */
#define _GNU_SOURCE
#include <driver_types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin.h"

/* Devices */

static __thread int current;

int this_device(void) { return physical_device(current); }

static int driver_version(void) { return (int)number("DRIVER", RUNTIME_VERSION); }

/* What every first call answers where the driver is no good. */
static int no_devices(void) {
    if (driver_version() < RUNTIME_VERSION / 1000 * 1000) return DRIVER_TOO_OLD;
    return visible_devices() ? SUCCESS : NO_DEVICE;
}

int cudaGetDeviceCount(int *count) {
    int code = no_devices();
    *count = code ? 0 : visible_devices();
    return code;
}

int cudaSetDevice(int device) {
    int code = no_devices();
    if (code) return code;
    if (device < 0 || device >= visible_devices()) return BAD_DEVICE;
    current = device;
    return SUCCESS;
}

int cudaGetDevice(int *device) {
    *device = current;
    return no_devices();
}

int cudaRuntimeGetVersion(int *version) {
    *version = RUNTIME_VERSION;
    return SUCCESS;
}

int cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return SUCCESS;
}

/* An H200's, but for what an option says. */
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    int physical = physical_device(device);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", option("NAME", "NVIDIA H200"));
    capability(&p->major, &p->minor);
    static const char UUID[16] = {0, 0, 0, 0, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x44,
                                  0x44, 0x44, 0x44}; /* as options.c writes it */
    memcpy(p->uuid.bytes, UUID, sizeof UUID);
    p->uuid.bytes[3] = physical / 10 * 16 + physical % 10;
    p->pciBusID = physical + 1;
    p->totalGlobalMem = total_bytes();
    p->totalConstMem = 65536;
    p->warpSize = 32;
    p->multiProcessorCount = 132;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 232448;
    p->sharedMemPerMultiprocessor = 233472;
    p->textureAlignment = 512;
    p->memoryBusWidth = 6144;
    p->l2CacheSize = 62914560;
    p->unifiedAddressing = p->cooperativeLaunch = p->concurrentKernels = p->canMapHostMemory = 1;
    p->asyncEngineCount = 3;
    return SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
        case cudaDevAttrWarpSize: *value = p.warpSize; break;
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrCooperativeLaunch: *value = 1; break;
        default: *value = 0; /* no such ability: torch then takes its plainest way */
    }
    return SUCCESS;
}

int cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02x:00.0", physical_device(device) + 1);
    return SUCCESS;
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 1;
    return SUCCESS;
}

/* Errors: torch puts the words into its messages, and the code into AcceleratorError. */

static const struct {
    int code;
    const char *name, *words;
} ERRORS[] = {
    {0, "cudaSuccess", "no error"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {220, "cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"},
    {226, "cudaErrorContained", "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {999, "cudaErrorUnknown", "unknown error"},
};

#define KNOWN (sizeof ERRORS / sizeof *ERRORS)

const char *cudaGetErrorString(int code) {
    for (size_t i = 0; i < KNOWN; i++)
        if (ERRORS[i].code == code) return ERRORS[i].words;
    return "unrecognized error code";
}

const char *cudaGetErrorName(int code) {
    for (size_t i = 0; i < KNOWN; i++)
        if (ERRORS[i].code == code) return ERRORS[i].name;
    return "unrecognized error code";
}

/* torch looks here after each launch. What lost the device is told for ever. */
int cudaGetLastError(void) { return loss(); }
int cudaPeekAtLastError(void) { return loss(); }

/* Streams: numbers, for nothing is queued. Work is over when its call returns. */

static int new_stream(void **stream) {
    static intptr_t last = 16; /* below are CUDA's own, such as the per-thread default stream */
    *stream = (void *)__atomic_add_fetch(&last, 16, __ATOMIC_RELAXED);
    return SUCCESS;
}

int cudaStreamCreate(void **stream) { return new_stream(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return new_stream(stream); }

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    return new_stream(stream);
}

int cudaStreamGetPriority(void *stream, int *priority) {
    *priority = 0;
    return SUCCESS;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return SUCCESS;
}

int cudaStreamIsCapturing(void *stream, int *status) {
    *status = 0; /* no graph is captured */
    return SUCCESS;
}

int cudaStreamGetCaptureInfo(
    void *stream, int *status, unsigned long long *id, void **graph, void ***nodes, void **edges,
    size_t *count
) {
    *status = 0;
    if (id) *id = 0;
    return SUCCESS;
}

int cudaDeviceSynchronize(void) {
    queued(HOST_WAITS_ALL, NULL, NULL);
    return fault(this_device());
}

int cudaStreamSynchronize(void *stream) {
    queued(HOST_WAITS_STREAM, stream, NULL);
    return fault(this_device());
}

int cudaStreamQuery(void *stream) { return fault(this_device()); }

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    queued(WAITS, stream, event);
    return fault(this_device());
}

/* Events: the host's clock when they are recorded, so times are those of launching. */

typedef struct {
    double ms;
} Event;

int cudaEventCreate(void **event) {
    *event = calloc(1, sizeof(Event));
    return SUCCESS;
}

int cudaEventCreateWithFlags(void **event, unsigned flags) { return cudaEventCreate(event); }

int cudaEventDestroy(void *event) {
    free(event);
    return SUCCESS;
}

int cudaEventRecord(void *event, void *stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    ((Event *)event)->ms = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    queued(RECORDS, stream, event);
    return fault(this_device());
}

int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}

int cudaEventQuery(void *event) { return fault(this_device()); }

int cudaEventSynchronize(void *event) {
    queued(HOST_WAITS_EVENT, NULL, event);
    return fault(this_device());
}

int cudaEventElapsedTime(float *ms, void *first, void *second) {
    *ms = (float)(((Event *)second)->ms - ((Event *)first)->ms);
    return SUCCESS;
}

/* Launches */

int cudaLaunchKernel(void) { return fault(this_device()); }
int cudaLaunchKernelExC(void) { return fault(this_device()); }
int __cudaLaunchKernel(void) { return fault(this_device()); }

/* "1" makes what nvcc generates for <<<...>>> pass the launch over: it would take the arguments
   from a configuration that is not there. Here each such launch is seen. */
unsigned __cudaPushCallConfiguration(void) {
    fault(this_device());
    return 1;
}

char __cudaInitModule(void **handle) { return 1; }

int __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return SUCCESS;
}

int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    int major, minor;
    capability(&major, &minor);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 10 * major + minor;
    attributes->maxDynamicSharedSizeBytes = 49152;
    return SUCCESS;
}

/* Grids are sized by it, so it must not be 0. */
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int size, size_t n) {
    *blocks = 2;
    return SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *f, int size, size_t n, unsigned flags
) {
    *blocks = 2;
    return SUCCESS;
}
