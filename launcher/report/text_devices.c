/* Which tier holds the ranks' data, and what homes, slots and the link have done for it. */
#include <inttypes.h>
#include "text.h"

#define RANKS_SHOWN 8

/* Where everything is on the host, the ranks' table says it. */
static void write_tiers(const report *report, FILE *out) {
    tier_bytes sum = {0};
    for (size_t i = 0; i < report->rank_count; i++)
        tier_bytes_add(&sum, report->ranks[i].process->counters);
    if (!tier_bytes_elsewhere(&sum))
        return;
    text_table table = {.headings = {"tier"}};
    for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
        table.headings[kind + 1] = tier_kind_names[kind];
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        if (tier_bytes_of(&sum, tier) == 0)
            continue;
        text_table_add(&table, "%s", tier_names[tier]);
        for (int kind = 0; kind < TIER_KIND_COUNT; kind++)
            report_text_bytes_cell(&table, sum.bytes[tier][kind]);
    }
    fprintf(out, "\nMemory by tier (all ranks, at the end)\n");
    text_table_print(&table, out, 2);
}

static void write_rank(const report_rank *rank, FILE *out) {
    char lines[DEVICE_LINES_MAX][DEVICE_LINE_MAX];
    size_t count = device_figures_lines(&rank->device, "up to", lines);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            fprintf(out, "            ");
        else if (rank->rank >= 0)
            fprintf(out, "  rank %-5d", rank->rank);
        else
            fprintf(out, "  rank ?    ");
        fprintf(out, "%s\n", lines[i]);
    }
}

void report_text_devices(const report *report, FILE *out) {
    write_tiers(report, out);
    size_t with_homes = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        if (!device_figures_any(&report->ranks[i].device))
            continue;
        if (with_homes++ == 0)
            fprintf(out, "\nDevices\n");
        if (with_homes <= RANKS_SHOWN)
            write_rank(&report->ranks[i], out);
    }
    if (with_homes > RANKS_SHOWN)
        fprintf(out, "  and %zu more ranks (--format json has all)\n", with_homes - RANKS_SHOWN);
}
