/* CUDA's driver, libcuda: what torch and Triton ask of it beside the runtime. */
#include <string.h>

#include "standin.h"

int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaDriverGetVersion(int *version);
const char *cudaGetErrorString(int code);

static void *const HANDLE = (void *)16; /* of a module or function: never looked into */

int cuInit(unsigned flags) { return visible_devices() ? SUCCESS : NO_DEVICE; }

int cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }

int cuDeviceGetCount(int *count) {
    *count = visible_devices();
    return SUCCESS;
}

int cuDeviceGet(int *device, int index) {
    *device = index;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return cudaDeviceGetAttribute(value, attribute, device); /* the two number them alike */
}

/* Active: torch would otherwise take every device for unused, and not look for streams or pinned
   memory there. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    *active = 1;
    return SUCCESS;
}

int cuCtxGetCurrent(void **context) {
    *context = (void *)8;
    return SUCCESS;
}

int cuGetErrorString(int code, const char **words) {
    *words = cudaGetErrorString(code);
    return SUCCESS;
}

/* Triton loads what it compiled, looks at its registers, and launches it. */

int cuModuleLoadData(void **module, const void *image) {
    *module = HANDLE;
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = HANDLE;
    return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    enum { MOST_THREADS = 0, LOCAL_BYTES = 3, REGISTERS = 4 };
    *value = attribute == REGISTERS ? 32 : attribute == MOST_THREADS ? 1024 : 0;
    return SUCCESS;
}

/* Triton's kernels, of which no operator tells. */
int cuLaunchKernel(void) {
    queued_compiled();
    return fault(this_device());
}

int cuLaunchKernelEx(void) { return cuLaunchKernel(); }

/* torch asks by name for what an older driver may lack. */

static int nothing(void) { return SUCCESS; }

int cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned version, unsigned long long flags, int *status
) {
    int context = !strcmp(name, "cuDevicePrimaryCtxGetState");
    *function = context ? (void *)cuDevicePrimaryCtxGetState : (void *)nothing;
    if (status) *status = 0; /* found */
    return SUCCESS;
}
