/* Jobs in order of arrival. */
#include "src/job.h"

void job_push(struct job_queue *q, struct job *j)
{
    j->next_queued = NULL;
    if (q->last)
        q->last->next_queued = j;
    else
        q->first = j;
    q->last = j;
    q->n++;
}

struct job *job_pop(struct job_queue *q)
{
    struct job *j = q->first;

    if (!j)
        return NULL;
    q->first = j->next_queued;
    if (!q->first)
        q->last = NULL;
    q->n--;
    return j;
}

void job_remove(struct job_queue *q, struct job *j)
{
    struct job_queue left = { NULL, NULL, 0 };
    struct job *one;

    while ((one = job_pop(q)))
        if (one != j)
            job_push(&left, one);
    *q = left;
}
