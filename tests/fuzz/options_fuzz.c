/* libFuzzer target for the option parser: any bytes, cut at newlines, as an environment and as a single value. `make fuzz`
 * builds and runs it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "job/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ENTRIES_MAX = 64 };

static void require(bool holds) {
    if (!holds)
        abort();
}

/* What must hold after any load: one line when it fails, none when it succeeds, and values that load again. */
static void check_loaded(castor_status status, const char *message, size_t message_size) {
    size_t length = strnlen(message, message_size);
    require(length < message_size);
    require((status == CASTOR_OK) == (length == 0));
    for (int id = 0; id < OPTION_COUNT; id++) {
        static char text[OPTION_STRING_MAX];
        char again[512];
        size_t text_length = option_format((option_id)id, text, sizeof text);
        require(strlen(text) == text_length);
        require(option_check(option_table[id].env, text, again, sizeof again) == CASTOR_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char message[300], *entries[ENTRIES_MAX + 1];
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (int id = 0; id < OPTION_COUNT; id++) {
        castor_status status = option_check(option_table[id].env, text, message, sizeof message);
        require(status == CASTOR_OK || message[0]);
    }
    option_check(text, "1", message, sizeof message);

    size_t count = 0;
    char *rest = text;
    for (char *entry; count < ENTRIES_MAX && (entry = strsep(&rest, "\n"));)
        entries[count++] = entry;
    entries[count] = NULL;
    castor_status status = options_load(entries, message, sizeof message);
    check_loaded(status, message, sizeof message);
    free(text);
    return 0;
}
