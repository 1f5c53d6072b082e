/* NVML, in a library of its own, for torch takes the way without it where there is none. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

size_t standin_used_bytes(int physical);

enum { NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7 };

typedef struct {
    unsigned pid;
    unsigned long long bytes;
} Process; /* nvmlProcessInfo_v1_t */

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} ProcessOfInstance; /* nvmlProcessInfo_v2_t */

static int refuses(void) { return !strcmp(option("NVML", ""), "refuses"); }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)number("DEVICES", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    unsigned number = 1; /* as cudaDeviceGetPCIBusId counts them; a handle is never nothing */
    sscanf(bus, "%*x:%x", &number);
    *device = (void *)(uintptr_t)number;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = (int)number("DRIVER", RUNTIME_VERSION);
    return SUCCESS;
}

/* This process, and the one that STANDIN_TENANT_MIB speaks of. */
static int processes(void *handle, unsigned *count, Process found[2]) {
    if (refuses()) return NO_PERMISSION;
    int device = (int)(uintptr_t)handle - 1;
    size_t tenant = (size_t)number_of_device("TENANT_MIB", device, 0) * MIB;
    unsigned there = tenant ? 2 : 1, room = *count;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    found[0] = (Process){(unsigned)getpid(), standin_used_bytes(device) - tenant};
    found[1] = (Process){(unsigned)number("TENANT_PID", 4242), tenant};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, Process *infos) {
    Process found[2];
    int code = processes(device, count, found);
    if (!code) memcpy(infos, found, *count * sizeof *infos);
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *n, ProcessOfInstance *infos) {
    Process found[2];
    int code = processes(device, n, found);
    for (unsigned i = 0; !code && i < *n; i++)
        infos[i] = (ProcessOfInstance){found[i].pid, found[i].bytes, -1, -1};
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, ProcessOfInstance *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, n, infos);
}

/* torch looks these up with the others; symmetric memory would call them. */
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void) { return NOT_SUPPORTED; }
