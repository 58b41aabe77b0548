/* Whether a read of a stream of events needs a look, equal to headrace/gateway/http/plain_events.py. */
#include <string.h>

#include "native.h"

static const char USAGE[] = "\"usage\"";
enum { MAX_DIGITS = 7 }; /* of a chunk's size */

static int digit_of(char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* The size of the chunk that begins at *at, which is moved to its content; 0 where there is none of one to seven digits. */
static Py_ssize_t size_of_chunk(const char **at, const char *end) {
    Py_ssize_t size = 0;
    const char *digits = *at;
    int digit;
    while (*at < end && *at - digits < MAX_DIGITS && (digit = digit_of(**at)) >= 0) {
        size = size * 16 + digit;
        ++*at;
    }
    if (*at == digits || end - *at < 2 || memcmp(*at, "\r\n", 2) != 0) return 0;
    *at += 2;
    return size;
}

static int has_usage(const char *at, const char *end) {
    const Py_ssize_t length = sizeof USAGE - 1;
    while (end - at >= length && (at = memchr(at, '"', (size_t)(end - at - length + 1))) != NULL) {
        if (memcmp(at, USAGE, (size_t)length) == 0) return 1;
        at++;
    }
    return 0;
}

static Py_ssize_t num_blank_lines(const char *at, const char *end) {
    Py_ssize_t num_found = 0;
    while (end - at >= 2 && (at = memchr(at, '\n', (size_t)(end - at - 1))) != NULL) {
        if (at[1] == '\n') {
            num_found++;
            at++;
        }
        at++;
    }
    return num_found;
}

PyDoc_STRVAR(num_plain_events_doc,
             "num_plain_events(data, /)\n--\n\n"
             "How many events are in the bytes `data`, if these are whole chunks of whole events without usage; else 0.");

static PyObject *num_plain_events(PyObject *module, PyObject *data) {
    (void)module;
    if (!PyBytes_Check(data)) return PyErr_Format(PyExc_TypeError, "data is %R; it must be bytes", (PyObject *)Py_TYPE(data));
    const char *at = PyBytes_AS_STRING(data), *end = at + PyBytes_GET_SIZE(data);
    Py_ssize_t num_events = 0;
    while (at < end) {
        Py_ssize_t size = size_of_chunk(&at, end);
        if (size < 2 || end - at - 2 < size || memcmp(at + size - 2, "\n\n\r\n", 4) != 0 || *at == '\n' ||
            has_usage(at, at + size))
            return PyLong_FromLong(0);
        num_events += num_blank_lines(at, at + size);
        at += size + 2;
    }
    return PyLong_FromSsize_t(num_events);
}

static PyMethodDef functions[] = {
    {"num_plain_events", num_plain_events, METH_O, num_plain_events_doc},
    {NULL, NULL, 0, NULL},
};

int headrace_add_events(PyObject *module) { return PyModule_AddFunctions(module, functions); }
