/* What is put on streams, in the order of the calls: for who prices a rehearsed step. */
#include <pthread.h>
#include <stdlib.h>

#include "standin.h"

typedef struct {
    int what, group, ranks;
    void *stream;
    size_t of; /* an operator's number, an event, or bytes */
    const char *name;
} Entry;

static Entry *entries;
static size_t count, room;
static int following, group = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

enum { MOST = 1 << 22 };

/* Its place; 0 where nothing is followed, or the queue is full. */
static size_t put(Entry entry) {
    if (!following) return 0;
    pthread_mutex_lock(&mutex);
    if (count == room && room < MOST) {
        Entry *more = realloc(entries, (room ? 2 * room : 4096) * sizeof *entries);
        if (more) entries = more, room = room ? 2 * room : 4096;
    }
    size_t place = 0;
    if (count < room) entries[count++] = entry, place = count;
    pthread_mutex_unlock(&mutex);
    return place;
}

void queued(int what, void *stream, void *event) {
    put((Entry){.what = what, .stream = stream, .of = (size_t)event});
}

void queued_collective(const char *name, int ranks, size_t bytes, void *stream) {
    put((Entry){COLLECTIVE, group, ranks, stream, bytes, name});
}

static long compiled;

void queued_compiled(void) { compiled += following; }

/* What the process itself says. */

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void standin_follow(int on) { following = on; }

/* Collectives from now on are of this group of the process's; -1 where it is not known. */
EXPORTED void standin_group(int now) { group = now; }

/* An operator begins; what it was is told once it is over. */
EXPORTED size_t standin_operator(void *stream) {
    return put((Entry){.what = OPERATOR, .stream = stream});
}

EXPORTED void standin_operator_was(size_t place, size_t number) {
    pthread_mutex_lock(&mutex);
    if (place) entries[place - 1].of = number;
    pthread_mutex_unlock(&mutex);
}

EXPORTED long standin_compiled(void) { return compiled; }

EXPORTED const Entry *standin_queue(size_t *length, int *full) {
    *length = count, *full = count == MOST;
    return entries;
}
