noinst_LIBRARIES += storage/libstorage.a
storage_libstorage_a_SOURCES  = storage/safetensors.h storage/safetensors.c
storage_libstorage_a_SOURCES += storage/checkpoint.h storage/checkpoint.c
storage_libstorage_a_SOURCES += storage/index.h storage/index.c
storage_libstorage_a_SOURCES += storage/scan.h storage/scan.c
storage_libstorage_a_SOURCES += storage/extents.h storage/extents.c storage/source.h storage/source.c storage/stream.h storage/stream.c storage/stream_ops.h storage/stream_uring.c storage/stream_preadv.c
storage_libstorage_a_SOURCES += storage/slab.h storage/slab.c storage/policy.h storage/policy.c storage/popularity.h storage/popularity.c storage/cache.h storage/cache.c
EXTRA_DIST += storage/README storage/NOTES.md
