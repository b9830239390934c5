#ifndef LAGUNA_CHECKPOINT_H
#define LAGUNA_CHECKPOINT_H

#include "storage/safetensors.h"

/* A model directory: its shards, opened and their headers read, and every tensor by name.
 * Reads no tensor data until asked; never maps a file. */
struct checkpoint;

/* Open DIR with model.safetensors.index.json and its shards, or a single
 * model.safetensors.  Checks every shard's header and length (spec/faults.md A).
 * Files that are not safetensors are refused by what they look like. */
int  checkpoint_open(struct checkpoint **out, const char *dir, struct log *l, struct err *e);
void checkpoint_close(struct checkpoint *c);

const char *checkpoint_dir(const struct checkpoint *c);
int  checkpoint_shards(const struct checkpoint *c);
int  checkpoint_fd(const struct checkpoint *c, int shard);
const char *checkpoint_path(const struct checkpoint *c, int shard);

size_t checkpoint_count(const struct checkpoint *c);
const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i);

/* By exact name, or NULL. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/* All bytes of t into memory.  Blocks.  -EIO, or -EBADMSG where the file has shrunk. */
int  checkpoint_read(const struct checkpoint *c, const struct tensor *t, void *into,
                     struct err *e);

/* Bytes from..from + n of t. */
int  checkpoint_read_part(const struct checkpoint *c, const struct tensor *t, uint64_t from,
                          size_t n, void *into, struct err *e);

/* A small file of the directory (config.json ...), whole, with a NUL behind; caller frees.
 * -ENOENT where there is none, -EBADMSG over `limit` bytes; only regular files. */
int  checkpoint_file(const char *dir, const char *file, size_t limit, char **out, size_t *n,
                     struct err *e);

#endif
