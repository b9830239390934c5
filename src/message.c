/* The events of src/toolparse.h put together again, for answers that are not streamed. */
#include "src/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

static struct call *message_add_call(struct message *m)
{
    if (m->calls == m->call_cap) {
        int cap = m->call_cap ? 2 * m->call_cap : 4;
        struct call *wider = realloc(m->call, (size_t)cap * sizeof(*wider));

        if (!wider) {
            m->failed = true;
            return NULL;
        }
        m->call = wider;
        m->call_cap = cap;
    }
    m->call[m->calls] = (struct call){ 0 };
    return &m->call[m->calls++];
}

static void call_free(struct call *c)
{
    text_free(&c->name);
    text_free(&c->arguments);
}

void message_event(void *message, const struct event *v)
{
    struct message *m = message;
    struct call *c = m->calls ? &m->call[m->calls - 1] : NULL;

    if (m->failed)
        return;
    switch (v->kind) {
    case EVENT_REASONING:
        text_add(&m->reasoning, v->s, v->n);
        break;
    case EVENT_CALL_BROKEN:
        call_free(c);
        m->calls--;
        text_add(&m->content, v->s, v->n);
        break;
    case EVENT_CONTENT:
        text_add(&m->content, v->s, v->n);
        break;
    case EVENT_CALL:
        c = message_add_call(m);
        if (!c)
            break;
        message_id(c->id, "call_");
        text_add(&c->name, v->s, v->n);
        break;
    case EVENT_ARGUMENTS:
        text_add(&c->arguments, v->s, v->n);
        m->failed |= c->arguments.failed;
        break;
    case EVENT_CALL_END:
        break;
    }
    m->failed |= m->reasoning.failed || m->content.failed;
}

void message_free(struct message *m)
{
    int i;

    for (i = 0; i < m->calls; i++)
        call_free(&m->call[i]);
    free(m->call);
    text_free(&m->reasoning);
    text_free(&m->content);
    *m = (struct message){ 0 };
}

void message_id(char out[32], const char *prefix)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char b[24];
    char name[25];
    int i;

    /* Reads of up to 256 bytes are whole once the kernel's pool is up. */
    if (getrandom(b, sizeof(b), 0) != sizeof(b))
        abort();
    for (i = 0; i < 24; i++)
        name[i] = letters[b[i] % (sizeof(letters) - 1)];
    name[24] = 0;
    snprintf(out, 32, "%.7s%s", prefix, name);
}
