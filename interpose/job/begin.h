/* The begin of a job: a token and a log directory. `castor run` begins the jobs that it starts. In a job of another launcher (`castor env`)
 * each process that no process of the job has started begins one, for itself and its descendants. No malloc. */
#ifndef CASTOR_JOB_BEGIN_H
#define CASTOR_JOB_BEGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

enum { JOB_TOKEN_DIGITS = 32 };

/* The folder of a running job, in its log directory, for its ranks' changes of files. */
#define JOB_FILES_NAME ".files"

/* A new token. False with errno: there are no random numbers. */
bool job_token_draw(char out[JOB_TOKEN_DIGITS + 1]);
/* The token that whoever knows `from` can make for `what`; it tells nothing of `from`, nor of others made from it. */
void job_token_derive(const char *from, const char *what, char out[JOB_TOKEN_DIGITS + 1]);

/* Python's seed of hashes: the same on all ranks of a job, from 1 to 2^32 - 1; another one in the next job, as Python's own. */
uint32_t job_hash_seed(const char *token);
/* The same where ranks of several jobs act as one, which have no token in common. */
#define JOB_JOINED_HASH_SEED "1"

/* mkdir -p. `made_from` gets the length of the first directory that was made, or 0. False with errno. */
bool job_folders_make(const char *path, size_t *made_from);
/* Makes PARENT/TIME, with -2, -3, ... for jobs that begin in the same second. False with errno. */
bool job_directory_make(const char *parent, char *out, size_t out_size);

/* Begins a job in this process, if it belongs to none: its options get the token, and the directory where CASTOR_LOG_PARENT asks for one.
 * An error's text goes to `message`. */
castor_status job_begin(char *message, size_t size);
/* The token in the options is one that this process has made. */
void job_begin_claim(void);
/* Whether this process has begun its job. */
bool job_began_here(void);

#endif
