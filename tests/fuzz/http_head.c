/* The head of a request: what is accepted can be cut and looked through, and says the same of
 * itself however it arrived. */
#include "src/http_head.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct http_limits limits = { .line_bytes = 256, .head_bytes = 1024, .fields = 8,
                                               .body_bytes = 1 << 20 };
    const char *s = (const char *)data;
    struct http_refusal r = { 0, NULL, NULL };
    struct http_head h, again;
    int rc = http_head_read(&h, s, n, &limits, &r);
    char *copy;

    if (rc < 0 && (r.status < 400 || !r.words))
        abort();
    http_chunk_size(s, n);
    if (rc != 1)
        return 0;
    if (http_head_read(&again, s, h.bytes, &limits, &r) != 1 || again.length != h.length ||
        http_head_read(&again, s, h.bytes - 1, &limits, &r) != 0)
        abort();
    copy = malloc(h.bytes);
    memcpy(copy, s, h.bytes);
    http_head_cut(copy, &h);
    if (http_target(copy)[0] != '/' || (!h.old && !http_field(copy, &h, "Host")))
        abort();
    http_field(copy, &h, "X-Not-There");
    free(copy);
    return 0;
}
