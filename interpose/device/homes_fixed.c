/* Fixed homes: memory that the driver allocates on the host, and a table of what lies where. */
#include "homes_inside.h"

#include <sys/mman.h>
#include "core/error.h"

#define ADDRESS_BITS 48 /* of a process */

static void *table_map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static size_t units_table_bytes(const homes *h) {
    return (((size_t)1 << ADDRESS_BITS) / h->unit_bytes) * sizeof *h->fixed_units;
}

static size_t addresses_table_bytes(const homes *h) {
    return (h->units - h->range_units) * sizeof *h->fixed_addresses;
}

castor_status fixed_tables_make(homes *h) {
    h->fixed_units = table_map(units_table_bytes(h));
    h->fixed_addresses = table_map(addresses_table_bytes(h));
    if (h->fixed_units && h->fixed_addresses)
        return CASTOR_OK;
    fixed_tables_end(h);
    return error_set(CASTOR_ERR_MEMORY, "no memory for a table of homes, %B of addresses",
                     (uint64_t)units_table_bytes(h));
}

void fixed_tables_end(homes *h) {
    if (h->fixed_units)
        munmap((void *)h->fixed_units, units_table_bytes(h));
    if (h->fixed_addresses)
        munmap(h->fixed_addresses, addresses_table_bytes(h));
}

uint32_t fixed_unit(const homes *h, uintptr_t address) {
    if (address >> ADDRESS_BITS)
        return HOMES_NO_UNIT;
    /* 0 - 1: none. */
    return atomic_load_explicit(&h->fixed_units[address / h->unit_bytes], memory_order_relaxed) - 1;
}

static void show(homes *h, uint32_t unit, uint32_t units, uintptr_t address) {
    for (uint32_t i = 0; i < units; i++) {
        h->fixed_addresses[unit - h->range_units + i] = address + i * h->unit_bytes;
        atomic_store_explicit(&h->fixed_units[address / h->unit_bytes + i], unit + i + 1,
                              memory_order_relaxed);
    }
}

static void hide(homes *h, uint32_t unit, uint32_t units, uintptr_t address) {
    for (uint32_t i = 0; i < units; i++) {
        h->fixed_addresses[unit - h->range_units + i] = 0;
        atomic_store_explicit(&h->fixed_units[address / h->unit_bytes + i], 0, memory_order_relaxed);
    }
}

castor_status fixed_back(homes *h, uint32_t unit, uint32_t units) {
    const device_driver *v = &h->driver;
    uintptr_t address;
    castor_status status =
        v->host_make(v->context, h->device, units * h->unit_bytes, &address, &h->pages[unit]);
    if (status != CASTOR_OK) {
        h->pages[unit] = 0;
        return status;
    }
    if (address >> ADDRESS_BITS) {
        v->host_end(v->context, h->device, h->pages[unit]);
        h->pages[unit] = 0;
        return error_set(CASTOR_ERR_SYSTEM, "the driver has host memory at %p, beyond %d bits of address",
                         (void *)address, ADDRESS_BITS);
    }
    show(h, unit, units, address);
    return CASTOR_OK;
}

castor_status fixed_end(homes *h, uint32_t unit, uint32_t units) {
    uintptr_t address = unit_address(h, unit);
    hide(h, unit, units, address); /* before another device's home can have the address */
    castor_status status = h->driver.host_end(h->driver.context, h->device, h->pages[unit]);
    if (status != CASTOR_OK)
        show(h, unit, units, address);
    else
        h->pages[unit] = 0;
    return status;
}

castor_status fixed_check(const homes *h, uint32_t unit) {
    const home_record *r = &h->records[unit];
    for (uint32_t i = 0; i < r->units; i++)
        if (unit_address(h, unit + i) != unit_address(h, unit) + i * h->unit_bytes ||
            fixed_unit(h, unit_address(h, unit + i)) != unit + i)
            return error_set(CASTOR_ERR_MISMATCH, "homes of device %d, unit %u: its address leads elsewhere",
                             h->device, unit + i);
    return CASTOR_OK;
}
