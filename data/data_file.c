/* data_file.c: see data_file.h. C11 and C++17. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int data_file_find(const char *pattern, char *path, size_t bytes) {
    glob_t found;
    const int listed = glob(pattern, GLOB_NOCHECK, NULL, &found) == 0;
    const int count = listed ? (int)found.gl_pathc : 1;
    snprintf(path, bytes, "%s", listed && count == 1 ? found.gl_pathv[0] : pattern);
    if (listed) { globfree(&found); }
    return count;
}

static data_result check_descriptor(data_file *file, char *error, size_t error_bytes) {
    struct stat status;
    if (fstat(file->descriptor, &status) != 0) {
        return data_fail(DATA_SYSTEM, error, error_bytes, "%s: expected a readable file, found: %s",
                         file->path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected a regular file, found something else", file->path);
    }
    if (status.st_size < DATA_HEADER_BYTES) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected a header of %d bytes, found a file of %lld bytes",
                         file->path, (int)DATA_HEADER_BYTES, (long long)status.st_size);
    }
    file->length = (size_t)status.st_size;
    return data_file_read(file, 0, file->header, DATA_HEADER_BYTES, error, error_bytes);
}

data_result data_file_open(data_file *file, const char *path, uint32_t magic, char *error,
                           size_t error_bytes) {
    memset(file, 0, sizeof *file);
    /* O_NONBLOCK: a named pipe is rejected below instead of waited for. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return data_fail(DATA_SYSTEM, error, error_bytes, "%s: expected a readable file, found: %s",
                         path, strerror(errno));
    }
    file->path = strdup(path);
    file->descriptor = descriptor;
    if (file->path == NULL) {
        close(descriptor);
        return data_fail(DATA_SYSTEM, error, error_bytes, "%s: expected memory, found none", path);
    }
    data_result result = check_descriptor(file, error, error_bytes);
    if (result == DATA_OK && data_file_header(file, 0) != magic) {
        result =
            data_fail(DATA_FORMAT, error, error_bytes, "%s: expected magic number %lu, found %lu",
                      path, (unsigned long)magic, (unsigned long)data_file_header(file, 0));
    }
    if (result != DATA_OK) { data_file_close(file); }
    return result;
}

static data_result data_file_cut(const data_file *file, char *error, size_t error_bytes) {
    struct stat status;
    if (fstat(file->descriptor, &status) != 0) { status.st_size = 0; }
    return data_fail(DATA_FORMAT, error, error_bytes,
                     "%s: it had %llu bytes when it was opened, and has %llu now", file->path,
                     (unsigned long long)file->length, (unsigned long long)status.st_size);
}

data_result data_file_read(const data_file *file, size_t offset, void *out, size_t bytes,
                           char *error, size_t error_bytes) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got =
            pread(file->descriptor, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0) {
            return data_fail(DATA_SYSTEM, error, error_bytes, "%s: byte %llu cannot be read: %s",
                             file->path, (unsigned long long)(offset + done), strerror(errno));
        }
        if (got == 0) { return data_file_cut(file, error, error_bytes); }
        done += (size_t)got;
    }
    return DATA_OK;
}

void data_file_close(data_file *file) {
    if (file->path != NULL) { close(file->descriptor); }
    free(file->path);
    memset(file, 0, sizeof *file);
}

uint32_t data_file_header(const data_file *file, size_t index) {
    uint32_t value;
    memcpy(&value, file->header + index * sizeof value, sizeof value);
    return value;
}
