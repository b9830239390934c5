#include "src/commands.h"

#include <errno.h>

int cmd_top(struct options *o, struct err *e)
{
    return fail(e, -ENOTSUP, "%s", o->url);
}
