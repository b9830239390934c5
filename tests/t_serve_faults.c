/* Rows I09 and I10 of the fault catalogue, and what one request loses, from outside: a server
 * over gpu_ref.c whose GPU is lost while one request runs and others wait, or while nobody asks;
 * whose watchdog fires, or whose numbers are none. */
#include "tests/serve.h"
#include "src/engine_faults.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define CHAT "/v1/chat/completions"
#define ENDLESS "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"ignore_eos\":true," \
                "\"max_tokens\":500"
#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"temperature\":0," \
              "\"max_tokens\":16"
#define WORDS "because a test asked for it"

enum { CLIENTS = 4, LOST_SECONDS = 5 };

struct bed {
    struct serving s;
    char *model, *state;
};

/* `auto` moves experts while nobody asks; with --deterministic all seats are taken before. */
static bool set_up(struct bed *b, const struct engine_faults *f, bool deterministic)
{
    const char *const options[] = {
        "-m", b->model, "--state-dir", b->state, "--port", "0", "--device", "ref", "-c", "1024",
        "--vram", "100M", "--vram-experts", "4M", "--ram-experts", "0", "--threads", "2",
        deterministic ? "--deterministic" : NULL, NULL,
    };

    return serve_start_faulty(&b->s, options, f);
}

/* Send a request, to be read later. */
static int begin(const struct serving *s, const char *path, const char *body)
{
    struct text request = { NULL, 0, 0, false };
    int fd = serve_connect(s);

    text_printf(&request, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", path,
                strlen(body), body);
    if (send(fd, request.s, request.n, MSG_NOSIGNAL) != (ssize_t)request.n)
        printf("# %s\n", strerror(errno));
    text_free(&request);
    return fd;
}

/* All that comes until the server closes. */
static struct text finish(int fd)
{
    struct text got = { NULL, 0, 0, false };
    char buf[4096];
    ssize_t n;

    text_puts(&got, "");
    while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
        text_add(&got, buf, (size_t)n);
    close(fd);
    return got;
}

static bool wait_for(const struct serving *s, const char *path, const char *word)
{
    for (int i = 0; i < 2000; i++) {
        int status;
        struct text got = serve_get(s, path, &status);
        bool there = strstr(got.s, word) != NULL;

        text_free(&got);
        if (there)
            return true;
        usleep(5000);
    }
    return false;
}

/* The exit status of a server that ends by itself; -1 where it does not. */
static int wait_end(const struct serving *s, double seconds)
{
    double until = clock_now() + seconds;
    int status;

    while (clock_now() < until) {
        if (waitpid(s->pid, &status, WNOHANG) == s->pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        usleep(10000);
    }
    kill(s->pid, SIGKILL);
    waitpid(s->pid, &status, 0);
    return -1;
}

/* How many of the lines it has said since it began have the word in them. */
static int count_lines(struct serving *s, const char *word)
{
    char line[4096];
    int n = 0;

    while (fgets(line, sizeof(line), s->log))
        n += strstr(line, word) != NULL;
    fclose(s->log);
    text_free(&s->said);
    return n;
}

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *f;
    int n = 0;

    while (d && (f = readdir(d)))
        n += f->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static void lose_in_step(struct bed *b)
{
    static const struct engine_faults f = { .gpu = { .dead_step = 60 } };
    static const struct {
        const char *path, *body, *statuses, *words;
    } client[CLIENTS] = {
        { CHAT, ENDLESS ",\"stream\":true}", " 200 ", "\"code\":\"gpu_fault\"" },
        { CHAT, HELLO "}", " 503 ", "\"code\":\"gpu_fault\"" },
        { CHAT, HELLO ",\"stream\":true}", " 200 ", "\"code\":\"gpu_fault\"" },
        { "/v1/messages", HELLO ",\"stream\":true}", " 200 ", "event: error" },
    };
    int fd[CLIENTS], status;
    struct text health;
    double lost;

    if (!set_up(b, &f, true)) {
        ok(0, "the server starts");
        return;
    }
    for (int i = 0; i < CLIENTS; i++)
        fd[i] = begin(&b->s, client[i].path, client[i].body);
    for (int i = 0; i < CLIENTS; i++) {
        struct text got = finish(fd[i]);

        ok(strstr(got.s, client[i].words) && strstr(got.s, WORDS) &&
           !strncmp(got.s + 8, client[i].statuses, 5), "client %d hears of it: %.12s", i, got.s);
        text_free(&got);
    }
    lost = clock_now();
    health = serve_get(&b->s, "/health", &status);
    ok(status == 503 && strstr(health.s, "\"status\":\"failed\""), "then: %d %s", status,
       health.s);
    text_free(&health);
    health = serve_post(&b->s, CHAT, HELLO "}", &status);
    ok(status == 503 && strstr(health.s, "gpu_fault"), "who comes now is sent away: %d", status);
    text_free(&health);
    status = wait_end(&b->s, LOST_SECONDS);
    ok(status == 71, "exit %d after %.1f s", status, clock_now() - lost);
    ok(count_lines(&b->s, WORDS) == 1, "the fault is told once");
    ok(count_files(b->state) == 1, "what the router taught is saved");
}

static void lose_while_idle(struct bed *b)
{
    static const struct engine_faults f = { .gpu = { .dead_fill = 9 } };
    int status;

    if (!set_up(b, &f, false)) {
        ok(0, "the server starts");
        return;
    }
    status = wait_end(&b->s, LOST_SECONDS);
    ok(status == 71 && count_lines(&b->s, WORDS) == 1, "lost while nobody asks: exit %d", status);
}

/* The first request fails with the code, the next one is right. */
static void survive(struct bed *b, const struct engine_faults *f, const char *code, bool stream)
{
    struct text got;
    int status;

    if (!set_up(b, f, true)) {
        ok(0, "the server starts");
        return;
    }
    got = serve_post(&b->s, CHAT, stream ? HELLO ",\"stream\":true}" : HELLO "}", &status);
    ok(status == (stream ? 200 : 500) && strstr(got.s, code), "%d %s", status, code);
    text_free(&got);
    got = serve_post(&b->s, CHAT, HELLO "}", &status);
    ok(status == 200 && strstr(got.s, "Hello! How can I help you?"), "the next one is right: %d",
       status);
    if (status != 200)
        printf("# %s\n", got.s);
    text_free(&got);
    got = serve_get(&b->s, "/health", &status);
    ok(status == 200, "the server is well");
    text_free(&got);
    ok(serve_stop(&b->s) == 0, "and ends when it is told to");
    fclose(b->s.log);
}

/* Seats are taken while nobody asks, and who looks sees it. */
static void fill_while_idle(struct bed *b)
{
    int status;
    struct text got;

    if (!set_up(b, NULL, false)) {
        ok(0, "the server starts");
        return;
    }
    ok(wait_for(&b->s, "/stats", "\"vram\":{\"gpu\":\"plain C\",\"seats\":303,\"seated\":303,"),
       "all seats are taken without a request");
    got = serve_get(&b->s, "/metrics", &status);
    ok(strstr(got.s, "laguna_gpu_info{name=\"plain C\"} 1\n") &&
       strstr(got.s, "\nlaguna_vram_seats 303\n") && strstr(got.s, "\nlaguna_vram_seated 303\n") &&
       strstr(got.s, "\nlaguna_vram_promotions_total 303\n") &&
       strstr(got.s, "\nlaguna_vram_demotions_total 0\n") &&
       strstr(got.s, "\nlaguna_vram_upload_bytes_total ") &&
       strstr(got.s, "\nlaguna_experts_fetched_total "), "the metrics have it");
    text_free(&got);
    got = serve_get(&b->s, "/props", &status);
    ok(strstr(got.s, "\"gpu\":\"plain C\""), "so have the properties");
    text_free(&got);
    ok(serve_stop(&b->s) == 0, "it ends");
    fclose(b->s.log);
}

/* While the drive is read for slots that nobody has asked for yet. */
static void stop_at_once(struct bed *b)
{
    double start;
    int rc = -1;

    b->s.pid = 0;
    if (!set_up(b, NULL, false)) {
        ok(0, "a server");
        return;
    }
    start = clock_now();
    rc = serve_stop(&b->s);
    ok(rc == 0 && clock_now() - start < 8, "stopped as soon as it listens: exit %d after %.1f s",
       rc, clock_now() - start);
}

int main(void)
{
    struct bed b = { .model = source_path("models/nano"), .state = temp_dir() };

    if (!gpu_is_reference()) {
        ok(1, "a server whose GPU fails # SKIP this program was built with CUDA");
        return done();
    }
    lose_in_step(&b);
    lose_while_idle(&b);
    survive(&b, &(struct engine_faults){ .gpu = { .late_step = 2 } }, "\"code\":\"timeout\"",
            false);
    survive(&b, &(struct engine_faults){ .gpu = { .nan_step = 2 } },
            "\"code\":\"nonfinite_logits\"", true);
    survive(&b, &(struct engine_faults){ .gpu = { .nan_batch = 1 } },
            "\"code\":\"nonfinite_logits\"", false);
    fill_while_idle(&b);
    stop_at_once(&b);
    remove_dir(b.state);
    free(b.model);
    return done();
}
