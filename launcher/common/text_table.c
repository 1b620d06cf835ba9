#include "text_table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "array.h"

void text_table_add(text_table *table, const char *format, ...) {
    if (!array_grow(&table->cells, &table->cell_capacity, table->cell_count, sizeof *table->cells)) {
        table->failed = true;
        return;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *cell = strdup(text);
    if (cell == NULL)
        table->failed = true;
    else
        table->cells[table->cell_count++] = cell;
}

/* Characters, as far as each takes one column. */
static int text_width(const char *text) {
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_cell(FILE *out, const char *text, int width, bool left, bool last) {
    int padding = width - text_width(text);
    if (left)
        fprintf(out, "%s%*s", text, last ? 0 : padding, "");
    else
        fprintf(out, "%*s%s", padding, "", text);
    fputs(last ? "\n" : "  ", out);
}

void text_table_drop(text_table *table) {
    for (size_t i = 0; i < table->cell_count; i++)
        free(table->cells[i]);
    free(table->cells);
    table->cells = NULL;
    table->cell_count = table->cell_capacity = 0;
}

bool text_table_print(text_table *table, FILE *out, int indent) {
    size_t columns = 0;
    int widths[TEXT_TABLE_COLUMNS] = {0};
    while (columns < TEXT_TABLE_COLUMNS && table->headings[columns] != NULL) {
        widths[columns] = text_width(table->headings[columns]);
        columns++;
    }
    for (size_t i = 0; i < table->cell_count; i++) {
        int width = text_width(table->cells[i]);
        if (width > widths[i % columns])
            widths[i % columns] = width;
    }
    for (size_t row = 0; row <= table->cell_count / columns; row++) {
        fprintf(out, "%*s", indent, "");
        for (size_t column = 0; column < columns; column++) {
            const char *text =
                row == 0 ? table->headings[column] : table->cells[(row - 1) * columns + column];
            print_cell(out, text, widths[column], column == 0 || (table->left >> column & 1),
                       column + 1 == columns);
        }
    }
    bool complete = !table->failed;
    text_table_drop(table);
    return complete;
}

const char *text_bytes(char out[TEXT_FIGURE_MAX], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(out, TEXT_FIGURE_MAX, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

uint64_t text_whole(double value) {
    return value >= 0x1p64 ? UINT64_MAX : value > 0 ? (uint64_t)value : 0;
}

const char *text_seconds(char out[TEXT_FIGURE_MAX], double seconds) {
    if (seconds < 1e-6)
        snprintf(out, TEXT_FIGURE_MAX, "%.0f ns", seconds * 1e9);
    else if (seconds < 1e-3)
        snprintf(out, TEXT_FIGURE_MAX, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, TEXT_FIGURE_MAX, "%.1f ms", seconds * 1e3);
    else if (seconds < 120)
        snprintf(out, TEXT_FIGURE_MAX, "%.2f s", seconds);
    else if (seconds < 7200)
        snprintf(out, TEXT_FIGURE_MAX, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(out, TEXT_FIGURE_MAX, "%llu h %02d min", (unsigned long long)(seconds / 3600),
                 (int)((unsigned long long)(seconds / 60) % 60));
    return out;
}

const char *text_count(char out[TEXT_FIGURE_MAX], uint64_t count) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *text_rate(char out[TEXT_FIGURE_MAX], double bytes_per_second) {
    bool giga = bytes_per_second >= 1e8;
    snprintf(out, TEXT_FIGURE_MAX, giga ? "%.2f GB/s" : "%.2f MB/s", bytes_per_second / (giga ? 1e9 : 1e6));
    return out;
}

void text_sparkline(char *out, int columns, const uint64_t *values, size_t count, uint64_t highest) {
    for (int column = 0; column < columns; column++) {
        size_t begin = count * (size_t)column / (size_t)columns,
               end = count * (size_t)(column + 1) / (size_t)columns;
        uint64_t value = 0;
        for (size_t i = begin; i < end || i == begin; i++)
            value = i < count && values[i] > value ? values[i] : value;
        /* A little is not nothing. */
        unsigned level = highest == 0 || value == 0 ? 0 : (unsigned)((double)value / (double)highest * 7.999);
        memcpy(out, value == 0 ? "\xc2\xb7" : "\xe2\x96\x81", value == 0 ? 2 : 3);
        if (value > 0)
            out[2] = (char)((unsigned char)out[2] + (level > 7 ? 7 : level));
        out += value == 0 ? 2 : 3;
    }
    *out = '\0';
}
