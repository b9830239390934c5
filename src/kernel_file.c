/* Reading /proc and /sys.  What cannot be read is absent: every caller has an answer then. */
#include "src/kernel_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

bool kernel_file(const char *root, const char *path, char *text, size_t size)
{
    char name[PATH_MAX];
    FILE *f;
    size_t n;

    if ((size_t)snprintf(name, sizeof(name), "%s%s", root, path) >= sizeof(name))
        return false;
    f = fopen(name, "re");
    if (!f)
        return false;
    n = fread(text, 1, size - 1, f);
    text[n] = 0;
    fclose(f);
    return n > 0;
}

size_t kernel_number(const char *text, const char *key, size_t absent)
{
    size_t n = strlen(key);

    while (*text) {
        const char *value = text + n;

        if (!strncmp(text, key, n) && strchr(" \t", *value) && *value) {
            value += strspn(value, " \t");
            if (*value >= '0' && *value <= '9')
                return strtoull(value, NULL, 10);
        }
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return absent;
}
