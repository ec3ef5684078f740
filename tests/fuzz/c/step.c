/* The engine's compiled step over hostile cards: of a model and a length of step that Python recorded, with states that an
 * input chooses.
 *
 * Arrays are of just the sizes that the step may use, so that the sanitizer finds each byte beyond them. Some cards are of any
 * bits, others have values that a saved state may have: of those all results are finite, whatever calls they are divided into.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/step.c"

#define ONE(name) +1
enum { HEAD = 16, MAX_STAGES = 8, MAX_ROWS = at_heat + MAX_STAGES, COUNTED = COUNTERS(ONE), MAX_CARDS = TILE + 40 };

/* As `native.py` writes it. */
struct record {
    double seconds, counted[COUNTED];
    struct model model;
    struct step step;
    float low[MAX_ROWS], high[MAX_ROWS];
    int32_t stage_count, slot_count, ticks, windows, settles, has_fabric, moves_memory_clock;
    struct stage stages[MAX_STAGES];
};

/* All arrays of some cards. */
struct arrays {
    float *columns, *ring;
    double *counters;
    uint16_t *reasons;
};

static struct record *records;
static size_t record_count;

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    abort();
}

static void read_records(void)
{
    const char *path = getenv("SIMGPU_FUZZ_STEPS");
    int file = path ? open(path, O_RDONLY) : -1;
    off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    if (size <= 0 || size % (off_t)sizeof *records) fail("SIMGPU_FUZZ_STEPS names no file of records");
    records = malloc((size_t)size);
    if (pread(file, records, (size_t)size, 0) != size) fail(path);
    record_count = (size_t)size / sizeof *records;
    close(file);
}

static size_t rows_of(const struct record *record) { return at_heat + (size_t)record->stage_count; }

static struct arrays copy(const struct arrays *from, const struct record *record, size_t stride)
{
    size_t floats = rows_of(record) * stride * sizeof(float), slots = (size_t)record->slot_count * stride * sizeof(float);
    size_t doubles = COUNTED * stride * sizeof(double), shorts = 2 * stride * sizeof(uint16_t);
    struct arrays made = {malloc(floats), slots ? malloc(slots) : 0, malloc(doubles), malloc(shorts)};
    if (from) {
        memcpy(made.columns, from->columns, floats);
        memcpy(made.counters, from->counters, doubles);
        memcpy(made.reasons, from->reasons, shorts);
        if (slots) memcpy(made.ring, from->ring, slots);
    }
    return made;
}

static void release(struct arrays *arrays)
{
    free(arrays->columns);
    free(arrays->ring);
    free(arrays->counters);
    free(arrays->reasons);
}

/* Bytes of the input, again and again. */
static const uint8_t *given;
static size_t given_size, given_at;

static uint32_t next(int bytes)
{
    uint32_t found = 0;
    for (int i = 0; i < bytes && given_size; i++) {
        found = found << 8 | given[given_at];
        given_at = given_at + 1 < given_size ? given_at + 1 : 0;
    }
    return found;
}

static float any_bits(void)
{
    uint32_t bits = next(4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double between(double low, double high) { return low + (high - low) * (next(2) / 65535.0); }

static void fill(struct arrays *arrays, const struct record *record, size_t stride, int raw)
{
    for (size_t row = 0; row < rows_of(record); row++)
        for (size_t i = 0; i < stride; i++)
            arrays->columns[row * stride + i] = raw ? any_bits() : (float)between(record->low[row], record->high[row]);
    for (size_t row = 0; row < COUNTED; row++)
        for (size_t i = 0; i < stride; i++)
            arrays->counters[row * stride + i] = raw ? (double)any_bits() : between(0, record->counted[row]);
    for (size_t i = 0; i < 2 * stride; i++) arrays->reasons[i] = (uint16_t)next(2);
    for (size_t i = 0; i < (size_t)record->slot_count * stride; i++)
        arrays->ring[i] = raw ? any_bits() : (float)between(0, record->high[at_power]);
}

static struct call call_of(const struct arrays *arrays, const struct record *record, size_t stride, const uint8_t *head)
{
    return (struct call){
        .columns = arrays->columns, .counters = arrays->counters, .reasons = arrays->reasons, .ring = arrays->ring,
        .model = &record->model, .step = &record->step, .stages = record->stages, .stride = stride,
        .seconds = record->seconds, .stage_count = record->stage_count, .slot_count = record->slot_count,
        .first_slot = record->slot_count ? head[10] % record->slot_count : 0, .ticks = record->ticks,
        .windows = record->windows, .settles = record->settles, .has_fabric = record->has_fabric,
        .moves_memory_clock = record->moves_memory_clock, .key = (uint32_t)head[11] << 24 | (uint32_t)head[12] << 7 | head[13],
    };
}

static int differ(const void *a, const void *b, size_t size, size_t rows, size_t stride, size_t from, size_t to)
{
    for (size_t row = 0; row < rows && from < to; row++) {
        size_t at = (row * stride + from) * size;
        if (memcmp((const char *)a + at, (const char *)b + at, (to - from) * size)) return 1;
    }
    return 0;
}

/* Whether any quantity of the cards in between differs. */
static int changed(
    const struct arrays *a, const struct arrays *b, const struct record *record, size_t stride, size_t from, size_t to)
{
    return differ(a->columns, b->columns, sizeof(float), rows_of(record), stride, from, to)
        || differ(a->counters, b->counters, sizeof(double), COUNTED, stride, from, to)
        || differ(a->reasons, b->reasons, sizeof(uint16_t), 2, stride, from, to)
        || differ(a->ring, b->ring, sizeof(float), (size_t)record->slot_count, stride, from, to);
}

static void check(
    const struct arrays *now, const struct arrays *before, const struct record *record, size_t stride, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        for (size_t row = 0; row < rows_of(record); row++)
            if (!isfinite(now->columns[row * stride + i])) fail("a quantity is not finite");
        for (size_t row = 0; row < COUNTED; row++) {
            double counted = now->counters[row * stride + i];
            if (!isfinite(counted) || counted < before->counters[row * stride + i]) fail("a counter fell, or is not finite");
        }
        for (size_t slot = 0; slot < (size_t)record->slot_count; slot++)
            if (!isfinite(now->ring[slot * stride + i])) fail("an energy is not finite");
    }
}

static size_t number(const uint8_t *at, size_t most) { return ((size_t)at[0] << 8 | at[1]) % (most + 1); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD) return 0;
    if (!records) read_records();
    given = data + HEAD, given_size = size - HEAD, given_at = 0;
    const struct record *record = &records[data[0] % record_count];
    int raw = data[1] & 1;
    size_t stride = 1 + number(data + 2, MAX_CARDS - 1), start = number(data + 4, stride);
    size_t stop = start + number(data + 6, stride - start), middle = start + number(data + 8, stop - start);
    struct arrays before = copy(0, record, stride);
    fill(&before, record, stride, raw);
    struct arrays whole = copy(&before, record, stride), parts = copy(&before, record, stride);
    struct call call = call_of(&whole, record, stride, data);
    simgpu_step(&call, start, stop);
    if (changed(&whole, &before, record, stride, 0, start) || changed(&whole, &before, record, stride, stop, stride))
        fail("a card that is another call's has changed");
    if (!raw) {
        check(&whole, &before, record, stride, start, stop);
        call = call_of(&parts, record, stride, data);
        step_all(&call, start, middle);
        step_all(&call, middle, stop);
        if (changed(&whole, &parts, record, stride, 0, stride)) fail("cards that are divided into calls have other results");
    }
    release(&before);
    release(&whole);
    release(&parts);
    return 0;
}
