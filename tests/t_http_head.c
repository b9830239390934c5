/* Heads of requests, byte by byte and at their limits. */
#include "tests/tap.h"
#include "src/http_head.h"

#include <stdlib.h>

static const struct http_limits LIMITS = { .line_bytes = 64, .head_bytes = 256, .fields = 4,
                                           .body_bytes = 100 };

struct bad {
    const char *head;
    int status;
};

#define GET "GET / HTTP/1.1\r\nHost: a\r\n"
#define POST "POST / HTTP/1.1\r\nHost: a\r\n"

static const struct bad BAD[] = {
    { "\x16\x03\x01", 400 }, { "get", 0 }, { "GET /\r\n", 400 }, { "GET / HTTP/1.1\n", 400 },
    { "PRI * HTTP/2.0\r\n", 505 }, { "GET / HTTP/1.2\r\n", 505 }, { "HEAD / HTTP/1.1\r\n", 405 },
    { "GET http://a/ HTTP/1.1\r\n", 400 }, { "GET /a%00 HTTP/1.1\r\n", 400 },
    { "GET / HTTP/1.1\r\n\r\n", 400 }, { GET "Host: b\r\n\r\n", 400 }, { GET " folded\r\n", 400 },
    { GET "A : b\r\n", 400 }, { GET "A: b\rc\r\n", 400 }, { GET "A: \x01\r\n", 400 },
    { POST "\r\n", 411 }, { POST "Content-Length: 101\r\n\r\n", 413 },
    { POST "Content-Length: 100\r\n\r\n", 0 }, { POST "Content-Length: +5\r\n", 400 },
    { POST "Content-Length: -1\r\n", 400 }, { POST "Content-Length: 5,5\r\n", 400 },
    { POST "Content-Length: 0x5\r\n", 400 }, { POST "Content-Length:  5\r\n", 400 },
    { POST "Content-Length: \r\n", 400 },
    { POST "Content-Length: 18446744073709551616\r\n", 400 },
    { POST "Content-Length: 5\r\nContent-Length: 5\r\n", 400 },
    { POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
    { POST "Transfer-Encoding: gzip\r\n", 501 }, { POST "Transfer-Encoding: chunkedx\r\n", 400 },
    { POST "Transfer-Encoding: chunked, identity\r\n", 400 },
    { POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400 },
    { POST "Content-Encoding: gzip\r\n", 415 }, { POST "Expect: more\r\n", 417 },
    { GET "B: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\n\r\n", 431 }, { GET "B: 1\r\nC: 1\r\nD: 1\r\n\r\n", 0 },
};

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof(BAD) / sizeof(*BAD); i++) {
        struct http_refusal r = { 0, NULL, NULL };
        struct http_head h;
        int rc = http_head_read(&h, BAD[i].head, strlen(BAD[i].head), &LIMITS, &r);

        ok(BAD[i].status ? rc == -1 && r.status == BAD[i].status : rc >= 0, "head %zu: %d", i,
           r.status);
    }
}

static void test_limits(void)
{
    char s[512];
    struct http_refusal r = { 0, NULL, NULL };
    struct http_head h;

    memset(s, 'a', sizeof(s));
    memcpy(s, "GET /", 5);
    ok(http_head_read(&h, s, 64, &LIMITS, &r) == 0, "a line of 64 bytes may go on");
    ok(http_head_read(&h, s, 66, &LIMITS, &r) == -1 && r.status == 414, "not one of 66");
    memcpy(s, GET "B: ", strlen(GET) + 3);
    memcpy(s + 252, "\r\n\r\n", 4);
    ok(http_head_read(&h, s, 256, &LIMITS, &r) == 1, "a head of 256 bytes");
    memset(s + 252, 'a', 4);
    memcpy(s + 253, "\r\n\r\n", 4);
    ok(http_head_read(&h, s, 257, &LIMITS, &r) == -1 && r.status == 431, "not one of 257");
}

static void test_pieces(void)
{
    static const char head[] =
        "POST /a?b HTTP/1.1\r\nHost: x\r\nA:\t b \r\nCONTENT-length: 7\r\n\r\n";
    size_t n = sizeof(head) - 1;
    struct http_refusal r;
    struct http_head h;
    char *copy = malloc(n);
    const char *a;
    int waits = 0;

    for (size_t i = 0; i < n; i++)
        waits += http_head_read(&h, head, i, &LIMITS, &r) == 0;
    ok(waits == (int)n, "no beginning of a head is taken for one, or refused");
    ok(http_head_read(&h, head, n, &LIMITS, &r) == 1 && h.length == 7 && h.bytes == n &&
       h.method == HTTP_POST && !h.close && !h.chunked, "the whole is read");
    memcpy(copy, head, n);
    http_head_cut(copy, &h);
    a = http_field(copy, &h, "a");
    ok(!strcmp(http_target(copy), "/a?b") && a && !strcmp(a, "b") && !http_field(copy, &h, "b"),
       "its target and fields");
    free(copy);
    ok(http_chunk_size("1f", 2) == 31 && http_chunk_size("FFFFFFFF", 8) == 0xffffffffLL &&
       http_chunk_size("", 0) < 0 && http_chunk_size("-2", 2) < 0 &&
       http_chunk_size("1;x", 3) < 0 &&
       http_chunk_size("123456789", 9) < 0, "sizes of chunks");
}

int main(void)
{
    test_bad();
    test_limits();
    test_pieces();
    return done();
}
