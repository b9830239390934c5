#ifndef LAGUNA_SCHEMA_PARTS_H
#define LAGUNA_SCHEMA_PARTS_H

#include "src/schema.h"

/* What a compiled schema is made of, and what compiling shares between the files src/schema_*.c. */

enum schema_kind {
    SCHEMA_ANY_OF,              /* alternatives, none of them an ANY_OF once compiled */
    SCHEMA_OBJECT,
    SCHEMA_ARRAY,
    SCHEMA_STRING,
    SCHEMA_INTEGER,
    SCHEMA_NUMBER,
    SCHEMA_LITERALS,            /* one of some texts */
    SCHEMA_RAW,                 /* text up to </arg_value>, that included */
    SCHEMA_ARGUMENTS,           /* of a call: an object in tags */
    SCHEMA_CALL,                /* a name, then its arguments */
    SCHEMA_DOCUMENT,            /* node 0: the value in `item`, then the end */
};

/* What no text inside an argument may have. */
#define SCHEMA_VALUE_END "</arg_value>"

enum {
    SCHEMA_NONE = -1,
    SCHEMA_ENDLESS = 255,       /* as a height: no value ends */
};

struct schema_node {
    enum schema_kind kind;
    int height;                 /* levels of objects and arrays that its lowest value needs */
    int tallest;                /* of its members */
    uint32_t link, links;       /* alternatives; nodes of the properties, of the calls */
    int32_t item;               /* items, additional properties, the document: or SCHEMA_NONE */
    uint32_t words;             /* keys, texts or names: the root of their tree */
    uint32_t min, max;          /* items or characters; max UINT32_MAX: no bound */
    bool guessed;               /* without a type: the schema takes values of other kinds too */
    bool bounded;               /* an integer in low..high, both below 10^18 in size */
    int64_t low, high;
    uint64_t required;          /* bit i: property i */
};

/* A byte of a tree of words.  Siblings are a list. */
struct schema_word {
    uint8_t byte;
    uint32_t child, sibling;    /* 0: none */
    int32_t value;              /* what ends here, or SCHEMA_NONE */
    uint64_t below;             /* of keys: bit i: property i ends here or further on */
};

struct schema {
    struct schema_node *node;   /* [nodes] */
    uint32_t nodes, node_cap;
    uint32_t *link;             /* [links] node ids */
    uint32_t links, link_cap;
    struct schema_word *word;   /* [words] */
    uint32_t words, word_cap;
};

/* Where in the request compiling is. */
struct schema_path {
    const struct schema_path *up;
    const char *name;           /* NULL: an item of an array */
    int index;
};

struct schema_pending {
    const char *ref;            /* as it is spelled, in the tree that is compiled */
    const cJSON *schema;        /* NULL: another spelling of one before it */
    uint32_t node;
};

/* oneOf is checked when all nodes are there. */
struct schema_one {
    uint32_t link, links;
    char path[128];
};

enum {
    SCHEMA_REFS = 256,
    SCHEMA_ONES = 64,
    SCHEMA_STEPS = 1 << 20,     /* bytes of keys and texts compared for all oneOf */
};

struct compiler {
    struct schema *s;
    const cJSON *root;          /* what references start from */
    int32_t any;                /* the node of any value, or SCHEMA_NONE */
    struct schema_pending ref[SCHEMA_REFS];     /* targets; the first `done` are compiled */
    int refs, done;
    struct schema_one one[SCHEMA_ONES];
    int ones;
    uint32_t steps;             /* of SCHEMA_STEPS, that are left */
    struct err *e;
};

/* All return a node id or a negative errno. */
int schema_add(struct compiler *c, const struct schema_node *n);
int schema_compile(struct compiler *c, const cJSON *schema, const struct schema_path *p, int depth);
/* Of a schema without $ref and the like (src/schema_types.c). */
int schema_compile_types(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                         int depth);
int schema_any(struct compiler *c);

/* Types by name, as bits. */
enum schema_type {
    TYPE_OBJECT = 1, TYPE_ARRAY = 2, TYPE_STRING = 4, TYPE_INTEGER = 8, TYPE_NUMBER = 16,
    TYPE_BOOLEAN = 32, TYPE_NULL = 64,
};

/* The bits of "type", 0 where it is absent, or a negative errno. */
int schema_types(struct compiler *c, const cJSON *schema, const struct schema_path *p);
/* The literals of enum or const that are of the types (0: all).  raw: strings are written
 * without their quotes. */
int schema_literals(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                    int types, bool raw);
/* minLength and maxLength, or another pair, into n->min and n->max. */
int schema_counts(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                  const char *min, const char *max, struct schema_node *n);
/* properties and required into n: its keys as `json` strings without quotes, or as they are. */
int schema_properties(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                      const uint32_t *id, bool json, struct schema_node *n);

/* Compile what references wait for; afterwards another root may be set. */
int schema_compile_refs(struct compiler *c);

/* 0: `schema` has known keywords alone. */
int schema_check_keywords(struct compiler *c, const cJSON *schema, const struct schema_path *p);

/* Node ids in a row.  *at: where they begin in link[]. */
int schema_link(struct compiler *c, const uint32_t *id, uint32_t n, uint32_t *at);

/* -EBADMSG, or -ENOMEM; name may be NULL. */
int schema_refuse(struct compiler *c, const struct schema_path *p, const char *name,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int schema_no_memory(struct compiler *c);
/* The words for a negative rc of schema_words_open() or schema_words_add(); rc 0 stays. */
int schema_words_fail(struct compiler *c, const struct schema_path *p, int rc);

/* The path as text, with the name as its last part. */
void schema_path_text(char out[128], const struct schema_path *p, const char *name);

/* Flatten alternatives, find heights, check oneOf (src/schema_finish.c). */
int schema_finish(struct compiler *c);

/* Open, begin with node 0, run `compile` for the document and finish. */
typedef int (*schema_fn)(struct compiler *c, const void *arg);
int schema_build(struct schema **out, schema_fn compile, const void *arg, struct err *e);

/* A new tree of words, and one more in it.  root 0 is no tree.  -ENOBUFS: too many. */
int schema_words_open(struct schema *s, uint32_t *root);
int schema_words_add(struct schema *s, uint32_t root, const char *text, size_t n, int32_t value);
/* The child of a word's byte, or 0. */
uint32_t schema_words_step(const struct schema *s, uint32_t at, uint8_t byte);
/* Whether the trees share a word.  Where memory or *steps, which counts down, run out, they are
 * taken to. */
bool schema_words_meet(const struct schema *s, uint32_t a, uint32_t b, uint32_t *steps);

#endif
