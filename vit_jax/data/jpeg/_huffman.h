/* Huffman decoding in place of libjpeg's, for images of which only a rectangle is wanted.
 *
 * Two thirds of the time that a JPEG takes are Huffman decoding, and all of it above and beside the
 * rectangle must be decoded to know where the rest begins. But there the values do not matter: a
 * table says of the next bits how many whole coefficients lie in them, and all are passed at once.
 *
 * A file that is damaged as far as it is read, or unusual, ends the decoding: see `give_up`.
 */

#ifndef VIT_JAX_HUFFMAN_H
#define VIT_JAX_HUFFMAN_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

/* Where libjpeg keeps the function that is replaced here. jpeglib.h has only the name; the members
 * are those of jpegint.h, which few systems install, and have been these since 1991.
 */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

enum {
    WINDOW = 10,       /* bits that are looked up at once */
    LONGEST_CODE = 16,
    FILLED = 56,       /* bits that are there after a `fill`, */
    COEFFICIENTS = 4,  /* which are enough for so many of a WINDOW each, */
    LEAPS = 2,         /* and for so many of a WINDOW and another 15 bits */
    LAST = DCTSIZE2,   /* one past the last coefficient of a block */
    ENDS = 128,        /* in `leap.run`: the block ends after it */
};

/* The first coefficient in a window: zeros before it, its value, and bits in all.
 *
 * The end of a block is LAST zeros without a value. If the bits of the value are not all in the
 * window, `length` is 0, `run` the length of the code, and `value` its symbol; if the code is not,
 * `run` is 0, too.
 */
struct coefficient {
    int16_t value;
    uint8_t run, length;
};

/* All coefficients whose codes are in a window: how many, zeros included, and bits in all, which
 * those of the last value may make more than the window has.
 */
struct leap {
    uint8_t run, length;
};

struct table {
    JHUFF_TBL source; /* what it was made of */
    struct coefficient first[1 << WINDOW];
    struct leap all[1 << WINDOW];
    uint32_t limit[LONGEST_CODE + 1]; /* past the codes of a length, as numbers of 16 bits */
    int32_t offset[LONGEST_CODE + 1]; /* from a code of a length to the place of its symbol */
};

/* The bits to come, the first one highest. Below `count` of them are zeros, or what `fill` will put
 * there again. `count` is negative once more were taken than the file has.
 */
struct bits {
    uint64_t buffer;
    int count;
    const uint8_t *next, *end;
};

struct scan {
    struct bits bits;
    const struct table *dc[MAX_COMPS_IN_SCAN], *ac[MAX_COMPS_IN_SCAN];
    int previous[MAX_COMPS_IN_SCAN];    /* DC values */
    unsigned until_restart, restarts;
    JDIMENSION column, first, last;     /* in a row of MCUs: the next one, and those wanted */
};

static const uint8_t zigzag[DCTSIZE2] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* Never returns: the caller's handler of errors jumps. */
static void give_up(j_decompress_ptr info)
{
    info->err->error_exit((j_common_ptr)info);
}

/* Bits ---------------------------------------------------------------------------------------- */

/* Reads on where the next eight bytes cannot be taken as they are. */
static void fill_slowly(struct bits *bits)
{
    while (bits->count < FILLED && bits->next < bits->end) {
        const uint64_t byte = *bits->next;
        if (byte == 0xFF) {
            if (bits->end - bits->next < 2 || bits->next[1] != 0)
                return;
            bits->next++; /* 0xFF 0x00 is a byte 0xFF, else it would be a marker */
        }
        bits->next++;
        bits->buffer |= byte << (56 - bits->count);
        bits->count += 8;
    }
}

/* Leaves at least FILLED bits, or all there are before a marker.
 *
 * It reads without asking whether that is needed, which a processor could not guess.
 */
static inline void fill(struct bits *bits)
{
    uint64_t word = UINT64_MAX;
    if (bits->end - bits->next >= 8) {
        word = 0;
        for (int i = 0; i < 8; i++) /* compilers know this as one load */
            word = word << 8 | bits->next[i];
    }
    const uint64_t ones = UINT64_MAX / 255;
    if ((~word - ones) & word & (ones << 7)) { /* there is a byte 0xFF */
        fill_slowly(bits);
        return;
    }
    /* `count` is at least 0: it is negative only before a marker or the end, where `next` stays and
     * `fill_slowly` returns. */
    bits->buffer |= word >> bits->count;
    bits->next += (63 - bits->count) >> 3;
    bits->count |= FILLED; /* what was there and whole bytes come to that */
}

static inline unsigned peek(const struct bits *bits, int count)
{
    return (unsigned)(bits->buffer >> (64 - count));
}

static inline void drop(struct bits *bits, int count)
{
    bits->buffer <<= count;
    bits->count -= count;
}

/* Returns the number that `size` bits stand for (ITU-T T.81, F.2.2.1). */
static inline int extend(unsigned coded, int size)
{
    return (int)coded < 1 << (size - 1) ? (int)coded - (1 << size) + 1 : (int)coded;
}

/* Tables -------------------------------------------------------------------------------------- */

/* The code that a window begins with; `length` is 0 if it is not all in it. */
struct code {
    uint8_t symbol, length;
};

static struct coefficient first_of(struct code code, unsigned window)
{
    const int size = code.symbol & 15, zeros = code.symbol >> 4, whole = code.length + size;
    struct coefficient found = {.value = code.symbol, .run = code.length};
    if (code.length && size == 0) {
        found.value = 0;
        found.run = zeros == 15 ? 16 : LAST;
        found.length = code.length;
    } else if (code.length && whole <= WINDOW) {
        const unsigned coded = window >> (WINDOW - whole) & ((1u << size) - 1);
        found.value = (int16_t)extend(coded, size);
        found.run = (uint8_t)zeros;
        found.length = (uint8_t)whole;
    }
    return found;
}

static struct leap all_of(const struct code *codes, unsigned window)
{
    struct leap leap = {0, 0};
    while (leap.run < LAST && leap.length < WINDOW) {
        /* Zeros move in from the right; a code that takes some of them is refused below. */
        const struct code next = codes[window << leap.length & ((1u << WINDOW) - 1)];
        const int size = next.symbol & 15, zeros = next.symbol >> 4;
        if (!next.length || leap.length + next.length > WINDOW)
            break;
        leap.length += next.length + size;
        leap.run += size ? zeros + 1 : zeros == 15 ? 16 : ENDS;
    }
    return leap;
}

/* Returns the table of a code, from those of this thread: it may be that of the file before. */
static const struct table *prepare(const JHUFF_TBL *source, int number)
{
    static _Thread_local struct table tables[2 * NUM_HUFF_TBLS];
    struct table *table = &tables[number];
    if (!memcmp(table->source.bits, source->bits, sizeof source->bits) &&
        !memcmp(table->source.huffval, source->huffval, sizeof source->huffval))
        return table;
    struct code codes[1 << WINDOW];
    memset(codes, 0, sizeof codes);
    unsigned code = 0;
    int place = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        table->offset[length] = place - (int)code;
        for (int i = 0; i < source->bits[length]; i++, code++, place++) {
            if (place > 255 || code >= 1u << length)
                return NULL;
            if (length > WINDOW)
                continue;
            const struct code one = {source->huffval[place], (uint8_t)length};
            const unsigned begin = code << (WINDOW - length);
            for (unsigned window = begin; window < begin + (1u << (WINDOW - length)); window++)
                codes[window] = one;
        }
        table->limit[length] = code << (LONGEST_CODE - length);
        code <<= 1;
    }
    for (unsigned window = 0; window < 1u << WINDOW; window++)
        table->first[window] = first_of(codes[window], window);
    if (number >= NUM_HUFF_TBLS) /* of AC coefficients */
        for (unsigned window = 0; window < 1u << WINDOW; window++)
            table->all[window] = all_of(codes, window);
    table->source = *source;
    return table;
}

/* Blocks -------------------------------------------------------------------------------------- */

/* Takes the code and returns the symbol of a coefficient that is not whole in the window. */
static unsigned take_symbol(j_decompress_ptr info, const struct table *table, struct bits *bits,
                            struct coefficient begun)
{
    if (begun.run) {
        drop(bits, begun.run);
        return (unsigned)begun.value;
    }
    const unsigned next = peek(bits, LONGEST_CODE);
    for (int length = WINDOW + 1; length <= LONGEST_CODE; length++)
        if (next < table->limit[length]) {
            drop(bits, length);
            const int place = table->offset[length] + (int)(next >> (LONGEST_CODE - length));
            return table->source.huffval[place];
        }
    give_up(info);
    return 0;
}

/* Takes one coefficient, which may be of up to 31 bits; the result is whole. */
static struct coefficient take(j_decompress_ptr info, const struct table *table, struct bits *bits)
{
    struct coefficient next = table->first[peek(bits, WINDOW)];
    if (next.length) {
        drop(bits, next.length);
        return next;
    }
    const unsigned symbol = take_symbol(info, table, bits, next);
    const int size = symbol & 15;
    next.run = (uint8_t)(symbol >> 4);
    if (size == 0) {
        next.run = next.run == 15 ? 16 : LAST;
        next.value = 0;
    } else {
        next.value = (int16_t)extend(peek(bits, size), size);
        drop(bits, size);
    }
    return next;
}

/* Writes the coefficient of place `k` and later; returns the place after it, LAST at the end. */
static inline int put(j_decompress_ptr info, struct coefficient next, int k, JCOEF *block)
{
    k += next.run;
    if (next.value == 0)
        return k;
    if (k >= LAST)
        give_up(info);
    if (block)
        block[zigzag[k]] = next.value;
    return k + 1;
}

static inline void read_block(j_decompress_ptr info, const struct table *table, struct bits *bits,
                              JCOEF *block)
{
    for (int k = 1; k < LAST;) {
        fill(bits);
        for (int i = 0; i < COEFFICIENTS && k < LAST; i++) {
            const struct coefficient next = table->first[peek(bits, WINDOW)];
            if (!next.length) {
                fill(bits);
                k = put(info, take(info, table, bits), k, block);
                break;
            }
            drop(bits, next.length);
            k = put(info, next, k, block);
        }
    }
}

static inline void pass_block(j_decompress_ptr info, const struct table *table, struct bits *bits)
{
    for (int k = 1; k < LAST;) {
        fill(bits);
        for (int i = 0; i < LEAPS && k < LAST; i++) {
            const struct leap leap = table->all[peek(bits, WINDOW)];
            const int ends = leap.run >= ENDS, run = leap.run & (ENDS - 1);
            /* A block that is full has no code for its end: what follows is the next one's. */
            if (!leap.length || k + run + ends > LAST) { /* a long code, or the block ends before */
                fill(bits);
                k = put(info, take(info, table, bits), k, NULL);
                break;
            }
            drop(bits, leap.length);
            k = ends ? LAST : k + run;
        }
    }
}

/* The scan ------------------------------------------------------------------------------------ */

static void restart(j_decompress_ptr info, struct scan *scan)
{
    struct bits *bits = &scan->bits;
    fill(bits);
    /* At most 7 bits fill the last byte before a marker; more are data that no block took. */
    if (bits->count >= 8 || bits->end - bits->next < 2 || bits->next[0] != 0xFF ||
        bits->next[1] != JPEG_RST0 + scan->restarts % 8)
        give_up(info);
    bits->next += 2;
    bits->buffer = 0;
    bits->count = 0;
    memset(scan->previous, 0, sizeof scan->previous);
    scan->until_restart = info->restart_interval;
    scan->restarts++;
}

/* Takes the place of libjpeg's: decodes the next MCU, whose `blocks` are zero, or passes it. */
static boolean decode_mcu(j_decompress_ptr info, JBLOCKROW *blocks)
{
    struct scan *scan = info->client_data;
    if (info->restart_interval) {
        if (scan->until_restart == 0)
            restart(info, scan);
        scan->until_restart--;
    }
    const JDIMENSION column = scan->column;
    /* Without `blocks` jpeg_skip_scanlines passes a row. */
    const int wanted = blocks && column >= scan->first && column <= scan->last;
    scan->column = column + 1 < info->MCUs_per_row ? column + 1 : 0;
    struct bits bits = scan->bits; /* in registers */
    for (int number = 0; number < info->blocks_in_MCU; number++) {
        const int component = info->MCU_membership[number];
        fill(&bits);
        /* Of a DC code only the value counts: a step of 0 reads like the end of a block. */
        const struct coefficient step = take(info, scan->dc[component], &bits);
        /* Unsigned: damaged files may add up past the largest int, which is undefined. */
        const int value = (int)((unsigned)scan->previous[component] + (unsigned)step.value);
        scan->previous[component] = value;
        if (wanted) {
            (*blocks[number])[0] = (JCOEF)value;
            read_block(info, scan->ac[component], &bits, *blocks[number]);
        } else {
            pass_block(info, scan->ac[component], &bits);
        }
        if (bits.count < 0)
            give_up(info);
    }
    scan->bits = bits;
    return TRUE;
}

/* Takes over after jpeg_start_decompress and jpeg_crop_scanline, if that is worth it.
 *
 * The rectangle's columns of pixels are `first` to `first` + `columns` - 1. `scan` must live as
 * long as `info`, whose client_data it becomes.
 */
static void take_over(j_decompress_ptr info, struct scan *scan, JDIMENSION first,
                      JDIMENSION columns)
{
    if (info->comps_in_scan < 2)
        return; /* gray files are few, and small */
    memset(scan, 0, sizeof *scan);
    for (int component = 0; component < info->comps_in_scan; component++) {
        const jpeg_component_info *about = info->cur_comp_info[component];
        const int dc = about->dc_tbl_no, ac = about->ac_tbl_no;
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS ||
            !info->dc_huff_tbl_ptrs[dc] || !info->ac_huff_tbl_ptrs[ac])
            return;
        scan->dc[component] = prepare(info->dc_huff_tbl_ptrs[dc], dc);
        scan->ac[component] = prepare(info->ac_huff_tbl_ptrs[ac], NUM_HUFF_TBLS + ac);
        if (!scan->dc[component] || !scan->ac[component])
            return;
    }
    const JDIMENSION width = (JDIMENSION)info->max_h_samp_factor * DCTSIZE;
    scan->first = first / width;
    scan->last = (first + columns - 1) / width;
    scan->until_restart = info->restart_interval;
    /* The source is memory, so these are the rest of the file and no more will come. */
    scan->bits.next = info->src->next_input_byte;
    scan->bits.end = scan->bits.next + info->src->bytes_in_buffer;
    info->client_data = scan;
    info->entropy->decode_mcu = decode_mcu;
}

#endif
