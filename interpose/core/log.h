/* Log lines to standard error without malloc, stdio or locale: safe in hooks, in constructors and after fork.
 *
 * A line is written with one write(2), prefixed `castor: ` (and the rank, once it is known), control
 * characters replaced. Conversions: %s %d %u %x %p %c %% with the lengths l, ll and z; %.Nf (N digits, at
 * most 9); %g (9 significant digits, as few as show them); %.Ns and %.*s (at most so many characters); %B is a uint64_t number of bytes for people ("3.2
 * MiB"). A line is cut at 4 KiB. */
#ifndef CASTOR_CORE_LOG_H
#define CASTOR_CORE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

void log_set_level(log_level level);
void log_set_rank(int rank); /* -1: no rank in the prefix */
/* Lines go to this descriptor instead of standard error, as long as it is still open on the same file. */
void log_set_file(int file);
/* False: they go to standard error, of a process that has not inherited the descriptor. That may be a file which no one reads. */
bool log_is_shown(void);
/* What a process of this job has said, no other one says again to the same file: lines are noted in the file `path`, and `job`
 * tells them from those of earlier jobs. Lines for debugging are not. */
void log_set_said(const char *path, const char *job);
/* Notes a text that the caller is to write itself; true: it has been said. */
bool log_said(const char *text);
void log_write(log_level level, const char *format, ...);
/* A text as it is, of several lines, to where the lines go. Where that is not standard error, it gets the text as well, and a
 * NUL behind it: who reads that file later knows what has been said (launcher/run/errors.c). */
void log_say(const char *text);

/* The formatter alone: always terminates `out`, returns the length without the terminator. */
size_t log_format(char *out, size_t out_size, const char *format, ...);
size_t log_vformat(char *out, size_t out_size, const char *format, va_list arguments);

#define LOG_E(...) log_write(LOG_ERROR, __VA_ARGS__)
#define LOG_W(...) log_write(LOG_WARN, __VA_ARGS__)
#define LOG_I(...) log_write(LOG_INFO, __VA_ARGS__)
#define LOG_D(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
