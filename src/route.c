#include "src/api.h"
#include "src/page.h"
#include "src/server.h"

#include <stdio.h>

/* Paths to handlers.  Every path is served with and without /v1. */

struct handler {
    const char *path;
    enum http_method method;
    const struct api *(*api)(void);     /* POST */
    bool generates;
    void (*info)(struct server *s, struct text *out);   /* GET */
    const char *type;
};

static const char JSON[] = "application/json";

static const struct handler HANDLERS[] = {
    { "/chat/completions", HTTP_POST, api_chat, true, NULL, NULL },
    { "/completions", HTTP_POST, api_completions, true, NULL, NULL },
    { "/responses", HTTP_POST, api_responses, true, NULL, NULL },
    { "/messages", HTTP_POST, api_messages, true, NULL, NULL },
    { "/messages/count_tokens", HTTP_POST, api_count_tokens, false, NULL, NULL },
    { "/tokenize", HTTP_POST, api_tokenize, false, NULL, NULL },
    { "/detokenize", HTTP_POST, api_detokenize, false, NULL, NULL },
    { "/apply-template", HTTP_POST, api_template, false, NULL, NULL },
    { "/models", HTTP_GET, NULL, false, info_models, JSON },
    { "/props", HTTP_GET, NULL, false, info_props, JSON },
    { "/slots", HTTP_GET, NULL, false, info_slots, JSON },
    { "/metrics", HTTP_GET, NULL, false, info_metrics, "text/plain; version=0.0.4" },
    { "/stats", HTTP_GET, NULL, false, info_stats, JSON },
    { "/stats/experts", HTTP_GET, NULL, false, info_experts, JSON },
    { "/version", HTTP_GET, NULL, false, info_version, JSON },
};

static void refuse(struct conn *c, int status, const char *code, const char *words)
{
    struct request_error e = { .status = status, .code = code, .type = "invalid_request_error" };

    snprintf(e.message, sizeof(e.message), "%s", words);
    http_reply_error(c, &e, 0);
}

static const struct handler *find(const char *path)
{
    for (size_t i = 0; i < sizeof(HANDLERS) / sizeof(*HANDLERS); i++)
        if (!strcmp(HANDLERS[i].path, path))
            return &HANDLERS[i];
    return NULL;
}

static void give_info(struct server *s, struct conn *c, const struct handler *h)
{
    struct text out = { NULL, 0, 0, false };
    struct request_error e = { .status = 503, .type = "server_error", .code = "loading",
                               .message = "Loading model" };

    if (server_state(s) == SERVER_LOADING) {
        http_reply_error(c, &e, 5);
        return;
    }
    h->info(s, &out);
    http_reply(c, 200, h->type, &out);
    text_free(&out);
}

static void give_health(struct server *s, struct conn *c)
{
    struct text out = { NULL, 0, 0, false };
    int status;

    info_health(s, &out, &status);
    if (status == 503)
        conn_add_field(c, "Retry-After", "5");
    http_reply(c, status, JSON, &out);
    text_free(&out);
}

void route(void *server, struct conn *c)
{
    struct server *s = server;
    const struct handler *h;
    char path[64];

    http_path(c, path, sizeof(path));
    h = find(path);
    if (!strcmp(path, "/health") && conn_method(c) == HTTP_GET)
        give_health(s, c);
    else if (!strcmp(path, "/") && conn_method(c) == HTTP_GET)
        page_give(c);
    else if (!h && strcmp(path, "/health") && strcmp(path, "/"))
        refuse(c, 404, "not_found", "there is nothing at this path");
    else if (!h || h->method != conn_method(c))
        refuse(c, 405, "method_not_allowed", "this path is for the other method");
    else if (h->api)
        job_start(s, c, h->api(), h->generates);
    else
        give_info(s, c, h);
}
