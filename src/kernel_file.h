#ifndef LAGUNA_KERNEL_FILE_H
#define LAGUNA_KERNEL_FILE_H

#include "src/base.h"

/* The small files in which the kernel tells about itself: /proc and /sys. */

/* Read at most size - 1 bytes and a NUL; false where there is nothing to read.  `root` is put
 * before the path, "" but in tests. */
bool kernel_file(const char *root, const char *path, char *text, size_t size);

/* The number after `key` at the beginning of a line ("MemTotal:", "file"); `absent` where
 * there is none. */
size_t kernel_number(const char *text, const char *key, size_t absent);

#endif
