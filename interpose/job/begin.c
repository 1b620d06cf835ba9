#include "begin.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "base/siphash.h"
#include "meeting.h"
#include "options.h"

enum { SAME_SECOND_MAX = 1000 };

static pid_t beginner; /* 0: none */

static void token_write(const unsigned char *bytes, char out[JOB_TOKEN_DIGITS + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < JOB_TOKEN_DIGITS / 2; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[JOB_TOKEN_DIGITS] = '\0';
}

bool job_token_draw(char out[JOB_TOKEN_DIGITS + 1]) {
    unsigned char bytes[JOB_TOKEN_DIGITS / 2];
    ssize_t length;
    do {
        length = getrandom(bytes, sizeof bytes, 0);
    } while (length < 0 && errno == EINTR);
    if (length != (ssize_t)sizeof bytes)
        return false;
    token_write(bytes, out);
    return true;
}

void job_token_derive(const char *from, const char *what, char out[JOB_TOKEN_DIGITS + 1]) {
    uint64_t words[2], key[2];
    meeting_key(from, key);
    words[0] = siphash(key, what, strlen(what));
    words[1] = siphash(key, words, sizeof words[0]);
    token_write((const unsigned char *)words, out);
}

uint32_t job_hash_seed(const char *token) {
    uint32_t seed = 0;
    for (int i = 0; i < 8 && token[i]; i++)
        seed = seed << 4 | (uint32_t)(token[i] <= '9' ? token[i] - '0' : token[i] - 'a' + 10);
    return seed ? seed : 1;
}

bool job_folders_make(const char *wanted, size_t *made_from) {
    char path[PATH_MAX];
    size_t length = strlen(wanted);
    *made_from = 0;
    if (length >= sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (size_t i = 1; i <= length; i++) {
        if ((wanted[i] && wanted[i] != '/') || wanted[i - 1] == '/')
            continue;
        memcpy(path, wanted, i);
        path[i] = '\0';
        if (mkdir(path, 0777) == 0) {
            if (!*made_from)
                *made_from = i;
            continue;
        }
        struct stat info;
        int reason = errno;
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            continue;
        errno = reason == EEXIST ? ENOTDIR : reason;
        return false;
    }
    return true;
}

bool job_directory_make(const char *parent, char *out, size_t out_size) {
    char stamp[32];
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    for (int number = 1; number <= SAME_SECOND_MAX; number++) {
        size_t length = number == 1 ? log_format(out, out_size, "%s/%s", parent, stamp)
                                    : log_format(out, out_size, "%s/%s-%d", parent, stamp, number);
        if (length + 1 >= out_size) {
            errno = ENAMETOOLONG;
            return false;
        }
        if (mkdir(out, 0777) == 0)
            return true;
        if (errno != EEXIST)
            break;
    }
    return false;
}

/* CASTOR_LOG_PARENT/TIME, absolute: a descendant of this process may have another working directory. */
static bool own_directory_make(char *out, size_t out_size) {
    char parent[PATH_MAX];
    const char *logs = options()->log_parent;
    size_t length = 0, made_from;
    if (logs[0] != '/') {
        if (!getcwd(parent, sizeof parent))
            return false;
        length = strlen(parent);
        parent[length++] = '/';
    }
    if (length + strlen(logs) >= sizeof parent) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(parent + length, logs, strlen(logs) + 1);
    return job_folders_make(parent, &made_from) && job_directory_make(parent, out, out_size);
}

castor_status job_begin(char *message, size_t size) {
    char token[JOB_TOKEN_DIGITS + 1], directory[OPTION_STRING_MAX];
    if (options()->job[0])
        return CASTOR_OK;
    if (!job_token_draw(token)) {
        log_format(message, size, "no random numbers: error %d", errno);
        return CASTOR_ERR_SYSTEM;
    }
    castor_status status = option_set("CASTOR_JOB", token, message, size);
    if (status == CASTOR_OK)
        status = option_set("CASTOR_BEGUN", "process", message, size);
    beginner = status == CASTOR_OK ? getpid() : 0;
    if (status != CASTOR_OK || !options()->log_parent[0] || options()->log_dir[0])
        return status;
    if (own_directory_make(directory, sizeof directory))
        return option_set("CASTOR_LOG_DIR", directory, message, size);
    LOG_W("no trace is kept: no log directory can be made in %s (error %d); CASTOR_LOG_PARENT names another "
          "folder",
          options()->log_parent, errno);
    return CASTOR_OK;
}

void job_begin_claim(void) {
    beginner = getpid();
}

bool job_began_here(void) {
    return beginner == getpid();
}
