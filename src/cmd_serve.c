#include "src/commands.h"
#include "src/server.h"

/* serve: everything is in src/server.c. */

int cmd_serve(struct options *o, struct err *e)
{
    return server_run(o, e);
}
