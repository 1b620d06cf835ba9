#include "torch_version.h"
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "options.h"
#include "plugin.h"

/* The number that begins at *text, which moves behind it; -1: none does. */
static int number_take(const char **text) {
    int number = -1;
    for (; **text >= '0' && **text <= '9' && number < 100000; (*text)++)
        number = (number < 0 ? 0 : number * 10) + (**text - '0');
    return number;
}

castor_status torch_version_check(const char *version) {
    if (!plugin()->engine)
        return CASTOR_OK;
    const char *rest = version;
    int major = number_take(&rest), minor = *rest == '.' ? (rest++, number_take(&rest)) : -1;
    if (major < 0 || minor < 0 || major > TORCH_MIN_MAJOR ||
        (major == TORCH_MIN_MAJOR && minor >= TORCH_MIN_MINOR))
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT,
                     "torch %s is too old for plugin %s: install torch " TORCH_MIN_TEXT
                     " or later (pip install 'torch>=" TORCH_MIN_TEXT "'), or run with --plugin none%s",
                     version, plugin()->name, options()->world_size > 1 ? " and without --nproc" : "");
}

bool torch_version_read(const char *text, char *out, size_t out_size) {
    static const char name[] = "__version__";
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, sizeof name - 1) != 0)
            continue;
        const char *begin = line + strcspn(line, "'\"\n");
        if (*begin != '\'' && *begin != '"')
            continue;
        size_t length = strcspn(begin + 1, "'\"\n");
        if (begin[1 + length] != *begin || length == 0 || length >= out_size)
            continue;
        log_format(out, out_size, "%.*s", (int)length, begin + 1);
        return true;
    }
    return false;
}
