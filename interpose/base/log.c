#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clock.h"
#include "hash.h"

/* One line fits in PIPE_BUF, so that lines of several processes on one pipe do not mix. */
enum { LINE_MAX_BYTES = 4096 };

static _Atomic int current_level = LOG_INFO;
static _Atomic int current_rank = -1;
static struct {
    int file; /* 0: standard error */
    dev_t device;
    ino_t inode;
} own;
static bool wanted; /* `own` was, be it open or not */
static struct {
    char path[4096]; /* empty: each process says all of its own */
    uint64_t seed;
} said;

/* The text so far. `length` never reaches `size`, which leaves room for the terminator. */
typedef struct text {
    char *out;
    size_t size, length;
    bool cut; /* something had no room */
} text;

static void put_char(text *t, char c) {
    if (t->length + 1 < t->size)
        t->out[t->length++] = c;
    else
        t->cut = true;
}

static void put_string(text *t, const char *s, size_t limit) {
    if (!s)
        s = "(null)";
    for (size_t i = 0; i < limit && s[i]; i++)
        put_char(t, s[i]);
}

static void put_unsigned(text *t, unsigned long long value, unsigned base, int digits_min) {
    char digits[24];
    int count = 0;
    do {
        digits[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value && count < (int)sizeof digits);
    while (count < digits_min && count < (int)sizeof digits)
        digits[count++] = '0';
    while (count)
        put_char(t, digits[--count]);
}

static void put_signed(text *t, long long value) {
    if (value < 0)
        put_char(t, '-');
    put_unsigned(t, value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value, 10, 1);
}

static void put_double(text *t, double value, int decimals) {
    if (value != value) {
        put_string(t, "nan", 3);
        return;
    }
    if (value < 0) {
        put_char(t, '-');
        value = -value;
    }
    if (value > 1.7976931348623157e308) {
        put_string(t, "inf", 3);
        return;
    }
    int exponent = 0;
    while (value >= 1e18) { /* beyond what 64 bits hold: 12.5e18 */
        value /= 10;
        exponent++;
    }
    unsigned long long scale = 1, whole = (unsigned long long)value;
    for (int i = 0; i < decimals; i++)
        scale *= 10;
    unsigned long long fraction = (unsigned long long)((value - (double)whole) * (double)scale + 0.5);
    if (fraction >= scale) {
        fraction -= scale;
        whole++;
    }
    put_unsigned(t, whole, 10, 1);
    if (decimals > 0) {
        put_char(t, '.');
        put_unsigned(t, fraction, 10, decimals);
    }
    if (exponent) {
        put_char(t, 'e');
        put_signed(t, exponent);
    }
}

/* As printf's %.9g. */
static void put_shortest(text *t, double value) {
    enum { DIGITS = 9, SMALLEST = -4 };
    if (value < 0)
        put_char(t, '-');
    value = value < 0 ? -value : value;
    if (value != value || value == 0 || value > 1.7976931348623157e308) {
        put_double(t, value, 0);
        return;
    }
    int exponent = 0, last = DIGITS - 1;
    for (; value >= 10; exponent++)
        value /= 10;
    for (; value < 1; exponent--)
        value *= 10;
    char digits[DIGITS];
    unsigned long long rounded = (unsigned long long)(value * 1e8 + 0.5);
    if (rounded == 1000000000) {
        rounded /= 10;
        exponent++;
    }
    for (int i = last; i >= 0; i--, rounded /= 10)
        digits[i] = (char)('0' + rounded % 10);
    while (last > 0 && digits[last] == '0')
        last--;
    bool plain = exponent >= SMALLEST && exponent < DIGITS;
    int point = plain ? exponent : 0; /* the digit before it */
    if (point < 0)
        put_string(t, "0.0000", (size_t)(1 - point));
    for (int i = 0; i <= last || i <= point; i++) {
        put_char(t, digits[i]);
        if (i == point && i < last)
            put_char(t, '.');
    }
    if (!plain) {
        put_string(t, exponent < 0 ? "e-" : "e+", 2);
        put_unsigned(t, (unsigned long long)(exponent < 0 ? -exponent : exponent), 10, 2);
    }
}

static void put_bytes(text *t, uint64_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        put_unsigned(t, bytes, 10, 1);
        put_string(t, " B", 2);
        return;
    }
    double value = (double)bytes / 1024;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) { /* 1023.95 would print as 1024.0 */
        value /= 1024;
        unit++;
    }
    put_double(t, value, 1);
    put_char(t, ' ');
    put_string(t, units[unit], 3);
}

typedef enum length_modifier { LENGTH_INT, LENGTH_LONG, LENGTH_LONG_LONG, LENGTH_SIZE } length_modifier;

static length_modifier read_length(const char **format) {
    const char *p = *format;
    length_modifier length = LENGTH_INT;
    if (p[0] == 'l' && p[1] == 'l') {
        length = LENGTH_LONG_LONG;
        p += 2;
    } else if (p[0] == 'l') {
        length = LENGTH_LONG;
        p++;
    } else if (p[0] == 'z') {
        length = LENGTH_SIZE;
        p++;
    }
    *format = p;
    return length;
}

/* -1: none is given. */
static int read_precision(const char **format, va_list *arguments) {
    const char *p = *format;
    if (*p != '.')
        return -1;
    int precision = 0;
    if (*++p == '*') {
        precision = va_arg(*arguments, int);
        p++;
    } else {
        for (; *p >= '0' && *p <= '9' && precision < 100; p++)
            precision = precision * 10 + (*p - '0');
    }
    *format = p;
    return precision;
}

/* False: there is no such conversion. */
static bool put_conversion(text *t, char conversion, length_modifier length, int precision,
                           va_list *arguments) {
    switch (conversion) {
    case 's':
        put_string(t, va_arg(*arguments, const char *), precision < 0 ? SIZE_MAX : (size_t)precision);
        return true;
    case 'd':
        put_signed(t, length == LENGTH_LONG_LONG ? va_arg(*arguments, long long)
                      : length == LENGTH_LONG    ? va_arg(*arguments, long)
                      : length == LENGTH_SIZE    ? va_arg(*arguments, ssize_t)
                                                 : va_arg(*arguments, int));
        return true;
    case 'u':
    case 'x':
        put_unsigned(t,
                     length == LENGTH_LONG_LONG ? va_arg(*arguments, unsigned long long)
                     : length == LENGTH_LONG    ? va_arg(*arguments, unsigned long)
                     : length == LENGTH_SIZE    ? va_arg(*arguments, size_t)
                                                : va_arg(*arguments, unsigned),
                     conversion == 'x' ? 16 : 10, 1);
        return true;
    case 'p':
        put_string(t, "0x", 2);
        put_unsigned(t, (uintptr_t)va_arg(*arguments, void *), 16, 1);
        return true;
    case 'c':
        put_char(t, (char)va_arg(*arguments, int));
        return true;
    case 'f':
        put_double(t, va_arg(*arguments, double), precision < 0 ? 6 : precision > 9 ? 9 : precision);
        return true;
    case 'g':
        put_shortest(t, va_arg(*arguments, double));
        return true;
    case 'B':
        put_bytes(t, va_arg(*arguments, uint64_t));
        return true;
    case '%':
        put_char(t, '%');
        return true;
    default:
        return false;
    }
}

static text vformat(char *out, size_t out_size, const char *format, va_list arguments) {
    text t = {out, out_size, 0, false};
    if (out_size == 0)
        return t;
    va_list rest;
    va_copy(rest, arguments);
    for (const char *p = format; *p; p++) {
        if (*p != '%') {
            put_char(&t, *p);
            continue;
        }
        const char *start = p++;
        int precision = read_precision(&p, &rest);
        length_modifier length = read_length(&p);
        if (!put_conversion(&t, *p, length, precision, &rest)) {
            /* What the arguments are is unknown from here on: the rest is shown as it stands. */
            put_string(&t, start, SIZE_MAX);
            break;
        }
    }
    va_end(rest);
    t.out[t.length] = '\0';
    return t;
}

/* Ends a text that was cut at its last whole word; one that is a single word, before a whole character. */
static void end_at_word(text *t) {
    static const char mark[] = "...";
    if (t->size < sizeof mark)
        return;
    size_t longest = t->size - sizeof mark, end = t->length;
    while (end > 0 && (end > longest || t->out[end] != ' '))
        end--;
    while (end > 0 && t->out[end - 1] == ' ')
        end--;
    if (end == 0)
        for (end = longest; end > 0 && ((unsigned char)t->out[end] & 0xc0) == 0x80;)
            end--;
    else if (end < longest)
        t->out[end++] = ' ';
    memcpy(t->out + end, mark, sizeof mark);
    t->length = end + sizeof mark - 1;
}

size_t log_vmessage(char *out, size_t out_size, const char *format, va_list arguments) {
    text t = vformat(out, out_size, format, arguments);
    if (t.cut)
        end_at_word(&t);
    return t.length;
}

size_t log_message(char *out, size_t out_size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t length = log_vmessage(out, out_size, format, arguments);
    va_end(arguments);
    return length;
}

size_t log_format(char *out, size_t out_size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t length = vformat(out, out_size, format, arguments).length;
    va_end(arguments);
    return length;
}

void log_set_level(log_level level) {
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}
void log_set_rank(int rank) {
    atomic_store_explicit(&current_rank, rank, memory_order_relaxed);
}

void log_set_file(int file) {
    struct stat info;
    own.file = 0;
    wanted = file > STDERR_FILENO;
    if (!wanted || fstat(file, &info) != 0)
        return;
    own.device = info.st_dev;
    own.inode = info.st_ino;
    own.file = file;
}

/* The script may have closed it, and have another file under its number. */
static int log_file(void) {
    struct stat info;
    return own.file && fstat(own.file, &info) == 0 && info.st_dev == own.device && info.st_ino == own.inode
               ? own.file
               : STDERR_FILENO;
}

static void write_all(int file, const char *text, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t written = write(file, text + done, length - done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR)
            break;
    }
}

bool log_is_shown(void) {
    return !wanted || log_file() != STDERR_FILENO;
}

void log_say(const char *text) {
    int saved_errno = errno, file = log_file();
    write_all(file, text, strlen(text));
    if (file != STDERR_FILENO)
        write_all(STDERR_FILENO, text, strlen(text) + 1);
    errno = saved_errno;
}

void log_set_said(const char *path, const char *job) {
    log_format(said.path, sizeof said.path, "%s", path);
    said.seed = hash_bytes(0, job, strlen(job));
}

/* Of two that say the same at a time, the one whose note is first in the file says it. */
static bool said_before(const char *line, size_t length) {
    struct {
        uint64_t line, who;
    } note = {.who = (uint64_t)getpid() << 40 ^ clock_ns(CLOCK_MONOTONIC)}, found;
    struct stat to;
    bool before = false;
    if (!said.path[0] || fstat(log_file(), &to) != 0)
        return false;
    note.line = hash_bytes(said.seed ^ (uint64_t)to.st_dev << 48 ^ (uint64_t)to.st_ino, line, length);
    int file = open(said.path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return false;
    if (write(file, &note, sizeof note) == (ssize_t)sizeof note)
        for (off_t at = 0; pread(file, &found, sizeof found, at) == (ssize_t)sizeof found; at += sizeof found)
            if (found.line == note.line) {
                before = found.who != note.who;
                break;
            }
    close(file);
    return before;
}

bool log_said(const char *text) {
    int saved_errno = errno;
    bool before = said_before(text, strlen(text));
    errno = saved_errno;
    return before;
}

void log_write(log_level level, const char *format, ...) {
    if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed))
        return;
    int saved_errno = errno;
    char line[LINE_MAX_BYTES];
    int rank = atomic_load_explicit(&current_rank, memory_order_relaxed);
    size_t prefix = rank < 0 ? log_format(line, sizeof line, "castor: ")
                             : log_format(line, sizeof line, "castor: rank %d: ", rank);
    va_list arguments;
    va_start(arguments, format);
    size_t length = prefix + log_vmessage(line + prefix, sizeof line - prefix, format, arguments);
    va_end(arguments);
    if (length > sizeof line - 1) /* it is not; the compiler cannot see it */
        length = sizeof line - 1;
    for (size_t i = prefix; i < length; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    if (level == LOG_DEBUG || !said_before(line + prefix, length - prefix)) {
        line[length++] = '\n'; /* over the terminator */
        write_all(log_file(), line, length);
    }
    errno = saved_errno;
}
