/* The page, as bytes that the build made of src/page.html. */
#include "src/page.h"

static const char PAGE[] = {
#include "src/page_bytes.h"
};

void page_give(struct conn *c)
{
    conn_add_field(c, "Content-Security-Policy",
                   "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                   "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'");
    conn_add_field(c, "X-Content-Type-Options", "nosniff");
    conn_reply(c, 200, "text/html; charset=utf-8", PAGE, sizeof(PAGE));
}
