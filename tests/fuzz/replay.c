/* Runs a fuzz target over the files kept in its corpus, for `make check`: every crash that was
 * ever found stays found.  The program has the folder's name. */
#include "src/base.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <dirent.h>
#include <stdlib.h>

enum { INPUT_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void replay(const char *path)
{
    uint8_t *bytes = malloc(INPUT_MAX), *exact = NULL;
    FILE *f = fopen(path, "rb");
    size_t n = 0;

    if (bytes && f) {
        n = fread(bytes, 1, INPUT_MAX, f);
        /* In memory of its own size, so that a sanitizer sees one byte too many. */
        exact = malloc(n ? n : 1);
    }
    if (exact) {
        memcpy(exact, bytes, n);
        LLVMFuzzerTestOneInput(exact, n);
    }
    ok(exact, "%s", path);
    if (f)
        fclose(f);
    free(bytes);
    free(exact);
}

int main(int argc, char **argv)
{
    const char *name = argc ? strrchr(argv[0], '/') : NULL;
    char folder[2048], path[4096];
    const struct dirent *entry;
    int files = 0;
    DIR *d;

    snprintf(folder, sizeof(folder), "%s/tests/fuzz/corpus%s", source_dir(), name ? name : "");
    d = opendir(folder);
    while (d && (entry = readdir(d))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        replay(path);
        files++;
    }
    ok(files, "%d files in %s", files, folder);
    if (d)
        closedir(d);
    return done();
}
