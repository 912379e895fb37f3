/* regular_file.h - opens a file whose name the user gave.

   Opening a named pipe blocks until a second process opens its other end. These functions open a
   name without waiting, and refuse everything that is not a regular file. A file that is only
   written may also be a character device, such as /dev/null.

   If a function returns an error, errno says why; regular_file_error returns the words for it.
*/
#ifndef REGULAR_FILE_H
#define REGULAR_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Takes the flags of open, and returns a descriptor that the caller closes, or -1. */
static inline int regular_file_open(const char *path, int flags) {
    struct stat is;
    const int file = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file < 0) {
        if (errno == ENXIO) errno = ESPIPE; /* a pipe that no process reads, or a socket */
        return -1;
    }
    int number = 0;
    if (fstat(file, &is) != 0)
        number = errno;
    else if (S_ISDIR(is.st_mode))
        number = EISDIR;
    else if (!S_ISREG(is.st_mode) && !((flags & O_ACCMODE) == O_WRONLY && S_ISCHR(is.st_mode)))
        number = ESPIPE;
    else if (fcntl(file, F_SETFL, flags & O_APPEND) != 0)
        number = errno;
    if (!number) return file;
    (void)close(file);
    errno = number;
    return -1;
}

/* Takes the modes "r", "w" and "a" of fopen, and returns a stream that the caller closes, or NULL.
 */
static inline FILE *regular_file_stream(const char *path, const char *mode) {
    const int flags = mode[0] == 'r'   ? O_RDONLY
                      : mode[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC
                                       : O_WRONLY | O_CREAT | O_APPEND;
    const int file = regular_file_open(path, flags);
    FILE *stream = file < 0 ? NULL : fdopen(file, mode);
    if (file >= 0 && stream == NULL) (void)close(file);
    return stream;
}

/* Returns the words for an errno of the functions above. */
static inline const char *regular_file_error(int number) {
    return number == ESPIPE ? "it is not a regular file" : strerror(number);
}

#ifdef __cplusplus
}
#endif
#endif
