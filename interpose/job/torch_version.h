/* The versions of PyTorch that plugins with an engine work with. */
#ifndef CASTOR_JOB_TORCH_VERSION_H
#define CASTOR_JOB_TORCH_VERSION_H

#include <stdbool.h>
#include <stddef.h>
#include "base/status.h"

#define TORCH_MIN_MAJOR    2
#define TORCH_MIN_MINOR    10
#define TORCH_MIN_TEXT     "2.10"
#define TORCH_TESTED_MAJOR 2
#define TORCH_TESTED_MINOR 15

/* CASTOR_ERR_ARGUMENT, with the text of error.h, when `version` ("2.4.1+cu121") is too old for the plugin of this
 * process. A plugin without an engine takes any version; one that cannot be read is not refused. */
castor_status torch_version_check(const char *version);

/* Copies the version out of the text of torch/version.py; false: the text has none. */
bool torch_version_read(const char *text, char *out, size_t out_size);

#endif
