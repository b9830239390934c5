/* Descriptions of machines: what is accepted can be written and read back, and planned with. */
#include "src/machine.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct text t = { NULL, 0, 0, false };
    struct machine m, again;
    struct err e;

    if (machine_read(&m, (const char *)data, n, "fuzz", &e))
        return 0;
    machine_write(&t, &m);
    if (t.failed || machine_read(&again, t.s, t.n, "again", &e) || again.cores != m.cores ||
        again.gpus != m.gpus || again.ram_bytes != m.ram_bytes || strcmp(again.isa, m.isa))
        abort();
    text_free(&t);
    return 0;
}
