/* NCCL: every rank is alone, and takes its own part for that of all others. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

const char *cudaGetErrorString(int code);

typedef struct {
    int rank, ranks;
    void *buffers;
} Communicator;

typedef struct {
    char bytes[128];
} UniqueId;

int ncclGetVersion(int *version) {
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(UniqueId *id) {
    for (size_t i = 0; i < sizeof id->bytes; i++) id->bytes[i] = (char)rand();
    return SUCCESS;
}

enum { UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2 };

const char *ncclGetErrorString(int code) {
    return code == SYSTEM_ERROR ? "unhandled system error" : "unhandled cuda error";
}

/* In the words of its checks.h and alloc.h. */
const char *ncclGetLastError(void *any) {
    static char words[128];
    if (!loss()) return option("NCCL_FAIL", "Failed to CUDA calloc async 6291456 bytes");
    snprintf(words, sizeof words, "Cuda failure %d '%s'", loss(), cudaGetErrorString(loss()));
    return words;
}

/* Communicators hold buffers on the device, outside torch's allocator. */
static int make(Communicator **made, int ranks, int rank) {
    if (option("NCCL_FAIL", NULL)) return SYSTEM_ERROR;
    Communicator *c = calloc(1, sizeof *c);
    size_t bytes = (size_t)number_of_device("NCCL_MIB", this_device(), 600) * MIB;
    if (fault(this_device()) || allocate(&c->buffers, bytes, this_device())) {
        free(c);
        return UNHANDLED_CUDA_ERROR;
    }
    c->rank = rank, c->ranks = ranks;
    *made = c;
    return SUCCESS;
}

static int end(Communicator *c) {
    release(c->buffers);
    free(c);
    return SUCCESS;
}

int ncclCommInitRank(Communicator **made, int ranks, UniqueId id, int rank) {
    return make(made, ranks, rank);
}

int ncclCommInitRankConfig(Communicator **made, int ranks, UniqueId id, int rank, void *config) {
    return make(made, ranks, rank);
}

int ncclCommInitRankScalable(
    Communicator **made, int ranks, int rank, int ids, void *id, void *config
) {
    return make(made, ranks, rank);
}

int ncclCommSplit(Communicator *parent, int colour, int key, Communicator **made, void *config) {
    return make(made, parent->ranks, key);
}

int ncclCommDestroy(Communicator *c) { return end(c); }
int ncclCommAbort(Communicator *c) { return end(c); }

int ncclCommGetAsyncError(Communicator *c, int *error) {
    *error = SUCCESS;
    return SUCCESS;
}

int ncclCommCount(Communicator *c, int *ranks) {
    *ranks = c->ranks;
    return SUCCESS;
}

int ncclCommUserRank(Communicator *c, int *rank) {
    *rank = c->rank;
    return SUCCESS;
}

/* ncclDataType_t, in its order: int8, uint8, int32, uint32, int64, uint64, float16, float32,
   float64, bfloat16, and two kinds of float8. */
static size_t size_of(int type) {
    static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return SIZES[type];
}

/* What was called, for who rehearses a script: operation, ranks of its group, calls, and bytes of the
   whole tensor (gathered, not yet scattered, or reduced). */

static struct {
    const char *op;
    int ranks;
    long calls;
    size_t bytes;
} noted[256];

static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *op, int ranks, size_t bytes, void *stream) {
    queued_collective(op, ranks, bytes, stream);
    pthread_mutex_lock(&noting);
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++) {
        if (noted[i].op && (strcmp(noted[i].op, op) || noted[i].ranks != ranks)) continue;
        noted[i].op = op, noted[i].ranks = ranks, noted[i].calls++, noted[i].bytes += bytes;
        break;
    }
    pthread_mutex_unlock(&noting);
}

/* Line `index` of it: "all_gather 8 12 3456"; 0 where there is none. */
__attribute__((visibility("default"))) int standin_collective(int index, char *line, size_t room) {
    if (index < 0 || index >= (int)(sizeof noted / sizeof *noted) || !noted[index].op) return 0;
    return snprintf(
        line, room, "%s %d %ld %zu", noted[index].op, noted[index].ranks, noted[index].calls,
        noted[index].bytes
    );
}

/* Values that ranks agree upon (step counts, deadlines) come out as this rank's own. */
static int take_own(void *to, const void *from, size_t bytes) {
    int code = fault(this_device());
    if (!code && to != from) copy(to, from, bytes);
    return code;
}

int ncclAllGather(
    const void *mine, void *all, size_t count, int type, Communicator *c, void *stream
) {
    size_t bytes = count * size_of(type);
    note("all_gather", c->ranks, bytes * c->ranks, stream);
    int code = take_own((char *)all + c->rank * bytes, mine, bytes);
    /* of many ranks small parts are a large whole, and that is left out as in copy */
    int others = !code && bytes * c->ranks <= LARGEST_WRITE;
    for (int i = 0; i < c->ranks && others; i++) copy((char *)all + i * bytes, mine, bytes);
    return code;
}

int ncclReduceScatter(
    const void *all, void *mine, size_t count, int type, int op, Communicator *c, void *stream
) {
    size_t bytes = count * size_of(type);
    note("reduce_scatter", c->ranks, bytes * c->ranks, stream);
    return take_own(mine, (const char *)all + c->rank * bytes, bytes);
}

int ncclAllReduce(
    const void *in, void *out, size_t count, int type, int op, Communicator *c, void *stream
) {
    enum { SUM = 0, FLOAT32 = 7, LOOK = 65536 };
    note("all_reduce", c->ranks, count * size_of(type), stream);
    int code = take_own(out, in, count * size_of(type));
    /* of so many a look at devices sends, and all ranks the same: here the sum is what it would be */
    for (size_t i = 0; !code && op == SUM && type == FLOAT32 && count == LOOK && i < count; i++)
        ((float *)out)[i] *= c->ranks;
    return code;
}

int ncclBroadcast(
    const void *in, void *out, size_t count, int type, int root, Communicator *c, void *stream
) {
    note("broadcast", c->ranks, count * size_of(type), stream);
    return take_own(out, in, count * size_of(type));
}

int ncclReduce(
    const void *in, void *out, size_t count, int type, int op, int root, Communicator *c, void *stream
) {
    note("reduce", c->ranks, count * size_of(type), stream);
    return c->rank == root ? take_own(out, in, count * size_of(type)) : fault(this_device());
}

/* What a peer would send is not known: the memory stays as it is. */

int ncclSend(const void *in, size_t count, int type, int peer, Communicator *c, void *stream) {
    note("send", c->ranks, count * size_of(type), stream);
    return fault(this_device());
}

int ncclRecv(void *out, size_t count, int type, int peer, Communicator *c, void *stream) {
    note("receive", c->ranks, count * size_of(type), stream);
    return fault(this_device());
}
