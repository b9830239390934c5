/* What the driver's library says of the cards, with a library of the suite in its place, an
 * older one, one that is something else, and none. */
#include "src/nvml.h"
#include "tests/tap.h"

#include <errno.h>

static void test_cards(void)
{
    struct nvml n;
    struct err e = { "" };
    const struct nvml_card *c = n.card;

    ok(!nvml_read(&n, "./tests/fake_nvml.so", &e) && n.cards == 2 &&
       !strcmp(n.driver, "550.54.15"), "driver %s, %d cards %s", n.driver, n.cards, e.text);
    ok(!strcmp(c->name, "Card A") && c->total_bytes >> 30 == 24 && c->used_bytes >> 30 == 4,
       "%s: %zu of %zu bytes", c->name, c->used_bytes, c->total_bytes);
    ok(c->generation == 1 && c->width == 16 && c->generation_most == 4 && c->width_most == 16,
       "its link sleeps");
    ok(c->power_watts == 350 && c->power_default_watts == 350 && c->persistence == 1 &&
       !c->others, "nothing is wrong with it");
    c++;
    ok(c->width == 4 && c->width_most == 16 && c->power_watts == 250, "%s in a narrow slot",
       c->name);
    ok(c->others == 2 && c->others_bytes == (size_t)3 << 30,
       "two others use it, one does not tell how much, and this process does not count");
    ok(c->persistence == NVML_NOT_TOLD, "what a card does not know is not told");
}

static void test_lacking(void)
{
    struct nvml n;
    struct err e = { "" };
    const struct nvml_card *c = n.card;

    ok(!nvml_read(&n, "./tests/old_nvml.so", &e) && n.cards == 2 && !*n.driver &&
       !strcmp(c->name, "Card A") && !c->total_bytes && c->width == NVML_NOT_TOLD &&
       c->power_watts == NVML_NOT_TOLD && c->others == NVML_NOT_TOLD,
       "an old library: names, and nothing else %s", e.text);
    ok(nvml_read(&n, "libm.so.6", &e) == -ENOSYS && !n.cards && strstr(e.text, "libm.so.6"),
       "%s", e.text);
    ok(nvml_read(&n, "libthat-is-not-here.so", &e) == -ENOENT && !n.cards, "%s", e.text);
}

int main(void)
{
    test_cards();
    test_lacking();
    return done();
}
