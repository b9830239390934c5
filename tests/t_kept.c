/* Which session a prompt goes to: the score alone, which decides it. */
#include "tests/tap.h"
#include "src/kept.h"

int main(void)
{
    ok(kept_score(900, 1000, 0) > kept_score(0, 0, 5), "a conversation that goes on finds its own");
    ok(kept_score(0, 0, 0) > kept_score(40, 60000, 0),
       "a short question that shares a beginning goes to the empty session");
    ok(kept_score(40, 300, 1) > kept_score(40, 60000, 1),
       "and the next one to where the first was");
    ok(kept_score(30000, 60000, 0) > kept_score(0, 2000, 0),
       "a conversation that was changed half-way keeps its half");
    ok(kept_score(0, 60000, 100) > kept_score(0, 20000, 0),
       "an old session makes room before a smaller one in use");
    ok(kept_score(0, 100, 3) > kept_score(0, 100, 0),
       "of equals the one not used for longest goes");
    return done();
}
