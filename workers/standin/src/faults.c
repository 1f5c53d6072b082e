/* A device that is lost, or a process that is killed, at a chosen call. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "standin.h"

static char phase[32] = "start";
static long calls;
static int lost;

/* Told by python/sitecustomize.py what the probe is doing. */
void standin_phase(const char *name) { strncpy(phase, name, sizeof phase - 1); }

/* NCCL's watchdog asks its events some times a second: were it counted, the call at which the
   device is lost would be left to chance. It is told of the loss all the same. */
static int in_background(void) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return !strncmp(name, "pt_nccl", 7);
}

int loss(void) { return lost; }

int fault(int physical) {
    if (lost) return lost; /* a lost device stays lost for the process: CUDA's sticky errors */
    const char *what = option("FAIL", NULL), *when = option("FAIL_PHASE", NULL);
    if (!what || (when && strcmp(when, phase))) return SUCCESS;
    if (option("FAIL_DEVICE", NULL) && number("FAIL_DEVICE", 0) != physical) return SUCCESS;
    if (in_background()) return SUCCESS;
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) < number("FAIL_AFTER", 0)) return SUCCESS;
    if (!strcmp(what, "kill")) raise(SIGKILL);
    return lost = atoi(what);
}
