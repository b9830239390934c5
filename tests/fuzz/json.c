/* Any bytes as JSON.  What is taken must print as JSON that reads and prints the same. */
#include "src/json.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static cJSON *parse(const char *s, size_t n, struct err *e)
{
    cJSON *node = json_parse(s, n, &JSON_REQUEST, e);

    assert((node == NULL) == (json_scan(s, n, &JSON_REQUEST, e) != 0));
    return node;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct text once = { 0 }, twice = { 0 };
    struct err e;
    cJSON *node = parse((const char *)data, size, &e), *again;

    if (!node)
        return 0;
    text_json_python(&once, node);
    again = parse(once.s, once.n, &e);
    /* Python prints an infinity as a word that is no JSON. */
    assert(again || strstr(once.s, "Infinity"));
    if (again)
        text_json_python(&twice, again);
    assert(!again || !strcmp(once.s, twice.s));
    text_free(&once);
    text_free(&twice);
    cJSON_Delete(node);
    cJSON_Delete(again);
    return 0;
}
