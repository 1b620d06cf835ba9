/* Log lines to standard error without malloc, stdio or locale: safe in hooks, in constructors and after fork.
 *
 * A line is written with one write(2), prefixed `castor: ` (and the rank, once it is known), control
 * characters replaced. Conversions: %s %d %u %x %p %c %% with the lengths l, ll and z; %.Nf (N digits, at
 * most 9); %g (as printf's %.9g); %.Ns and %.*s (at most so many characters); %B is a uint64_t number of bytes with a unit
 * ("3.2 MiB"). A line of more than 4 KiB is cut after a word. */
#ifndef CASTOR_BASE_LOG_H
#define CASTOR_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

void log_set_level(log_level level);
void log_set_rank(int rank); /* -1: no rank in the prefix */
/* Lines go to this descriptor instead of standard error, as long as it is still open on the same file. */
void log_set_file(int file);
/* False: they go to standard error, because this process has no such descriptor. That may be a file that nobody reads. */
bool log_is_shown(void);
/* Each line is written to the same file by one process of the job only. Lines are noted in the file `path`; `job` tells them
 * from those of earlier jobs. Debug lines are not noted. */
void log_set_said(const char *path, const char *job);
/* Notes a text that the caller writes itself; true: a process has already noted it. */
bool log_said(const char *text);
void log_write(log_level level, const char *format, ...);
/* Writes a text of several lines, unchanged, to the destination of log lines. If that is not standard error, standard error
 * gets the text as well, with a NUL after it: `castor run` does not show it again (launcher/run/errors.c). */
void log_say(const char *text);

/* The formatter alone: always terminates `out`, returns the length without the terminator. What has no room is left out. */
size_t log_format(char *out, size_t out_size, const char *format, ...);
/* The same for what people read: a text that has no room ends after a word, with "...". */
size_t log_message(char *out, size_t out_size, const char *format, ...);
size_t log_vmessage(char *out, size_t out_size, const char *format, va_list arguments);

#define LOG_E(...) log_write(LOG_ERROR, __VA_ARGS__)
#define LOG_W(...) log_write(LOG_WARN, __VA_ARGS__)
#define LOG_I(...) log_write(LOG_INFO, __VA_ARGS__)
#define LOG_D(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
