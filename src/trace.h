#ifndef LAGUNA_TRACE_H
#define LAGUNA_TRACE_H

#include "src/base.h"

/* --trace-routes: the router's choices of every token, as a safetensors file with one tensor
 * [tokens][sparse layers][topk] a request (U8, or U16 above 256 experts). */
struct trace;

/* The file is created at once, so that a path that cannot be written is told at the start. */
int  trace_open(struct trace **out, const char *path, int layers, int topk, int experts,
                struct err *e);

/* Tokens of the request in progress.  expert [layers][stride][topk], of it `tokens` rows. */
void trace_add(struct trace *t, const uint16_t *expert, int stride, int tokens);

/* The request has ended. */
void trace_request(struct trace *t);

/* Write everything.  -ENOSPC, -EIO ... with the words; memory that ran out is told here too. */
int  trace_close(struct trace *t, struct err *e);

#endif
