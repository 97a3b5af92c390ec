/* Part of a JPEG: decodes a rectangle without the work that the rest of the image would take.
 *
 * libjpeg-turbo can leave out rows (jpeg_skip_scanlines: nothing but Huffman decoding), columns
 * (jpeg_crop_scanline: no inverse DCT, no upsampling, no colors) and all that lies below. The
 * pixels are those of a whole decoding, bit for bit, and every file that is in any way unusual is
 * left to the caller's other decoder: both functions say so, with None, and never raise for it.
 *
 * The limited API of Python 3.11, so that one binary serves every later version.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include "_huffman.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or newer is needed: older ones upsample differently beside a crop"
#endif

typedef unsigned char byte;

enum { COLORS = 3 };

/* The header ---------------------------------------------------------------------------------- */

struct header {
    long height, width;
    int components;
    size_t scan; /* where the data of the only scan begin */
};

static unsigned two(const byte *data, int little)
{
    return little ? data[0] | data[1] << 8 : data[0] << 8 | data[1];
}

static unsigned long four(const byte *data, int little)
{
    unsigned long low = two(data + (little ? 0 : 2), little);
    return low | (unsigned long)two(data + (little ? 2 : 0), little) << 16;
}

/* Returns whether an APP1 segment says nothing about orientation, or that the image is upright. */
static int is_upright(const byte *segment, size_t length)
{
    const size_t start = 6; /* after "Exif\0\0" */
    if (length < 4 || memcmp(segment, "Exif", 4) != 0)
        return 1;
    if (length < start)
        return 0;
    const byte *tiff = segment + start;
    size_t size = length - start;
    if (size < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 0;
    const int little = tiff[0] == 'I';
    size_t at = four(tiff + 4, little);
    if (at > size || size - at < 2)
        return 0;
    unsigned entries = two(tiff + at, little);
    at += 2;
    if ((size - at) / 12 < entries)
        return 0;
    for (; entries > 0; entries--, at += 12)
        if (two(tiff + at, little) == 0x0112 &&
            (two(tiff + at + 2, little) != 3 || two(tiff + at + 8, little) != 1))
            return 0;
    return 1;
}

/* Reads the segments up to the scan (ITU-T T.81, B.2); returns 0 for what is not plain.
 *
 * Plain is: sequential, Huffman-coded, 8 bits, gray or three colors in one scan, upright, and with
 * the marker that ends an image. Without that marker a file may have been cut off anywhere, which
 * would not be noticed above the cut.
 */
static int read_header(const byte *data, size_t size, struct header *header)
{
    size_t at = 2;
    header->components = 0;
    if (size < 4 || data[0] != 0xFF || data[1] != 0xD8)
        return 0;
    for (;;) {
        while (at + 1 < size && data[at] == 0xFF && data[at + 1] == 0xFF)
            at++; /* fill bytes */
        if (size - at < 4 || data[at] != 0xFF)
            return 0;
        const byte marker = data[at + 1];
        const size_t length = two(data + at + 2, 0);
        const byte *segment = data + at + 4;
        if (marker < 0xC0 || (marker >= 0xD0 && marker <= 0xD9) || length < 2 ||
            length > size - at - 2)
            return 0;
        if (marker == 0xC0 || marker == 0xC1) {
            if (header->components || length < 8 || segment[0] != 8)
                return 0;
            header->height = (long)two(segment + 1, 0);
            header->width = (long)two(segment + 3, 0);
            header->components = segment[5];
            if ((header->components != 1 && header->components != COLORS) ||
                !header->height || !header->width)
                return 0;
        } else if (marker > 0xC1 && marker < 0xD0 && marker != 0xC4) {
            return 0; /* progressive, lossless, arithmetic-coded */
        } else if (marker == 0xDA) {
            header->scan = at + 2 + length;
            if (!header->components || length < 3 || segment[0] != header->components)
                return 0;
            break;
        } else if (marker == 0xE1 && !is_upright(segment, length - 2)) {
            return 0;
        }
        at += 2 + length;
    }
    /* From the end, as other bytes may follow. Inside a scan there are only markers of restarts. */
    for (size_t end = size; end >= header->scan + 2; end--)
        if (data[end - 2] == 0xFF && data[end - 1] == 0xD9)
            return 1;
    return 0;
}

/* The pixels ---------------------------------------------------------------------------------- */

struct failure {
    struct jpeg_error_mgr manager; /* first: libjpeg gives back a pointer to it */
    jmp_buf place;
};

static void fail(j_common_ptr info)
{
    longjmp(((struct failure *)info->err)->place, 1);
}

static void count_only(j_common_ptr info, int level)
{
    if (level < 0)
        info->err->num_warnings++;
}

struct rectangle {
    JDIMENSION top, left, height, width;
};

/* Upsampling looks at neighbors, and acts differently at the edges of what is decoded and where
 * that is very narrow: so more is decoded than is wanted.
 */
enum { MARGIN = 4, NARROWEST = 64, MOST_ROWS = 8 };

enum outcome { DONE, GIVEN_UP, NO_ROOM };

/* Writes the rows of a rectangle, which must lie in the image, as RGB without gaps.
 *
 * There are more columns than wanted: `columns` of them from `first` on. Copying the wanted ones out
 * of them would cost a twentieth of the whole. GIVEN_UP is for a file that is damaged as far as it
 * was read, or is not as its header says. All that libjpeg allocates belongs to `info`, which is
 * destroyed on every way out.
 */
static enum outcome decode(const byte *data, size_t size, const struct header *header,
                           struct rectangle wanted, byte *pixels, size_t room,
                           JDIMENSION *first, JDIMENSION *columns)
{
    struct jpeg_decompress_struct info;
    struct failure failure;
    info.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    failure.manager.emit_message = count_only;
    if (setjmp(failure.place)) {
        jpeg_destroy_decompress(&info);
        return GIVEN_UP;
    }
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, data, size);
    jpeg_read_header(&info, TRUE);
    info.out_color_space = JCS_RGB;
    enum outcome outcome = GIVEN_UP;
    if ((long)info.image_height != header->height || (long)info.image_width != header->width ||
        info.num_components != header->components || info.progressive_mode ||
        jpeg_has_multiple_scans(&info))
        goto end;
    jpeg_start_decompress(&info);
    if (info.output_components != COLORS)
        goto end;

    JDIMENSION left = wanted.left > MARGIN ? wanted.left - MARGIN : 0;
    JDIMENSION right = wanted.left + wanted.width + MARGIN;
    if (right < left + NARROWEST)
        right = left + NARROWEST;
    if (right > info.image_width)
        right = info.image_width;
    if (right - left < NARROWEST)
        left = right > NARROWEST ? right - NARROWEST : 0;
    *first = left;
    *columns = right - left;
    /* This moves `first` to the left, to where a block begins, and widens `columns` by as much. */
    if (*columns < info.image_width)
        jpeg_crop_scanline(&info, first, columns);
    struct scan scan;
    take_over(&info, &scan, *first, *columns);
    if (*first > wanted.left || *first + *columns < wanted.left + wanted.width)
        goto end;
    if (room / COLORS / *columns < wanted.height) {
        outcome = NO_ROOM;
        goto end;
    }

    const JDIMENSION above = wanted.top > MARGIN ? wanted.top - MARGIN : 0;
    if (above && jpeg_skip_scanlines(&info, above) != above)
        goto end;
    const JDIMENSION below = wanted.top + wanted.height;
    const size_t stride = (size_t)*columns * COLORS;
    while (info.output_scanline < below) {
        JSAMPROW rows[MOST_ROWS];
        for (JDIMENSION row = 0; row < MOST_ROWS; row++) {
            /* Rows of the margin go where the first wanted one will be. */
            const JDIMENSION at = info.output_scanline + row;
            rows[row] = pixels + (at > wanted.top ? at - wanted.top : 0) * stride;
        }
        const JDIMENSION most = below - info.output_scanline;
        if (!jpeg_read_scanlines(&info, rows, most < MOST_ROWS ? most : MOST_ROWS))
            goto end;
    }
    /* Of damage libjpeg only warns, and makes up the pixels. */
    if (info.err->num_warnings == 0)
        outcome = DONE;

end:
    /* Not jpeg_finish_decompress, for which rows left unread are an error. */
    jpeg_destroy_decompress(&info);
    return outcome;
}

/* Python -------------------------------------------------------------------------------------- */

/* Not Py_RETURN_NONE: headers of Python 3.12 and 3.13 take None for immortal, which it is not in
 * 3.11. A binary built with them would lose a reference at every call there, until Python ends. */
static PyObject *none(void)
{
    return Py_NewRef(Py_None);
}

static PyObject *python_size(PyObject *module, PyObject *argument)
{
    (void)module;
    struct header header;
    Py_buffer file;
    if (PyObject_GetBuffer(argument, &file, PyBUF_SIMPLE) < 0)
        return NULL;
    const int plain = read_header(file.buf, (size_t)file.len, &header);
    PyBuffer_Release(&file);
    if (!plain)
        return none();
    return Py_BuildValue("(ll)", header.height, header.width);
}

static PyObject *python_decode(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer file, pixels;
    long top, left, height, width;
    if (!PyArg_ParseTuple(arguments, "y*w*llll", &file, &pixels, &top, &left, &height, &width))
        return NULL;
    struct header header;
    enum outcome outcome = GIVEN_UP;
    JDIMENSION first = 0, columns = 0;
    const char *mistake = NULL;
    if (!read_header(file.buf, (size_t)file.len, &header)) {
        /* for the other decoder */
    } else if (top < 0 || left < 0 || height < 1 || width < 1 || height > header.height ||
               width > header.width || top > header.height - height ||
               left > header.width - width) {
        mistake = "the rectangle is not in the image";
    } else {
        const struct rectangle wanted = {(JDIMENSION)top, (JDIMENSION)left, (JDIMENSION)height,
                                         (JDIMENSION)width};
        Py_BEGIN_ALLOW_THREADS
        outcome = decode(file.buf, (size_t)file.len, &header, wanted, pixels.buf,
                         (size_t)pixels.len, &first, &columns);
        Py_END_ALLOW_THREADS
        if (outcome == NO_ROOM)
            mistake = "the buffer is smaller than the rectangle and what is decoded beside it";
    }
    PyBuffer_Release(&file);
    PyBuffer_Release(&pixels);
    if (mistake) {
        PyErr_SetString(PyExc_ValueError, mistake);
        return NULL;
    }
    if (outcome != DONE)
        return none();
    return Py_BuildValue("(kk)", (unsigned long)first, (unsigned long)columns);
}

static PyMethodDef functions[] = {
    {"size", python_size, METH_O,
     "size(file)\n\nReturns (height, width) of a JPEG that `decode` can read, else None."},
    {"decode", python_decode, METH_VARARGS,
     "decode(file, pixels, top, left, height, width)\n\n"
     "Writes the rows of a rectangle, RGB, into a buffer; returns which column they begin with and\n"
     "how many they have, or None where it cannot."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_jpeg",
    .m_doc = "Decodes parts of JPEG files with libjpeg-turbo.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__jpeg(void);

PyMODINIT_FUNC PyInit__jpeg(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "turbo", LIBJPEG_TURBO_VERSION_NUMBER) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
