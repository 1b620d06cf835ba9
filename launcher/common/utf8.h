/* Characters, as terminals and JSON readers count them. */
#ifndef CASTOR_LAUNCHER_COMMON_UTF8_H
#define CASTOR_LAUNCHER_COMMON_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed UTF-8 sequence at `text`, of which `available` bytes may be read; 0: not
 * well-formed. */
static inline size_t utf8_length(const char *text, size_t available) {
    const unsigned char *byte = (const unsigned char *)text;
    if (available == 0)
        return 0;
    if (byte[0] < 0x80)
        return 1;
    size_t length = byte[0] >= 0xc2 && byte[0] < 0xe0   ? 2
                    : (byte[0] & 0xf0) == 0xe0          ? 3
                    : byte[0] >= 0xf0 && byte[0] < 0xf5 ? 4
                                                        : 0;
    if (length == 0 || length > available)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((byte[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong forms, surrogates, beyond U+10FFFF. */
    if ((byte[0] == 0xe0 && byte[1] < 0xa0) || (byte[0] == 0xed && byte[1] >= 0xa0) ||
        (byte[0] == 0xf0 && byte[1] < 0x90) || (byte[0] == 0xf4 && byte[1] >= 0x90))
        return 0;
    return length;
}

#endif
