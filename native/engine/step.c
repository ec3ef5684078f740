/* One step of cards of one model: the same operations, in the same order and precision, as physics.py and cards.py do
 * with numpy, so that both give the same bytes. Cards are independent of one another: any division into calls gives
 * the same results.
 *
 * Memory is read and written once per step: all quantities of a tile of cards are computed before the next tile. */

#include <stddef.h>
#include <stdint.h>

/* The tables of cards.py and physics.py that this file relies on, by name. `simgpu_step_layout` is compared with them
 * when the library is loaded. */
#define DEMAND(X) X(context) X(busy) X(sm) X(tensor) X(memory) X(pcie) X(nvlink)
#define SETTINGS(X) X(limit) X(highest) X(inlet) X(efficiency) X(leak) X(resistance)
#define OTHERS(X) X(linked) X(hangs_at) X(uncorrected_at) X(lost_at)
#define STATE(X) X(clock) X(sensed) X(hold) X(cap) X(hunt) X(die_temperature) X(memory_temperature)
#define RESULTS(X) X(power) X(throughput) X(memory_used) X(memory_clock)
#define READINGS(X)                                                                                                    \
    X(power_average) X(power_instant) X(temperature) X(temperature_memory) X(sm_clock) X(usage) X(memory_usage)
#define WINDOWS(X) X(busy_seconds) X(memory_seconds) X(tick_energy)
#define COLUMNS(X) DEMAND(X) SETTINGS(X) OTHERS(X) STATE(X) RESULTS(X) READINGS(X) WINDOWS(X)
#define COUNTERS(X)                                                                                                    \
    X(energy) X(busy_time) X(power_throttle) X(thermal_throttle) X(hardware_throttle) X(pcie_bytes) X(fabric_bytes)    \
    X(memory_bytes)
#define MODEL(X)                                                                                                       \
    X(idle_clock) X(lowest_clock) X(clock_step) X(floor) X(knee) X(steep) X(rising) X(clock_power) X(resting) X(base)  \
    X(sm) X(tensor) X(memory_die) X(memory) X(pcie) X(nvlink) X(flicker) X(target) X(peak) X(hold) X(slip) X(hunting)  \
    X(reach) X(reference) X(hottest) X(slowdown) X(hysteresis) X(lowest_cap) X(memory_idle) X(memory_range)            \
    X(clock_steps) X(step_mhz) X(highest_mhz)
#define STEP(X)                                                                                                        \
    X(seconds) X(seen) X(fall) X(rise) X(cooling) X(memory_bytes) X(pcie_bytes) X(fabric_bytes) X(window) X(tick)      \
    X(slot) X(average)

#define COLUMN_OF(name) at_##name,
#define COUNTER_OF(name) count_##name,
#define FLOAT_OF(name) float name;
#define NAME_OF(name) #name " "
enum { COLUMNS(COLUMN_OF) at_heat };
enum { COUNTERS(COUNTER_OF) };
struct model { MODEL(FLOAT_OF) };
struct step { STEP(FLOAT_OF) };

#define PUBLIC __attribute__((visibility("default")))
PUBLIC const char simgpu_step_layout[] = "2 " COLUMNS(NAME_OF) "| " COUNTERS(NAME_OF) "| " MODEL(NAME_OF) "| " STEP(NAME_OF);

enum { TILE = 256, PASSES = 3 };
enum { SOURCE_SM, SOURCE_DIE, SOURCE_MEMORY, SOURCE_BOARD };
enum { IDLE = 0x1, POWER_CAP = 0x4, SOFTWARE_THERMAL = 0x20, HARDWARE_THERMAL = 0x40, SLOWDOWN = 0x8 | 0x40 };

struct stage { /* of heat: from a source of power to the temperatures */
    int32_t source;
    float progress, die, memory;
};

struct call {
    float *columns;     /* one after the other, `stride` apart, the stages of heat last */
    double *counters;   /* likewise */
    uint16_t *reasons;  /* of now, and of the last refresh */
    float *ring;        /* energy of the last refreshes; NULL if the average is that of the last */
    const struct model *model;
    const struct step *step;
    const struct stage *stages;
    size_t stride;
    double seconds;
    int32_t stage_count, slot_count, first_slot, ticks;
    int32_t windows, settles, has_fabric, moves_memory_clock;
    uint32_t key;       /* of the noise of this step */
};

static inline float lower(float a, float b) { return a < b ? a : b; }
static inline float upper(float a, float b) { return a > b ? a : b; }
static inline int far(float change) { return (change >= 0.06f) | (change <= -0.06f); }
static inline float unit(float a) { return lower(upper(a, 0), 1); }

/* A card between its demand and its temperatures. */
struct card {
    float busy, memory, limit, top, context, hold, target; /* given */
    float compute, sm_watts, die_watts, memory_watts, traffic_watts, warmth;
    float clock, sensed; /* changed */
    float power, sm_power, memory_power, throughput, change; /* results */
};

/* Draw power at the present clock, then move the clock towards the one at which the sensed power is the target. */
static inline __attribute__((always_inline)) void regulate(struct card *c, const struct model *m, const struct step *s) {
    float slipping = unit((c->top - c->clock) * 10.0f) * unit((c->clock - m->knee) * (1 / 0.15f));
    float work_clock = c->clock * (1 - m->slip * slipping);
    float above = upper(work_clock - m->knee, 0);
    float voltage = m->floor + m->rising * above;
    float squared = voltage * voltage;
    float switching = m->clock_power * work_clock * squared;
    float slower = 1 / work_clock;
    float needed = upper(c->compute * slower, c->memory * upper(slower * m->reach, 1));
    float throughput = 1 / upper(needed, 1);
    float die = throughput * squared * c->die_watts + c->traffic_watts;
    float own = throughput * c->memory_watts;
    float base = m->base + switching + c->warmth * squared;
    float working = die + own;
    float cut = unit((c->limit * m->peak - base) / upper(working, 1e-9f));
    float kept = cut * c->busy;
    c->power = upper(base + kept * working, 0); /* far below the reference temperature leakage would exceed all else */
    c->memory_power = kept * own;
    c->sm_power = kept * throughput * squared * c->sm_watts + (switching - m->resting);
    c->throughput = throughput * cut;
    float bend = above > 0 ? m->steep : 0;
    float slope = (kept * die + switching) * (slower + bend / voltage) + c->memory_power * slower;
    c->sensed += (c->power - c->sensed) * s->seen;
    float highest = c->top - (c->hold > 0 ? m->clock_step : 0);
    float goal = c->clock + (c->target - c->sensed) / upper(slope, c->limit * 0.07f);
    goal = lower(upper(goal, m->lowest_clock), highest) - c->clock;
    c->change = goal * (goal < 0 ? s->fall : s->rise) * c->context;
    c->clock += c->change;
}

static inline float noise(uint32_t row, uint32_t key) {
    uint32_t h = row * 0x9E3779B1u + key;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    h ^= h >> 16;
    h = (h & 0x00FF00FF) + (h >> 8 & 0x00FF00FF);
    return (float)(int32_t)((h & 0xFFFF) + (h >> 16)) - 510.0f;
}

#define TOGETHER _Pragma("clang loop vectorize(assume_safety) interleave(disable)")

#define Q(name) (call->columns + at_##name * call->stride + start)
#define COUNTER(name) (call->counters + count_##name * call->stride + start)

static inline void add_seconds(double *counter, const uint16_t *reasons, size_t count, int why, double seconds) {
    TOGETHER for (size_t i = 0; i < count; i++)
        counter[i] += reasons[i] & why ? seconds : 0;
}

/* Update the readings of up to TILE cards. */
static inline __attribute__((always_inline)) void refresh(
    const struct call *call, const struct model *m, const struct step *s, size_t start, size_t count) {
    const float *sensed = Q(sensed), *die = Q(die_temperature), *own = Q(memory_temperature), *clock = Q(clock);
    float *energy = Q(tick_energy), *average = Q(power_average), *instant = Q(power_instant),
          *temperature = Q(temperature), *memory = Q(temperature_memory), *sm_clock = Q(sm_clock);
    const uint16_t *reasons = call->reasons + start;
    uint16_t *shown = call->reasons + call->stride + start;
    const float whole = 12582912.0f; /* to add it and take it away rounds to a whole number, half to even */
    TOGETHER for (size_t i = 0; i < count; i++) {
        average[i] = energy[i] * s->tick;
        energy[i] = 0;
        instant[i] = sensed[i];
        temperature[i] = die[i];
        memory[i] = own[i];
        float steps = clock[i] * m->clock_steps + whole;
        sm_clock[i] = lower((steps - whole) * m->step_mhz, m->highest_mhz);
        shown[i] = reasons[i];
    }
    if (!call->ring)
        return;
    for (int32_t tick = 0; tick < call->ticks; tick++) {
        float *slot = call->ring + (size_t)((call->first_slot + tick) % call->slot_count) * call->stride + start;
        TOGETHER for (size_t i = 0; i < count; i++)
            slot[i] = average[i] * s->slot;
    }
    TOGETHER for (size_t i = 0; i < count; i++)
        average[i] = call->ring[start + i];
    for (int32_t row = 1; row < call->slot_count; row++) {
        const float *slot = call->ring + (size_t)row * call->stride + start;
        TOGETHER for (size_t i = 0; i < count; i++)
            average[i] += slot[i];
    }
    TOGETHER for (size_t i = 0; i < count; i++)
        average[i] *= s->average;
}

/* Up to TILE cards from `start`. */
static inline __attribute__((always_inline)) void step_tile(const struct call *call, size_t start, size_t count) {
    const struct model model = *call->model, *m = &model;
    const struct step timing = *call->step, *s = &timing;
    const float *context = Q(context), *busy = Q(busy), *sm = Q(sm), *tensor = Q(tensor), *memory = Q(memory),
                *pcie = Q(pcie), *nvlink = Q(nvlink), *limit = Q(limit), *highest = Q(highest), *inlet = Q(inlet),
                *efficiency = Q(efficiency), *leak = Q(leak), *resistance = Q(resistance);
    float *clock = Q(clock), *sensed = Q(sensed), *hold = Q(hold), *cap = Q(cap), *hunt = Q(hunt),
          *die_temperature = Q(die_temperature), *memory_temperature = Q(memory_temperature), *power = Q(power),
          *throughput = Q(throughput);
    uint16_t *reasons = call->reasons + start;
    float sm_power[TILE], die_power[TILE], memory_power[TILE], change[TILE], die[TILE], own[TILE];

    if (call->ticks)
        TOGETHER for (size_t i = 0; i < count; i++)
            hunt[i] = hunt[i] * 0.6f + noise((uint32_t)(start + i), call->key) * (float)(0.8 / 147.80054127);

#define LOAD(i)                                                                                                        \
    (struct card){                                                                                                     \
        .busy = busy[i], .memory = memory[i], .limit = limit[i], .top = lower(highest[i], cap[i]),                     \
        .context = context[i], .hold = hold[i],                                                                        \
        .target = limit[i] * m->target * (1 + m->hunting * hunt[i]), .compute = upper(sm[i], tensor[i]),               \
        .sm_watts = sm[i] * (efficiency[i] * m->sm),                                                                   \
        .die_watts = ((tensor[i] * m->tensor + memory[i] * m->memory_die) * efficiency[i] +                            \
                      sm[i] * (efficiency[i] * m->sm)) * (1 + m->flicker * hunt[i]),                                   \
        .memory_watts = memory[i] * (efficiency[i] * m->memory),                                                       \
        .traffic_watts = pcie[i] * m->pcie + nvlink[i] * m->nvlink,                                                    \
        .warmth = leak[i] * (die_temperature[i] - m->reference), .clock = clock[i], .sensed = sensed[i],               \
    }
    TOGETHER for (size_t i = 0; i < count; i++) {
        struct card c = LOAD(i);
        float opened = c.clock <= m->idle_clock && c.hold <= 0 ? c.top : c.clock;
        c.clock = c.context > 0 ? opened : m->idle_clock;
        regulate(&c, m, s);
        clock[i] = c.clock, sensed[i] = c.sensed, power[i] = c.power, throughput[i] = c.throughput;
        sm_power[i] = c.sm_power, memory_power[i] = c.memory_power, change[i] = c.change;
    }
    for (int pass = 1; pass < PASSES && call->settles; pass++) {
        int any = 0;
        TOGETHER for (size_t i = 0; i < count; i++)
            any |= far(change[i]);
        if (!any)
            break;
        TOGETHER for (size_t i = 0; i < count; i++) {
            struct card c = LOAD(i);
            regulate(&c, m, s);
            int again = far(change[i]);
            clock[i] = again ? c.clock : clock[i];
            sensed[i] = again ? c.sensed : sensed[i];
            power[i] = again ? c.power : power[i];
            throughput[i] = again ? c.throughput : throughput[i];
            sm_power[i] = again ? c.sm_power : sm_power[i];
            memory_power[i] = again ? c.memory_power : memory_power[i];
            change[i] = again ? c.change : 0;
        }
    }

    TOGETHER for (size_t i = 0; i < count; i++) {
        die_power[i] = power[i] - memory_power[i];
        die[i] = own[i] = 0;
    }
    const float *sources[] = {[SOURCE_SM] = sm_power, [SOURCE_DIE] = die_power, [SOURCE_MEMORY] = memory_power,
                              [SOURCE_BOARD] = power};
    for (int32_t row = 0; row < call->stage_count; row++) {
        const struct stage stage = call->stages[row];
        const float *source = sources[stage.source];
        float *heat = call->columns + (at_heat + (size_t)row) * call->stride + start;
        TOGETHER for (size_t i = 0; i < count; i++) {
            float warmed = heat[i] + (source[i] - heat[i]) * stage.progress;
            heat[i] = warmed;
            die[i] += stage.die * warmed;
            own[i] += stage.memory * warmed;
        }
    }

    int throttles = 0;
    TOGETHER for (size_t i = 0; i < count; i++) {
        die_temperature[i] = inlet[i] + die[i] * resistance[i];
        memory_temperature[i] = inlet[i] + own[i] * resistance[i];
        int below = (lower(highest[i], cap[i]) - clock[i] > 1.5f * m->clock_step) & (context[i] > 0);
        below |= sensed[i] > limit[i] * m->target;
        float held = below ? m->hold : upper(hold[i] - s->seconds, 0);
        hold[i] = held;
        int why = (held > 0 ? POWER_CAP : 0) | (context[i] > 0 ? 0 : IDLE);
        reasons[i] = (uint16_t)why;
        throttles |= (die_temperature[i] >= m->hottest) | (die_temperature[i] >= m->slowdown) | (cap[i] < 1);
    }
    if (throttles)
        TOGETHER for (size_t i = 0; i < count; i++) {
            float hot = die_temperature[i] - m->hottest;
            float moved = hot > 0 ? -hot : hot < -m->hysteresis ? m->hysteresis : 0;
            float limited = lower(upper(cap[i] + moved * s->cooling, m->lowest_cap), 1);
            cap[i] = limited;
            int why = ((hot >= 0) | (limited < 1)) ? SOFTWARE_THERMAL : 0;
            why |= die_temperature[i] >= m->slowdown ? SLOWDOWN : 0;
            reasons[i] |= (uint16_t)why;
        }

    double *energy = COUNTER(energy), *busy_time = COUNTER(busy_time), *memory_bytes = COUNTER(memory_bytes),
           *pcie_bytes = COUNTER(pcie_bytes), *fabric_bytes = COUNTER(fabric_bytes);
    float *busy_seconds = Q(busy_seconds), *memory_seconds = Q(memory_seconds), *tick_energy = Q(tick_energy);
    int seen = 0;
    TOGETHER for (size_t i = 0; i < count; i++) {
        float served = busy[i] * throughput[i], traffic = served * memory[i];
        energy[i] += (double)(power[i] * s->seconds);
        busy_time[i] += (double)(busy[i] * s->seconds);
        memory_bytes[i] += (double)(traffic * s->memory_bytes);
        pcie_bytes[i] += (double)(served * pcie[i] * s->pcie_bytes);
        busy_seconds[i] += busy[i] * s->seconds;
        memory_seconds[i] += traffic * s->seconds;
        tick_energy[i] += power[i] * s->seconds;
        seen |= reasons[i];
    }
    if (call->has_fabric)
        TOGETHER for (size_t i = 0; i < count; i++)
            fabric_bytes[i] += (double)(busy[i] * throughput[i] * nvlink[i] * s->fabric_bytes);
    if (seen & POWER_CAP)
        add_seconds(COUNTER(power_throttle), reasons, count, POWER_CAP, call->seconds);
    if (seen & SOFTWARE_THERMAL)
        add_seconds(COUNTER(thermal_throttle), reasons, count, SOFTWARE_THERMAL, call->seconds);
    if (seen & HARDWARE_THERMAL)
        add_seconds(COUNTER(hardware_throttle), reasons, count, HARDWARE_THERMAL, call->seconds);

    if (call->moves_memory_clock) {
        float *memory_clock = Q(memory_clock);
        TOGETHER for (size_t i = 0; i < count; i++) {
            float traffic = busy[i] * throughput[i] * memory[i];
            float moved = upper(traffic, upper(pcie[i], nvlink[i]) * busy[i]) * 4 + 0.5f * busy[i];
            memory_clock[i] = m->memory_idle + m->memory_range * lower(moved, 1);
        }
    }
    if (call->windows) {
        float *usage = Q(usage), *memory_usage = Q(memory_usage);
        TOGETHER for (size_t i = 0; i < count; i++) {
            usage[i] = lower(busy_seconds[i] * s->window, 100);
            memory_usage[i] = lower(memory_seconds[i] * s->window, 100);
            busy_seconds[i] = memory_seconds[i] = 0;
        }
    }
    if (call->ticks)
        refresh(call, m, s, start, count);
}

static inline __attribute__((always_inline)) void step_all(const struct call *call, size_t start, size_t stop) {
    for (size_t at = start; at < stop; at += TILE)
        step_tile(call, at, stop - at < TILE ? stop - at : TILE);
}

#ifdef __x86_64__
#include <cpuid.h>

/* The same with vectors of eight, which round as those of four do. */
static __attribute__((target("avx2"))) void step_wide(const struct call *call, size_t start, size_t stop) {
    step_all(call, start, stop);
}

static int has_wide(void) {
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (saved & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}
#else
#define has_wide() 0
#define step_wide step_all
#endif

PUBLIC void simgpu_step(const struct call *call, size_t start, size_t stop) {
    if (has_wide())
        step_wide(call, start, stop);
    else
        step_all(call, start, stop);
}
