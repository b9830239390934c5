#ifndef LAGUNA_SAFETENSORS_H
#define LAGUNA_SAFETENSORS_H

#include "src/base.h"

/* The header of one safetensors file (spec: laguna.md section 3): a pure function of bytes. */

enum dtype { DT_BOOL, DT_U8, DT_I8, DT_F8_E4M3, DT_F8_E5M2, DT_F8_E8M0, DT_F4, DT_I16, DT_U16,
             DT_F16, DT_BF16, DT_I32, DT_U32, DT_F32, DT_I64, DT_U64, DT_F64, DT_COUNT };

const char *dtype_name(enum dtype d);

enum { TENSOR_RANK = 8 };

struct tensor {
    const char *name;           /* NUL-terminated, in the table's memory */
    enum dtype dtype;
    int rank, shard;
    int64_t dim[TENSOR_RANK];
    uint64_t offset;            /* in the file, header included */
    uint64_t bytes;
};

struct tensor_table {
    struct tensor *tensor;
    size_t count;
    char *names;                /* backs tensor[].name */
};

/* Parse `header` (the JSON, without its length word) of a file of file_bytes, whose data
 * begins at 8 + n.  Rows A02 and A05 to A18 of spec/faults.md: -EBADMSG, naming the tensor.
 * `name` is the file's, for messages.  The caller frees the table with tensor_table_free(). */
int safetensors_parse(struct tensor_table *out, const char *header, size_t n, uint64_t file_bytes,
                      const char *name, struct err *e);
void tensor_table_free(struct tensor_table *t);

#endif
