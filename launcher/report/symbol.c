#include <string.h>
#include "report.h"

void report_shorten_symbol(char *out, size_t out_size, const char *symbol) {
    size_t length = 0;
    const char *at = symbol;
    if (strncmp(symbol, "_ZN", 3) == 0) {
        at += 3;
        while (*at == 'K' || *at == 'V' || *at == 'r')
            at++;
        while (*at >= '1' && *at <= '9') {
            size_t part = 0;
            while (*at >= '0' && *at <= '9' && part < 4096)
                part = part * 10 + (size_t)(*at++ - '0');
            if (part > strlen(at) || length + part + 3 > out_size)
                break;
            length += (size_t)snprintf(out + length, out_size - length, "%s%.*s", length > 0 ? "::" : "",
                                       (int)part, at);
            at += part;
        }
        if (*at == 'E' && length > 0)
            return;
    }
    snprintf(out, out_size, "%s", symbol);
}
