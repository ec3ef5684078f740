/* Field values: one question for many figures, each with a type and a code of its own. */
#include "library.h"

enum { SCOPE_GPU, SCOPE_MODULE, SCOPE_MEMORY };
enum { LAST_FIELD = 288, NEVER_VALID = 274, EVERY_LINK = 0xffffffff };

static int set_uint(struct field_value *field, uint32_t value)
{
    field->type = TYPE_UINT;
    field->value.ull = value;
    return OK;
}

static int set_long(struct field_value *field, uint64_t value)
{
    field->type = TYPE_ULONGLONG;
    field->value.ull = value;
    return OK;
}

static int set_int(struct field_value *field, int32_t value)
{
    field->type = TYPE_INT;
    field->value.ull = (uint32_t)value;
    return OK;
}

static int absent(struct field_value *field, enum value_type type)
{
    field->type = type;
    field->value.ull = 0;
    return NOT_SUPPORTED;
}

static int set_long_if(struct field_value *field, int condition, uint64_t value)
{
    return condition ? set_long(field, value) : absent(field, TYPE_ULONGLONG);
}

static int set_uint_if(struct field_value *field, int condition, uint32_t value)
{
    return condition ? set_uint(field, value) : absent(field, TYPE_UINT);
}

/* The type that the real library leaves behind for what it does not support. */
static int absent_field(struct field_value *field)
{
    static const struct { uint16_t first, last; uint8_t type; } TYPES[] = {
        {7, 31, TYPE_ULONGLONG}, {92, 93, TYPE_ULONGLONG}, {170, 172, TYPE_UINT}, {200, 200, TYPE_UINT},
        {223, 225, TYPE_UINT}, {231, 234, TYPE_UINT}, {251, 253, TYPE_UINT}, {259, 259, TYPE_UINT},
        {263, 264, TYPE_UINT}, {268, 268, TYPE_UINT}, {272, 273, TYPE_ULONGLONG}, {279, 279, TYPE_USHORT},
    };
    for (unsigned i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (field->id >= TYPES[i].first && field->id <= TYPES[i].last) return absent(field, TYPES[i].type);
    return absent(field, TYPE_DOUBLE);
}

static int memory_field(struct field_value *field, const struct page *page)
{
    int ecc = counts_errors(page);
    switch (field->id) {
    case 1: case 2: return set_long_if(field, has_ecc(page), (uint64_t)ecc);
    case 3: case 5: return set_long_if(field, ecc, page->ecc_corrected);
    case 4: case 6: return set_long_if(field, ecc, page->ecc_uncorrected);
    case 142: case 143: case 144: case 145: return set_long_if(field, page->row_remap_banks != 0, 0);
    default: return absent_field(field);
    }
}

static int limit_field(struct field_value *field, const struct page *page)
{
    uint64_t all = page->throttle_power_ns + page->throttle_thermal_ns + page->throttle_hardware_ns;
    switch (field->id) {
    case 74: return set_long(field, page->throttle_power_ns);
    case 75: case 269: return set_long(field, page->throttle_thermal_ns);
    case 77: case 270: return set_long(field, page->throttle_hardware_ns);
    case 78: return set_long(field, page->idle_ns);
    case 80: case 81: return set_long(field, all);
    default: return set_long(field, 0); /* no boost in step, no reliability, no brake */
    }
}

static int memory_power_field(struct field_value *field, const struct page *page)
{
    return set_uint_if(field, field->id == 185 && page->power_memory_mw, page->power_memory_mw);
}

static int power_field(struct field_value *field, const struct page *page)
{
    if (field->scope == SCOPE_MEMORY) return memory_power_field(field, page);
    if (field->scope != SCOPE_GPU) return absent(field, field->id == 191 ? TYPE_ULONGLONG : TYPE_UINT);
    switch (field->id) {
    case 185: return set_uint(field, page->power_mw);
    case 186: return set_uint(field, page->power_instant_mw);
    case 187: return set_uint(field, page->power_min_mw);
    case 188: return set_uint(field, page->power_max_mw);
    case 189: return set_uint(field, page->power_default_mw);
    case 191: return set_long(field, page->energy_mj);
    default: return set_uint(field, page->power_limit_mw);
    }
}

/* How far below the highest temperature of operation a limit lies. */
static int margin_field(struct field_value *field, const struct page *page)
{
    int32_t highest = (int32_t)page->temperature_gpu_max;
    if (!page->margins) return absent(field, TYPE_INT);
    switch (field->id) {
    case 193: return set_int(field, highest - (int32_t)page->temperature_shutdown);
    case 194: return set_int(field, highest - (int32_t)page->temperature_slowdown);
    default: return set_int(field, 0);
    }
}

/* A field of one link, which is the scope, or of all links. */
static int link_field(struct field_value *field, const struct page *page)
{
    int one = field->scope < page->links, there = one || (page->links && field->scope == EVERY_LINK);
    uint64_t way = page->link_bytes / 2 / 1024, moved = one ? way / page->links : way;
    switch (field->id) {
    case 91: return set_uint_if(field, page->links != 0, page->links);
    case 138: case 139: case 140: case 141: return set_long_if(field, there, moved);
    case 146: return set_uint_if(field, one, field->scope);
    case 161: case 162: case 163: return set_long_if(field, there, 0);
    case 164: return set_uint_if(field, there, page->link_mbps);
    case 165: return set_uint_if(field, one, 1);
    case 166: return set_uint_if(field, there, link_version(page));
    default: return set_uint_if(field, one, 0);
    }
}

/* Fields that carry their link in the number: six of them, and six more far behind; then the sum. */
static int old_link_field(struct field_value *field, const struct page *page)
{
    unsigned id = field->id;
    if (id == 90) return page->links ? set_uint(field, page->link_mbps) : absent(field, TYPE_DOUBLE);
    int speed = (id >= 84 && id <= 89) || (id >= 132 && id <= 137);
    unsigned link = id < 32 + 42 ? (id - 32) % 7 : id < 90 ? id - 84 : id < 138 ? 6 + id % 6 : id - 148;
    int sum = id < 32 + 28 ? link == 6 : id == 160;
    if (!page->links || (!sum && link >= page->links)) return absent(field, TYPE_DOUBLE);
    return speed ? set_uint(field, page->link_mbps) : set_long(field, 0);
}

static int switch_field(struct field_value *field, const struct page *page)
{
    if (page->fabric) return set_uint(field, page->links);
    absent(field, TYPE_DOUBLE);
    return OK; /* never rejected; empty without a switch */
}

static int pcie_field(struct field_value *field, const struct page *page)
{
    if (field->id == 197) return set_uint(field, (uint32_t)page->pcie_tx_bytes);
    if (field->id == 198) return set_uint(field, (uint32_t)page->pcie_rx_bytes);
    return set_uint(field, 0);
}

static int flag_field(struct field_value *field, const struct page *page)
{
    return set_uint(field, field->id == 184 || field->id == 199 ? page->mig_capable : 0);
}

static int heat_field(struct field_value *field, const struct page *page)
{
    return set_uint_if(field, page->temperature_memory > 0, (uint32_t)page->temperature_memory);
}

static int energy_field(struct field_value *field, const struct page *page) { return set_long(field, page->energy_mj); }

static const struct subject {
    uint16_t first, last;
    int (*answer)(struct field_value *field, const struct page *page);
} SUBJECTS[] = {
    {1, 6, memory_field}, {32, 59, old_link_field}, {74, 81, limit_field}, {82, 82, heat_field},
    {83, 83, energy_field}, {84, 90, old_link_field}, {91, 91, link_field}, {94, 95, pcie_field},
    {96, 119, old_link_field}, {132, 137, old_link_field}, {138, 141, link_field}, {142, 145, memory_field},
    {146, 146, link_field}, {147, 147, switch_field}, {148, 160, old_link_field}, {161, 168, link_field},
    {169, 169, pcie_field}, {173, 183, pcie_field}, {184, 184, flag_field}, {185, 192, power_field},
    {193, 196, margin_field}, {197, 198, pcie_field}, {199, 199, flag_field}, {226, 230, flag_field},
    {269, 271, limit_field},
};

static int answer(struct field_value *field, const struct page *page)
{
    if (!field->id || field->id > LAST_FIELD || field->id == NEVER_VALID) {
        absent(field, TYPE_DOUBLE);
        return INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < sizeof SUBJECTS / sizeof *SUBJECTS; i++)
        if (field->id >= SUBJECTS[i].first && field->id <= SUBJECTS[i].last) return SUBJECTS[i].answer(field, page);
    return absent_field(field);
}

API nvmlDeviceGetFieldValues(handle device, int count, struct field_value *fields)
{
    struct device d;
    int code = gpu_open(device, fields, &d);
    if (code != OK) return code;
    if (count <= 0) return INVALID_ARGUMENT;
    int64_t time = (int64_t)(sys_nanoseconds(0) / 1000);
    for (int i = 0; i < count; i++) {
        fields[i].code = (uint32_t)answer(&fields[i], &d.page);
        fields[i].time = fields[i].code == OK ? time : 0;
        fields[i].latency = fields[i].code == OK ? 1 : 0;
    }
    return OK;
}
