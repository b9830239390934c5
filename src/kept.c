/* Choosing among kept sessions.  How much of one can be used again is the session's to say. */
#include "src/kept.h"

#include <errno.h>
#include <stdlib.h>

struct kept {
    struct session *session[KEPT_MOST];
    uint64_t used[KEPT_MOST];           /* number of the request that last used it */
    int sessions;
    uint64_t requests;
};

int kept_open(struct kept **out, struct engine *g, int sessions, struct log *l, struct err *e)
{
    struct kept *k = calloc(1, sizeof(*k));
    int rc = 0;

    if (!k)
        return fail(e, -ENOMEM, "out of memory");
    while (!rc && k->sessions < sessions && k->sessions < KEPT_MOST) {
        rc = session_open(&k->session[k->sessions], g, e);
        k->sessions += !rc;
    }
    if (rc && k->sessions) {
        warn(l, "memory for %d sessions only: %s", k->sessions, e->text);
        rc = 0;
    }
    if (rc) {
        kept_close(k);
        return rc;
    }
    *out = k;
    return 0;
}

void kept_close(struct kept *k)
{
    if (!k)
        return;
    for (int i = 0; i < k->sessions; i++)
        session_close(k->session[i]);
    free(k);
}

int kept_sessions(const struct kept *k)
{
    return k->sessions;
}

int kept_length(const struct kept *k, int i)
{
    return session_length(k->session[i]);
}

double kept_score(int common, int length, int age)
{
    return common - (length - common) * 0.5 / (1 + age / 4.0);
}

static int common_prefix(const struct session *s, const int32_t *prompt, int n)
{
    const int32_t *have = session_tokens(s);
    int most = session_length(s) < n ? session_length(s) : n, i = 0;

    while (i < most && have[i] == prompt[i])
        i++;
    return i;
}

int kept_choose(struct kept *k, const int32_t *prompt, int n, int *common)
{
    double best = 0;
    int chosen = -1;

    k->requests++;
    for (int i = 0; i < k->sessions; i++) {
        int have = common_prefix(k->session[i], prompt, n);
        double score = kept_score(have, session_length(k->session[i]),
                                  (int)(k->requests - k->used[i]) - 1);

        if (chosen >= 0 && score <= best)
            continue;
        best = score;
        chosen = i;
        *common = have;
    }
    k->used[chosen] = k->requests;
    return chosen;
}

struct session *kept_session(const struct kept *k, int i)
{
    return k->session[i];
}
