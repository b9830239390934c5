noinst_LIBRARIES += storage/libstorage.a
storage_libstorage_a_SOURCES  = storage/safetensors.h
storage_libstorage_a_SOURCES += storage/checkpoint.h
