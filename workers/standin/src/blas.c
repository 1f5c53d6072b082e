/* cuBLAS, cuBLASLt and cuDNN's version: handles and descriptions; products are not computed, but for
   the one by which a look at devices sees whether they compute. */
#include <stdlib.h>

#include "standin.h"

/* SDPA asks which cuDNN there is. One before 9 is passed over, and flash attention taken, which is
   of torch itself and so launches what is skipped; cuDNN would be called for real. */
unsigned long cudnnGetVersion(void) { return (unsigned long)number("CUDNN", 8900); }

size_t cublasLtGetVersion(void) { return 130000; }

/* Descriptions are written by setters that do nothing, and larger than any that torch knows. */
static int describe(void **made) {
    *made = calloc(1, 512);
    return SUCCESS;
}

static int forget(void *made) {
    free(made);
    return SUCCESS;
}

int cublasCreate_v2(void **handle) { return describe(handle); }
int cublasDestroy_v2(void *handle) { return forget(handle); }
int cublasLtCreate(void **handle) { return describe(handle); }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) { return describe(made); }
int cublasLtMatmulDescDestroy(void *made) { return forget(made); }
int cublasLtMatmulPreferenceCreate(void **made) { return describe(made); }
int cublasLtMatmulPreferenceDestroy(void *made) { return forget(made); }
int cublasLtMatrixLayoutDestroy(void *made) { return forget(made); }

int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    return describe(made);
}

int cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = 0;
    return SUCCESS;
}

int cublasGetMathMode(void *handle, int *mode) {
    *mode = 0;
    return SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(
    void *handle, void *product, void *a, void *b, void *c, void *d, void *preference, int asked,
    void *results, int *found
) {
    *found = 1; /* none is an error of torch's */
    return SUCCESS;
}

/* Row by column, for square matrices of LOOK floats a side that are not transposed. */
int cublasSgemm_v2(
    void *handle, int transposed_a, int transposed_b, int m, int n, int k, const float *alpha,
    const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc
) {
    enum { LOOK = 256 };
    int code = fault(this_device());
    if (code || m != LOOK || n != LOOK || k != LOOK || transposed_a || transposed_b) return code;
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < m; i++) {
            float sum = 0;
            for (int l = 0; l < k; l++) sum += a[i + l * lda] * b[l + j * ldb];
            c[i + j * ldc] = *alpha * sum;
        }
    }
    return SUCCESS;
}
