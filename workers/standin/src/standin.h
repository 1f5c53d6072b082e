/* What the parts of the stand-in share. ../README.md lists the options. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Every function of CUDA's libraries answers an enum of its own; 0 is success in all of them. */
enum {
    SUCCESS = 0,
    NO_MEMORY = 2,       /* cudaErrorMemoryAllocation */
    DRIVER_TOO_OLD = 35, /* cudaErrorInsufficientDriver */
    NO_DEVICE = 100,     /* cudaErrorNoDevice */
    BAD_DEVICE = 101,    /* cudaErrorInvalidDevice */
};

#define MIB ((size_t)1 << 20)
#define LARGEST_WRITE MIB /* of the device: what is larger is not looked at */
#define RUNTIME_VERSION 13000

/* Hidden: the library is preloaded, and a `copy` of ours must not be taken for another's. */
#pragma GCC visibility push(hidden)

/* options.c */
const char *option(const char *name, const char *otherwise);
long number(const char *name, long otherwise);
/* `name` may list a value for each device, parted by commas; one alone is for all of them. */
long number_of_device(const char *name, int device, long otherwise);
int visible_devices(void);
int physical_device(int device);
void capability(int *major, int *minor);

/* faults.c */
/* To be asked by every call that would tell of work that failed before it: 0, or an error's code
   from the moment on at which the device is lost. */
int fault(int physical);
int loss(void); /* the code of an error that was, or 0 */

/* memory.c */
size_t total_bytes(void);
size_t used_bytes(int physical);
int allocate(void **p, size_t bytes, int physical);
void release(void *p);
void copy(void *to, const void *from, size_t bytes);

/* runtime.c */
int this_device(void); /* the physical index of the calling thread's device */

/* queue.c */
enum { OPERATOR, COLLECTIVE, RECORDS, WAITS, HOST_WAITS_STREAM, HOST_WAITS_EVENT, HOST_WAITS_ALL };
void queued(int what, void *stream, void *event);
void queued_compiled(void);
void queued_collective(const char *name, int ranks, size_t bytes, void *stream);

#pragma GCC visibility pop
