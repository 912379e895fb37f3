/* data_file.c: see data_file.h. C11 and C++17. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

data_result data_fail(data_result code, char *error, size_t error_bytes, const char *format, ...) {
    if (error_bytes > 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, error_bytes, format, arguments);
        va_end(arguments);
    }
    return code;
}

/* The descriptor stays the caller's to close: a mapping outlives it. */
static data_result map_descriptor(data_file *file, int descriptor, const char *path, char *error,
                                  size_t error_bytes) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return data_fail(DATA_SYSTEM, error, error_bytes, "%s: expected a readable file, found: %s",
                         path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected a regular file, found something else", path);
    }
    if (status.st_size < DATA_HEADER_BYTES) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected a header of %d bytes, found a file of %lld bytes", path,
                         (int)DATA_HEADER_BYTES, (long long)status.st_size);
    }
    void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (map == MAP_FAILED) {
        return data_fail(DATA_SYSTEM, error, error_bytes,
                         "%s: expected to map %lld bytes, found: %s", path,
                         (long long)status.st_size, strerror(errno));
    }
    file->bytes = (const unsigned char *)map;
    file->length = (size_t)status.st_size;
    return DATA_OK;
}

data_result data_file_open(data_file *file, const char *path, uint32_t magic, char *error,
                           size_t error_bytes) {
    file->bytes = NULL;
    file->length = 0;
    /* Not blocking, so that a named pipe is refused below instead of waited for. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return data_fail(DATA_SYSTEM, error, error_bytes, "%s: expected a readable file, found: %s",
                         path, strerror(errno));
    }
    data_result result = map_descriptor(file, descriptor, path, error, error_bytes);
    close(descriptor);
    if (result == DATA_OK && data_file_header(file, 0) != magic) {
        result =
            data_fail(DATA_FORMAT, error, error_bytes, "%s: expected magic number %lu, found %lu",
                      path, (unsigned long)magic, (unsigned long)data_file_header(file, 0));
        data_file_close(file);
    }
    return result;
}

void data_file_close(data_file *file) {
    if (file->bytes != NULL) { munmap((void *)(uintptr_t)file->bytes, file->length); }
    file->bytes = NULL;
    file->length = 0;
}

uint32_t data_file_header(const data_file *file, size_t index) {
    uint32_t value;
    memcpy(&value, file->bytes + index * sizeof value, sizeof value);
    return value;
}
