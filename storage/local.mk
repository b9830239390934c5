noinst_LIBRARIES += storage/libstorage.a
storage_libstorage_a_SOURCES  = storage/safetensors.h storage/safetensors.c
storage_libstorage_a_SOURCES += storage/checkpoint.h storage/checkpoint.c
storage_libstorage_a_SOURCES += storage/index.h storage/index.c
storage_libstorage_a_SOURCES += storage/scan.h storage/scan.c
