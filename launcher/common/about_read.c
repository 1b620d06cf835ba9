#include "about_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "array.h"
#include "trace_read.h"

#define FACTS_MAX 4096

const char *const about_keys[TRACE_ABOUT_COUNT] = {
#define ABOUT(id, key, doc) key,
#include "trace/about.def"
};

static bool is_known(const about *about, trace_about kind, const char *value) {
    for (size_t i = 0; i < about->count; i++)
        if (about->facts[i].kind == kind && strcmp(about->facts[i].value, value) == 0)
            return true;
    return false;
}

/* A line of another version's kind is passed over. */
static bool take_line(about *about, char *line) {
    char *value = strchr(line, ' ');
    if (value == NULL || value[1] == '\0' || about->count >= FACTS_MAX)
        return true;
    *value++ = '\0';
    for (int kind = 0; kind < TRACE_ABOUT_COUNT; kind++) {
        if (strcmp(line, about_keys[kind]) != 0)
            continue;
        trace_read_clean(value, strlen(value) + 1);
        if (is_known(about, (trace_about)kind, value))
            return true;
        if (!array_grow(&about->facts, &about->capacity, about->count, sizeof *about->facts))
            return false;
        about->facts[about->count++] = (about_fact){(trace_about)kind, value};
    }
    return true;
}

bool about_read(int directory_fd, about *out) {
    *out = (about){0};
    int fd = openat(directory_fd, TRACE_ABOUT_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat status;
    if (fd < 0)
        return true;
    size_t used = 0;
    ssize_t more = 1;
    bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    out->text = regular ? malloc(TRACE_ABOUT_BYTES_MAX + 1) : NULL;
    while (out->text != NULL && used < TRACE_ABOUT_BYTES_MAX && (more > 0 || (more < 0 && errno == EINTR))) {
        more = read(fd, out->text + used, TRACE_ABOUT_BYTES_MAX - used);
        used += more > 0 ? (size_t)more : 0;
    }
    close(fd);
    if (out->text == NULL)
        return !regular;
    out->text[used] = '\0';
    bool complete = true;
    char *rest = NULL;
    for (char *line = strtok_r(out->text, "\n", &rest); line != NULL && complete;
         line = strtok_r(NULL, "\n", &rest))
        complete = take_line(out, line);
    return complete;
}

void about_free(about *about) {
    free(about->facts);
    free(about->text);
    *about = (struct about){0};
}

const char *about_find(const about *about, trace_about kind) {
    for (size_t i = 0; i < about->count; i++)
        if (about->facts[i].kind == kind)
            return about->facts[i].value;
    return NULL;
}

size_t about_join(const about *about, trace_about kind, char *out, size_t out_size) {
    size_t found = 0, used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < about->count; i++) {
        if (about->facts[i].kind != kind)
            continue;
        if (used + 1 < out_size)
            used += (size_t)snprintf(out + used, out_size - used, "%s%s", found > 0 ? ", " : "",
                                     about->facts[i].value);
        found++;
    }
    trace_read_clean(out, out_size); /* it may be cut inside of a character */
    return found;
}

uint64_t about_number(const about *about, trace_about kind) {
    const char *text = about_find(about, kind);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}
