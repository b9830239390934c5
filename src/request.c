/* Bodies of requests, checked once at the door.  What the model's defaults are, how long the
 * context is and how an error travels is for the caller. */
#include "src/request.h"
#include "src/param.h"
#include "src/request_chat.h"
#include "src/request_schema.h"
#include "src/utf8.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int no_memory(struct request_error *e)
{
    *e = (struct request_error){ .status = 503, .type = "server_error", .code = "out_of_memory",
                                 .message = "out of memory" };
    return -ENOMEM;
}

/* Capabilities that this program lacks.  A client that asks for one must not get an answer
 * which silently does without. */
static int check_unsupported(const struct request *q, const struct params *f)
{
    static const char *const name[] = {
        "chat_template", "functions", "function_call", "grammar", "json_schema", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "prompt_embeds",
        "prompt_logprobs", "truncate_prompt_tokens", "audio", "web_search_options",
        "logits_processors", "continue_final_message", "use_beam_search", "suffix",
    };
    const cJSON *node;
    size_t i;

    for (i = 0; i < sizeof(name) / sizeof(*name); i++) {
        node = param_get(f, name[i]);
        if (node && !cJSON_IsFalse(node) && !(cJSON_IsString(node) && !node->valuestring[0]))
            return param_refuse(f, name[i], "unsupported", "%s is not supported", name[i]);
    }
    cJSON_ArrayForEach(node, param_get(f, "modalities"))
        if (!cJSON_IsString(node) || strcmp(node->valuestring, "text") != 0)
            return param_refuse(f, "modalities", "unsupported", "only text is supported");
    if (q->chat && cJSON_IsTrue(param_get(f, "echo")))
        return param_refuse(f, "echo", "unsupported", "echo is for completions only");
    return 0;
}

static int check_ones(const struct params *f)
{
    static const char *const name[] = { "n", "best_of" };
    int64_t one;
    size_t i;

    for (i = 0; i < sizeof(name) / sizeof(*name); i++)
        if (param_get(f, name[i]) && json_int64(param_get(f, name[i]), 1, 1, &one))
            return param_refuse(f, name[i], "unsupported", "%s other than 1 is not supported",
                                name[i]);
    return 0;
}

static int read_sampling(struct request *q, const struct params *f)
{
    struct sampling *s = &q->sampling;
    const struct {
        const char *name;
        double min, max;
        float *out;
    } number[] = {
        { "temperature", 0, 2, &s->temperature },
        { "top_p", DBL_TRUE_MIN, 1, &s->top_p },
        { "min_p", 0, 1, &s->min_p },
        { "repeat_penalty", FLT_MIN, 2, &s->repetition_penalty },
        { "repetition_penalty", FLT_MIN, 2, &s->repetition_penalty },
        { "presence_penalty", -2, 2, &s->presence_penalty },
        { "frequency_penalty", -2, 2, &s->frequency_penalty },
    };
    size_t i;
    int rc = 0;

    *s = (struct sampling){ .temperature = NAN, .top_p = NAN, .min_p = NAN, .top_k = -1,
                            .repetition_penalty = NAN, .presence_penalty = NAN,
                            .frequency_penalty = NAN };
    for (i = 0; !rc && i < sizeof(number) / sizeof(*number); i++)
        rc = param_number(f, number[i].name, number[i].min, number[i].max, number[i].out);
    /* Too small for a float is not zero: that would be no token at all. */
    if (s->top_p < FLT_MIN)
        s->top_p = FLT_MIN;
    return rc;
}

static int read_integers(struct request *q, const struct params *f, int vocab)
{
    static const char *const budget[] = {   /* the last that is given decides */
        "max_output_tokens", "n_predict", "max_tokens", "max_completion_tokens",
    };
    int64_t top_k = q->sampling.top_k, seed = -1;
    size_t i;
    int rc = 0;

    q->max_tokens = -1;
    for (i = 0; !rc && i < sizeof(budget) / sizeof(*budget); i++)
        rc = param_int(f, budget[i], -1, INT32_MAX, &q->max_tokens);
    if (!rc)
        rc = param_int(f, "min_tokens", 0, INT32_MAX, &q->min_tokens);
    if (!rc)
        rc = param_int(f, "seed", INT64_MIN, INT64_MAX, &seed);
    if (!rc)
        rc = param_int(f, "top_k", -1, vocab, &top_k);
    if (rc)
        return rc;
    q->has_seed = seed != -1;
    q->sampling.seed = (uint64_t)seed;
    /* Both -1 and 0 switch it off; here -1 means that nothing was said. */
    q->sampling.top_k = param_get(f, "top_k") && top_k < 0 ? 0 : (int)top_k;
    return 0;
}

static int read_flags(struct request *q, const struct params *f)
{
    const struct {
        const char *name;
        bool *out;
    } flag[] = {
        { "ignore_eos", &q->ignore_eos },
        { "echo", &q->echo },
        { "stream", &q->stream },
        { "cache_prompt", &q->cache_prompt },
        { "return_progress", &q->return_progress },
        { "timings_per_token", &q->timings_per_token },
    };
    struct params options;
    size_t i;
    int rc = 0;

    q->cache_prompt = true;
    for (i = 0; !rc && i < sizeof(flag) / sizeof(*flag); i++)
        rc = param_bool(f, flag[i].name, flag[i].out);
    if (!rc)
        rc = param_object(f, "stream_options", "stream_options.", &options);
    if (!rc && options.object && !q->stream)
        rc = param_refuse(f, "stream_options", "invalid_value", "stream_options without stream");
    if (!rc)
        rc = param_bool(&options, "include_usage", &q->include_usage);
    return rc;
}

static int add_stop(struct request *q, const struct params *f, const cJSON *node)
{
    size_t n = cJSON_IsString(node) ? strlen(node->valuestring) : 0;

    if (n < 1 || n > REQUEST_STOP_BYTES)
        return param_refuse(f, "stop", "invalid_value", "stop: strings of 1 to %d bytes",
                            REQUEST_STOP_BYTES);
    q->stop[q->stops++] = node->valuestring;
    return 0;
}

static int read_stop(struct request *q, const struct params *f)
{
    const cJSON *stop = param_get(f, "stop"), *one;
    int rc = 0;

    if (!stop)
        return 0;
    if (!cJSON_IsArray(stop))
        return add_stop(q, f, stop);
    if (cJSON_GetArraySize(stop) > REQUEST_STOPS)
        return param_refuse(f, "stop", "invalid_value", "stop: at most %d strings", REQUEST_STOPS);
    cJSON_ArrayForEach(one, stop)
        if (!rc)
            rc = add_stop(q, f, one);
    return rc;
}

static int read_stop_ids(struct request *q, const struct params *f, int vocab)
{
    const cJSON *list = param_get(f, "stop_token_ids"), *one;
    int64_t id;

    if (!list)
        return 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > REQUEST_STOP_IDS)
        return param_refuse(f, "stop_token_ids", "invalid_value",
                            "stop_token_ids must be an array of at most %d ids", REQUEST_STOP_IDS);
    cJSON_ArrayForEach(one, list) {
        if (json_int64(one, 0, vocab - 1, &id))
            return param_refuse(f, "stop_token_ids", "invalid_value",
                                "stop_token_ids: ids are integers from 0 to %d", vocab - 1);
        q->stop_id[q->stop_ids++] = (int32_t)id;
    }
    return 0;
}

/* A token id written as the key of an object, or -1. */
static int32_t id_of_key(const char *s, int vocab)
{
    size_t n = strlen(s);
    long v;

    if (!n || n > 9 || strspn(s, "0123456789") != n || (s[0] == '0' && n > 1))
        return -1;
    v = strtol(s, NULL, 10);
    return v < vocab ? (int32_t)v : -1;
}

static int read_bias(struct request *q, const struct params *f, int vocab)
{
    struct params bias;
    const cJSON *one;
    int n, rc;

    rc = param_object(f, "logit_bias", "logit_bias.", &bias);
    if (rc || !bias.object)
        return rc;
    n = cJSON_GetArraySize(bias.object);
    if (n > REQUEST_BIASES)
        return param_refuse(f, "logit_bias", "invalid_value", "logit_bias: %d of at most %d "
                            "entries", n, REQUEST_BIASES);
    q->bias = calloc((size_t)n + 1, sizeof(*q->bias));
    if (!q->bias)
        return no_memory(f->e);
    cJSON_ArrayForEach(one, bias.object) {
        struct logit_bias *b = &q->bias[q->sampling.biases];

        b->id = id_of_key(one->string, vocab);
        if (b->id < 0)
            return param_refuse(f, "logit_bias", "invalid_value",
                                "logit_bias: keys are token ids from 0 to %d", vocab - 1);
        if (cJSON_IsNull(one))
            return param_refuse(&bias, one->string, "invalid_type", "logit_bias: null");
        rc = param_number(&bias, one->string, -100, 100, &b->add);
        if (rc)
            return rc;
        q->sampling.biases++;
    }
    q->sampling.bias = q->bias;
    return 0;
}

/* Conversations say logprobs (a bool) and top_logprobs, completions logprobs (a number). */
static int read_logprobs(struct request *q, const struct params *f)
{
    int64_t top = -1;
    int rc;

    if (q->chat) {
        rc = param_bool(f, "logprobs", &q->logprobs);
        if (!rc)
            rc = param_int(f, "top_logprobs", 0, REQUEST_ALTERNATIVES, &top);
        if (!rc && top > 0 && !q->logprobs)
            rc = param_refuse(f, "top_logprobs", "invalid_value", "top_logprobs without logprobs");
    } else if (cJSON_IsFalse(param_get(f, "logprobs"))) {
        rc = 0;
    } else {
        rc = param_int(f, "logprobs", 0, REQUEST_ALTERNATIVES, &top);
        q->logprobs = top >= 0;
    }
    q->alternatives = top > 0 ? (int)top : 0;
    return rc;
}

static int read_prompt_ids(struct request *q, const struct params *f, const cJSON *list, int vocab)
{
    size_t n = (size_t)cJSON_GetArraySize(list);
    const cJSON *one;
    int64_t id;

    q->prompt_id = malloc(n * sizeof(*q->prompt_id));
    if (!q->prompt_id)
        return no_memory(f->e);
    cJSON_ArrayForEach(one, list) {
        if (json_int64(one, 0, vocab - 1, &id))
            return param_refuse(f, "prompt", "invalid_value", "prompt: item %zu is no token id "
                                "from 0 to %d", q->prompt_ids, vocab - 1);
        q->prompt_id[q->prompt_ids++] = (int32_t)id;
    }
    return 0;
}

/* A string, an array of ids, or an array with one of these. */
static int read_prompt(struct request *q, const struct params *f, int vocab)
{
    const cJSON *prompt = param_get(f, "prompt");

    if (cJSON_IsArray(prompt) && (cJSON_IsString(prompt->child) || cJSON_IsArray(prompt->child))) {
        if (prompt->child->next)
            return param_refuse(f, "prompt", "unsupported", "more than one prompt in a request is "
                                "not supported");
        prompt = prompt->child;
    }
    if (cJSON_IsString(prompt)) {
        text_puts(&q->prompt.text, prompt->valuestring);
        return q->prompt.text.failed ? no_memory(f->e) : 0;
    }
    if (!cJSON_IsArray(prompt) || !prompt->child)
        return param_refuse(f, "prompt", "invalid_value",
                            "prompt must be a string or an array of token ids");
    return read_prompt_ids(q, f, prompt, vocab);
}

static int read_messages(struct request *q, const struct params *f)
{
    struct chat_options o = { q->thinking, true };
    struct err why = { "" };
    size_t path;
    int rc;

    rc = param_bool(f, "add_generation_prompt", &o.generation_prompt);
    if (rc)
        return rc;
    rc = chat_render(&q->prompt, json_get(f->object, "messages"), q->tools, &o, &why);
    if (rc == -ENOMEM)
        return no_memory(f->e);
    if (rc) {
        /* The words begin with the path. */
        path = strcspn(why.text, ":");
        rc = param_refuse(f, "", "invalid_value", "%s", why.text);
        snprintf(f->e->param, sizeof(f->e->param), "%.*s", (int)path, why.text);
    }
    return rc;
}

static int read_body(struct request *q, const struct params *f, int vocab)
{
    const char *model = NULL;
    int rc;

    q->chat = json_get(f->object, "messages") != NULL;
    if (!q->chat && !param_get(f, "prompt"))
        return param_refuse(f, "messages", "missing_field", "messages or prompt is missing");
    rc = param_string(f, "model", 256, &model);
    if (!rc)
        rc = check_unsupported(q, f);
    if (!rc)
        rc = check_ones(f);
    if (!rc)
        rc = request_format(q, f);
    if (!rc)
        rc = read_sampling(q, f);
    if (!rc)
        rc = read_integers(q, f, vocab);
    if (!rc)
        rc = read_flags(q, f);
    if (!rc)
        rc = read_stop(q, f);
    if (!rc)
        rc = read_stop_ids(q, f, vocab);
    if (!rc)
        rc = read_bias(q, f, vocab);
    if (!rc)
        rc = read_logprobs(q, f);
    if (!rc)
        rc = request_thinking(q, f);
    if (!rc && !q->chat)
        return read_prompt(q, f, vocab);
    if (!rc)
        rc = request_tools(q, f);
    if (!rc)
        rc = request_calls(q, f);
    if (!rc)
        rc = read_messages(q, f);
    return rc;
}

cJSON *request_object(const char *body, size_t n, struct request_error *e)
{
    struct params f = { .path = "", .e = e };
    size_t valid = utf8_valid(body, n);
    struct err why;
    cJSON *object;

    *e = (struct request_error){ 0 };
    if (valid < n) {
        param_refuse(&f, "", "invalid_utf8", "byte %zu of the body is not UTF-8", valid);
        return NULL;
    }
    object = json_parse(body, n, &JSON_REQUEST, &why);
    if (!object) {
        param_refuse(&f, "", "invalid_json", "%s", why.text);
        return NULL;
    }
    if (!cJSON_IsObject(object)) {
        param_refuse(&f, "", "invalid_json", "the body must be a JSON object");
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

int request_read(struct request *out, cJSON *body, int vocab, struct request_error *e)
{
    struct params f = { .object = body, .path = "", .e = e };

    *out = (struct request){ .body = body, .parallel_tool_calls = true };
    *e = (struct request_error){ 0 };
    return read_body(out, &f, vocab);
}

int request_parse(struct request *out, const char *body, size_t n, int vocab,
                  struct request_error *e)
{
    cJSON *object = request_object(body, n, e);

    *out = (struct request){ .body = NULL };
    return object ? request_read(out, object, vocab, e) : -EBADMSG;
}

void request_free(struct request *q)
{
    cJSON_Delete(q->body);
    schema_close(q->schema);
    prompt_free(&q->prompt);
    free(q->prompt_id);
    free(q->bias);
    *q = (struct request){ 0 };
}
