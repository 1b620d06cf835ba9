/* The exported table of what is exported: the rows of api.def as text. */
#include "castor.h"

#define TEXT(...)          #__VA_ARGS__
#define TEXT_OF_VALUE(...) TEXT(__VA_ARGS__)

static const struct {
    const char *text;
    uint64_t bytes;
} rows[] = {
    {"enum " TEXT_OF_VALUE(CASTOR_STATUSES), 0},
#define FUNCTION(result, name, parameters) {"function " #result " " #name #parameters, 0},
#define CALLBACK(result, name, parameters) {"callback " #result " " #name #parameters, 0},
#define STRUCT(name, ...)                  {"struct " #name #__VA_ARGS__, sizeof(name)},
#define ENUM(...)                          {"enum " #__VA_ARGS__, 0},
#include "api.def"
};

const char *castor_api_row(uint32_t index, uint64_t *bytes) {
    if (index >= sizeof rows / sizeof *rows)
        return NULL;
    *bytes = rows[index].bytes;
    return rows[index].text;
}
