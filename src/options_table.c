#include "src/options_table.h"

#include <stdio.h>

/* Rows of commands and options in the order in which --help shows them.  What an option does
 * is said here in a line and in the manual in full. */

enum {
    RUN = 1 << CMD_RUN,
    BATCH = 1 << CMD_BATCH,
    SCORE = 1 << CMD_SCORE,
    TOKENIZE = 1 << CMD_TOKENIZE,
    RENDER = 1 << CMD_RENDER,
    BENCH = 1 << CMD_BENCH,
    PLAN = 1 << CMD_PLAN,
    STATS = 1 << CMD_STATS,
    DOCTOR = 1 << CMD_DOCTOR,
    SERVE = 1 << CMD_SERVE,
    TOP = 1 << CMD_TOP,
    COMMON = RUN | BATCH | SCORE | TOKENIZE | RENDER | BENCH | PLAN | STATS | DOCTOR | SERVE,
    ANY = COMMON | TOP | 1 << CMD_NONE,
};

static const struct command_spec COMMANDS[] = {
    { "run", CMD_RUN, "[PROMPT]", "answer a prompt, or hold a conversation at a terminal" },
    { "batch", CMD_BATCH, "[FILE|-]", "answer JSON requests, one a line" },
    { "score", CMD_SCORE, "[FILE|-]", "perplexity of a text, or numbers for sequences of ids" },
    { "tokenize", CMD_TOKENIZE, "[FILE|-]", "text to token ids, or back" },
    { "render", CMD_RENDER, "[FILE|-]", "JSON requests to the prompts that the model sees" },
    { "bench", CMD_BENCH, "", "measure the speed of prompts and of generation" },
    { "plan", CMD_PLAN, "", "say what goes where, whether it fits, and how fast it will be" },
    { "stats", CMD_STATS, "", "show which experts the router has chosen so far" },
    { "doctor", CMD_DOCTOR, "", "check what makes the program slow on this machine, or stops it" },
    { "serve", CMD_SERVE, "", "answer the OpenAI and Anthropic APIs over HTTP" },
    { "top", CMD_TOP, "", "watch a running server" },
    { NULL, CMD_NONE, NULL, NULL },
};

#define AT(field) offsetof(struct options, field)
#define LIMIT(field) offsetof(struct options, limits.field)
#define MILLION 1000000

static const struct option_spec OPTIONS[] = {
    { "file", 0, "FILE", RUN, OPTION_TEXT, AT(file), 0, 0, "read the prompt from FILE" },
    { "max-tokens", 'n', "N", RUN, OPTION_INT, AT(max_tokens), -1, 16 * MILLION,
      "stop after N tokens; -1: when the context is full" },
    { "system", 0, "TEXT", RUN, OPTION_TEXT, AT(system), 0, 0, "the system message" },
    { "think", 0, "on|off", RUN, OPTION_SWITCH, AT(think), 0, 0,
      "let the model think before it answers [off]" },
    { "temp", 0, "X", RUN, OPTION_FLOAT, AT(temperature), 0, 2,
      "temperature; 0 takes the likeliest token [the checkpoint's]" },
    { "top-k", 0, "N", RUN, OPTION_INT, AT(top_k), 0, MILLION,
      "choose among the N likeliest tokens; 0: all [the checkpoint's]" },
    { "top-p", 0, "X", RUN, OPTION_SHARE, AT(top_p), 0, 1,
      "choose among the likeliest tokens that hold this share [the checkpoint's]" },
    { "min-p", 0, "X", RUN, OPTION_FLOAT, AT(min_p), 0, 1,
      "drop tokens below this share of the likeliest one [0]" },
    { "seed", 0, "N", RUN, OPTION_SEED, AT(seed), 0, 0, "repeat an answer [a new one each time]" },
    { "stop", 0, "TEXT", RUN, OPTION_STOP, 0, 0, 0,
      "end the answer before TEXT; may be given 16 times" },

    { "window", 0, "N", SCORE, OPTION_INT, AT(window), 2, 16 * MILLION,
      "tokens that are evaluated together [2048]" },
    { "max-windows", 0, "N", SCORE, OPTION_INT, AT(max_windows), 0, 16 * MILLION,
      "stop after N windows; 0: all [0]" },
    { "ids", 0, NULL, SCORE, OPTION_FLAG, AT(ids), 0, 0,
      "the input is one JSON array of ids a line" },
    { "logits", 0, NULL, SCORE, OPTION_FLAG, AT(logits), 0, 0,
      "with --ids: add the logits of the last position" },
    { "routes", 0, NULL, SCORE, OPTION_FLAG, AT(routes), 0, 0,
      "with --ids: add the experts of the last position" },
    { "decode", 0, NULL, SCORE, OPTION_FLAG, AT(decode), 0, 0,
      "with --ids: compute a token at a time, as generation does" },

    { "jsonl", 0, NULL, TOKENIZE, OPTION_FLAG, AT(jsonl), 0, 0,
      "the input is one JSON string a line" },
    { "as-text", 0, NULL, TOKENIZE, OPTION_FLAG, AT(as_text), 0, 0,
      "match no added token: the text is only text" },
    { "bos", 0, NULL, TOKENIZE, OPTION_FLAG, AT(add_bos), 0, 0,
      "put the id that begins a sequence in front" },
    { "decode", 0, NULL, TOKENIZE, OPTION_FLAG, AT(decode), 0, 0,
      "the input is arrays of ids: write their texts" },

    { "ids", 0, NULL, RENDER, OPTION_FLAG, AT(ids), 0, 0, "write the prompt's ids" },

    { "prompts", 'p', "N,N", BENCH, OPTION_INTS, AT(prompts), 1, 16 * MILLION,
      "lengths of prompts to measure; with -n alone: none [512]" },
    { "generate", 'n', "N,N", BENCH, OPTION_INTS, AT(generations), 1, 16 * MILLION,
      "numbers of tokens to generate; with -p alone: none [128]" },
    { "depths", 'd', "N,N", BENCH, OPTION_INTS, AT(depths), 0, 16 * MILLION,
      "tokens that are in the context before each test [0]" },
    { "repetitions", 'r', "N", BENCH, OPTION_INT, AT(repetitions), 1, 1000,
      "runs of each test [5]" },
    { "file", 0, "FILE", BENCH, OPTION_TEXT, AT(file), 0, 0,
      "the text that is read [the manual]" },
    { "machine", 0, "FILE", PLAN, OPTION_TEXT, AT(machine), 0, 0,
      "plan for the machine that FILE describes, as --json does" },
    { "remeasure", 0, NULL, PLAN | DOCTOR, OPTION_FLAG, AT(remeasure), 0, 0,
      "measure memory, processor and drive again" },
    { "svg", 0, "FILE", STATS, OPTION_TEXT, AT(svg), 0, 0, "draw the heat map and the curve" },
    { "md", 0, NULL, BENCH, OPTION_FLAG, AT(markdown), 0, 0, "write a Markdown table" },
    { "csv", 0, NULL, BENCH | STATS, OPTION_FLAG, AT(csv), 0, 0,
      "write comma-separated values" },
    { "json", 0, NULL, BENCH | PLAN | STATS | DOCTOR, OPTION_FLAG, AT(json), 0, 0, "write JSON" },

    { "host", 0, "ADDRESS", SERVE, OPTION_TEXT, AT(host), 0, 0,
      "listen there; a path ending in .sock is a unix socket [127.0.0.1]" },
    { "port", 0, "N", SERVE, OPTION_INT, AT(port), 0, 65535, "0: any free one [8080]" },
    { "api-key", 0, "KEY[,KEY]", SERVE, OPTION_TEXT, AT(api_key), 0, 0,
      "answer only who shows one of these keys" },
    { "api-key-file", 0, "FILE", SERVE, OPTION_TEXT, AT(api_key_file), 0, 0,
      "the same, a key a line" },
    { "cors-origins", 0, "LIST", SERVE, OPTION_TEXT, AT(cors_origins), 0, 0,
      "origins whose pages may ask, localhost, or * [none]" },
    { "alias", 0, "NAME", SERVE, OPTION_TEXT, AT(alias), 0, 0,
      "what the model is called [its directory's name]" },
    { "queue", 0, "N", SERVE, OPTION_INT, AT(queue), 0, 4096,
      "requests that may wait behind the one being answered [8]" },
    { "sessions", 0, "N", SERVE, OPTION_INT, AT(sessions), 1, 16,
      "conversations whose KV cache is kept [2]" },
    { "drain-seconds", 0, "N", SERVE, OPTION_INT, AT(drain_seconds), 0, 3600,
      "how long answers may go on after SIGTERM [4]" },
    { "log-format", 0, "text|json|journal", SERVE, OPTION_WORD, AT(log_format), 0, 0,
      "form of every line of the log [text]" },
    { "prefix-debug", 0, NULL, SERVE, OPTION_FLAG, AT(prefix_debug), 0, 0,
      "say where a prompt first differs from what is kept" },
    { "max-line", 0, "N", SERVE, OPTION_INT, LIMIT(line_bytes), 64, MILLION,
      "bytes of a request line [8192]" },
    { "max-head", 0, "N", SERVE, OPTION_INT, LIMIT(head_bytes), 256, MILLION,
      "bytes of a request's head [16384]" },
    { "max-fields", 0, "N", SERVE, OPTION_INT, LIMIT(fields), 1, 10000,
      "header fields of a request [64]" },
    { "max-body", 0, "SIZE", SERVE, OPTION_SIZE, LIMIT(body_bytes), 0, 0,
      "bytes of a request's body [32M]" },
    { "head-seconds", 0, "N", SERVE, OPTION_INT, LIMIT(head_seconds), 1, 3600,
      "how long a request's head may take [10]" },
    { "body-seconds", 0, "N", SERVE, OPTION_INT, LIMIT(body_seconds), 1, 86400,
      "how long a request's body may take [60]" },
    { "body-rate", 0, "N", SERVE, OPTION_INT, LIMIT(body_rate), 0, MILLION,
      "least bytes a second of a body [1024]" },
    { "idle-seconds", 0, "N", SERVE, OPTION_INT, LIMIT(idle_seconds), 1, 86400,
      "how long a connection may be silent between requests [900]" },
    { "max-connections", 0, "N", SERVE, OPTION_INT, LIMIT(connections), 1, 65536,
      "connections at a time [512]" },
    { "max-peer-connections", 0, "N", SERVE, OPTION_INT, LIMIT(peer_connections), 1, 65536,
      "connections of one other machine [64]" },

    { "url", 0, "URL", TOP, OPTION_TEXT, AT(url), 0, 0,
      "of the server [http://127.0.0.1:8080]" },
    { "api-key-file", 0, "FILE", TOP, OPTION_TEXT, AT(api_key_file), 0, 0,
      "show the first key of FILE" },

    { "model", 'm', "DIR", COMMON, OPTION_TEXT, AT(model_dir), 0, 0,
      "the checkpoint's directory [the nano model shipped with the program]" },
    { "context", 'c', "N|auto", COMMON, OPTION_INT_AUTO, AT(context), 1, 16 * MILLION,
      "tokens that a conversation may hold [auto]" },
    { "threads", 't', "N", COMMON, OPTION_INT_AUTO, AT(threads), 1, 1024,
      "worker threads [one for each core]" },
    { "isa", 0, "NAME", COMMON | 1 << CMD_NONE, OPTION_ISA, AT(isa), 0, 0,
      "instruction set of the CPU kernels; help lists them [auto]" },
    { "kv-type", 0, "q8|fp8|bf16|f32", COMMON, OPTION_WORD, AT(kv_type), 0, 0,
      "format of the KV cache [q8]" },
    { "ram", 0, "SIZE|auto", COMMON, OPTION_SIZE_AUTO, AT(ram_bytes), 0, 0,
      "memory that the program may use [auto]" },
    { "vram", 0, "SIZE|auto[,SIZE]", COMMON, OPTION_SIZES, AT(vram_bytes), 0, 0,
      "memory of each GPU that the program may use [auto]" },
    { "ram-experts", 0, "SIZE", COMMON, OPTION_SIZE, AT(ram_experts_bytes), 0, 0,
      "bound the experts kept in memory" },
    { "vram-experts", 0, "SIZE", COMMON, OPTION_SIZE, AT(vram_experts_bytes), 0, 0,
      "bound the experts kept on the GPU" },
    { "vram-reserve", 0, "SIZE", COMMON, OPTION_SIZE, AT(vram_reserve_bytes), 0, 0,
      "memory of the GPU that --vram auto leaves free [a sixteenth, at least 512M]" },
    { "device", 0, "cpu|cuda[:N]|ref|auto", COMMON, OPTION_DEVICE, AT(device), 0, 0,
      "where the model runs [auto]" },
    { "upload-share", 0, "X|auto", COMMON, OPTION_FLOAT_AUTO, AT(upload_share), 0, 1,
      "of the experts in memory that a token needs, those that the GPU fetches [auto]" },
    { "gpu-watchdog", 0, "SECONDS", COMMON, OPTION_INT, AT(gpu_watchdog), 0, 100000,
      "give up a GPU step that waits so long for the processor; 0: never [180]" },
    { "io", 0, "uring|preadv|auto", COMMON, OPTION_WORD, AT(io), 0, 0,
      "how the drive is read [auto]" },
    { "io-depth", 0, "N", COMMON, OPTION_INT, AT(io_depth), 1, 64,
      "experts read at a time [4]" },
    { "guess", 0, "on|off", COMMON, OPTION_SWITCH, AT(guess), 0, 0,
      "read ahead what the next layer may want [off]" },
    { "trace-routes", 0, "FILE", COMMON, OPTION_TEXT, AT(trace_routes), 0, 0,
      "record the experts of every token in FILE" },
    { "state-dir", 0, "DIR", COMMON, OPTION_TEXT, AT(state_dir), 0, 0,
      "where statistics and sessions are kept" },
    { "deterministic", 0, NULL, COMMON, OPTION_FLAG, AT(deterministic), 0, 0,
      "the same bits every time, whatever lies where" },
    { "verbose", 'v', NULL, COMMON, OPTION_VERBOSE, 0, 0, 0, "say more on stderr" },
    { "quiet", 'q', NULL, COMMON, OPTION_QUIET, 0, 0, 0, "no warnings and no figures on stderr" },
    { "completion", 0, "bash|zsh", 1 << CMD_NONE, OPTION_HELP, 0, 0, 0,
      "write what makes that shell complete options" },
    { "help", 'h', NULL, ANY, OPTION_HELP, 0, 0, 0, "show this help" },
    { "version", 0, NULL, ANY, OPTION_VERSION, 0, 0, 0, "show the version" },
    { NULL, 0, NULL, 0, OPTION_FLAG, 0, 0, 0, NULL },
};

const struct option_spec *option_table(void)
{
    return OPTIONS;
}

const struct command_spec *command_table(void)
{
    return COMMANDS;
}

const struct command_spec *command_named(const char *name)
{
    for (const struct command_spec *c = COMMANDS; c->name; c++)
        if (!strcmp(c->name, name))
            return c;
    return NULL;
}

const struct command_spec *command_row(enum command command)
{
    for (const struct command_spec *c = COMMANDS; c->name; c++)
        if (c->command == command)
            return c;
    return NULL;
}

const struct option_spec *option_named(const char *name, enum command c)
{
    for (const struct option_spec *s = OPTIONS; s->name; s++)
        if (!strcmp(s->name, name) && (c == CMD_NONE || s->commands >> c & 1))
            return s;
    return NULL;
}

const struct option_spec *option_lettered(char letter, enum command c)
{
    for (const struct option_spec *s = OPTIONS; s->name; s++)
        if (s->letter == letter && s->commands >> c & 1)
            return s;
    return NULL;
}

static void help_row(const struct option_spec *s)
{
    char left[64], letter[8] = "    ";

    if (s->letter)
        snprintf(letter, sizeof(letter), "-%c, ", s->letter);
    snprintf(left, sizeof(left), "%s--%s%s%s", letter, s->name, s->arg ? " " : "",
             s->arg ? s->arg : "");
    printf("  %-30s %s\n", left, s->help);
}

void options_help(enum command c)
{
    const struct command_spec *command = command_row(c);

    if (command) {
        printf("Usage: laguna-offload %s [OPTION]...%s%s\n%c%s.\n\n", command->name,
               *command->operand ? " " : "", command->operand, command->help[0] - 'a' + 'A',
               command->help + 1);
    } else {
        puts("Usage: laguna-offload COMMAND [OPTION]...\n\nCommands:");
        for (command = COMMANDS; command->name; command++)
            printf("  %-10s %-10s %s\n", command->name, command->operand, command->help);
        puts("\nOptions of every command (COMMAND --help shows its own):");
    }
    for (const struct option_spec *s = OPTIONS; s->name; s++)
        if (c == CMD_NONE ? (s->commands & COMMON) == COMMON : s->commands >> c & 1)
            help_row(s);
    puts("\nEvery option but the last two may be set as LAGUNA_NAME in the environment or as\n"
         "`name = value` in the settings file.  SIZE takes K, M and G.  See laguna-offload(1).");
}
