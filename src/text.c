/* Growing text, and values as Python's json module prints them: the chat template was
 * written for that printer, and the model has seen its spacing.  Reading is in src/json.c. */
#include "src/json.h"
#include "src/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool text_reserve(struct text *t, size_t n)
{
    size_t need = add_sat(t->n, add_sat(n, 1)), cap = t->cap ? t->cap : 64;
    char *s;

    if (t->failed || need <= t->cap)
        return !t->failed;
    while (cap < need)
        cap = mul_sat(cap, 2);
    s = realloc(t->s, cap);
    if (!s) {
        t->failed = true;
        return false;
    }
    t->s = s;
    t->cap = cap;
    return true;
}

void text_printf(struct text *t, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0) {
        t->failed = true;
    } else if (text_reserve(t, (size_t)n)) {
        vsnprintf(t->s + t->n, (size_t)n + 1, fmt, again);
        t->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

void text_free(struct text *t)
{
    free(t->s);
    *t = (struct text){ 0 };
}

void text_json_string(struct text *t, const char *s, size_t n)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    size_t i, from = 0;

    text_add(t, "\"", 1);
    for (i = 0; i < n; i++) {
        unsigned char b = (unsigned char)s[i];
        const char *at;

        if (b >= 0x20 && b != '"' && b != '\\')
            continue;
        text_add(t, s + from, i - from);
        from = i + 1;
        at = b ? strchr(plain, b) : NULL;
        if (at)
            text_printf(t, "\\%c", letter[at - plain]);
        else
            text_printf(t, "\\u%04x", b);
    }
    if (from < n)
        text_add(t, s + from, n - from);
    text_add(t, "\"", 1);
}

void text_json_bytes(struct text *t, const char *s, size_t n)
{
    struct text valid = { 0 };
    size_t i = 0, len;

    while (i < n) {
        len = utf8_valid(s + i, n - i);
        text_add(&valid, s + i, len);
        i += len;
        if (i < n)
            text_puts(&valid, "\xef\xbf\xbd");
        i++;
    }
    if (valid.failed)
        t->failed = true;
    else
        text_json_string(t, valid.s, valid.n);
    text_free(&valid);
}

/* Add one to the last digit of d.ddde+xx.  False where that carries out of the first. */
static bool bump(char *s)
{
    char *c = strchr(s, 'e');

    while (c-- > s) {
        if (*c == '.')
            continue;
        if (*c != '9') {
            ++*c;
            return true;
        }
        *c = '0';
    }
    return false;
}

/* The fewest digits that read back as v > 0, without the point; *exponent is that of the
 * first digit.  Doubles lie half as dense above a power of two as below it, so that the
 * next decimal above may read back as v where the nearest one, below, does not. */
static int shortest_digits(double v, char digits[18], int *exponent)
{
    char s[40];
    int p, n = 0;
    char *c;

    for (p = 0; p < 17; p++) {
        snprintf(s, sizeof(s), "%.*e", p, v);
        if (strtod(s, NULL) == v || (strtod(s, NULL) < v && bump(s) && strtod(s, NULL) == v))
            break;
    }
    *exponent = (int)strtol(strchr(s, 'e') + 1, NULL, 10);
    for (c = s; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    digits[n] = 0;
    return n;
}

/* repr() of a Python float. */
static void print_float(struct text *t, double v)
{
    char digits[18];
    int n, exponent, i;

    if (isnan(v)) {
        text_puts(t, "NaN");
        return;
    }
    if (signbit(v))
        text_puts(t, "-");
    v = fabs(v);
    if (isinf(v)) {
        text_puts(t, "Infinity");
        return;
    }
    n = shortest_digits(v, digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        text_add(t, digits, 1);
        if (n > 1)
            text_printf(t, ".%s", digits + 1);
        text_printf(t, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0)
        text_puts(t, "0.");
    for (i = -1; i > exponent; i--)
        text_puts(t, "0");
    for (i = 0; i < n; i++) {
        text_add(t, &digits[i], 1);
        if (i == exponent)
            text_puts(t, i + 1 < n ? "." : ".0");
    }
    for (; i <= exponent; i++)
        text_puts(t, i == exponent ? "0.0" : "0");
}

static void print_number(struct text *t, const cJSON *node)
{
    const char *s = node->valuestring;

    if (!s && node->valuedouble == node->valueint)
        text_printf(t, "%d", node->valueint);
    else if (!s || strpbrk(s, ".eE"))
        print_float(t, node->valuedouble);
    else
        text_puts(t, strcmp(s, "-0") ? s : "0");
}

/* As deep as json_limits let the tree become. */
void text_json_python(struct text *t, const cJSON *node)
{
    const cJSON *member;

    if (cJSON_IsString(node)) {
        text_json_string(t, node->valuestring, strlen(node->valuestring));
    } else if (cJSON_IsNumber(node)) {
        print_number(t, node);
    } else if (cJSON_IsBool(node)) {
        text_puts(t, cJSON_IsTrue(node) ? "true" : "false");
    } else if (cJSON_IsArray(node) || cJSON_IsObject(node)) {
        text_puts(t, cJSON_IsArray(node) ? "[" : "{");
        cJSON_ArrayForEach(member, node) {
            if (member != node->child)
                text_puts(t, ", ");
            if (cJSON_IsObject(node)) {
                text_json_string(t, member->string, strlen(member->string));
                text_puts(t, ": ");
            }
            text_json_python(t, member);
        }
        text_puts(t, cJSON_IsArray(node) ? "]" : "}");
    } else {
        text_puts(t, "null");
    }
}
