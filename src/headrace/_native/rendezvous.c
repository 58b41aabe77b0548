/* A key's first choice of equally strong endpoints, equal to that of headrace/gateway/routing/rendezvous.py. */
#include <stdint.h>

#include "native.h"

/* zlib's CRC-32, half a byte at a time: names are short. */
static uint32_t crc32_of(const char *bytes, Py_ssize_t num_bytes) {
    static const uint32_t halves[16] = {
        0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
        0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C, 0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
    };
    uint32_t crc = 0xFFFFFFFF;
    for (Py_ssize_t i = 0; i < num_bytes; i++) {
        crc ^= (unsigned char)bytes[i];
        crc = crc >> 4 ^ halves[crc & 15];
        crc = crc >> 4 ^ halves[crc & 15];
    }
    return ~crc;
}

static uint64_t stirred(uint64_t value) {
    value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
    return value ^ value >> 31;
}

PyDoc_STRVAR(highest_doc,
             "highest(key, names, /)\n--\n\n"
             "The index in the list `names` of the one that draws the highest number by hash with `key`; at least one.");

static PyObject *highest(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    if (num_arguments != 2) return PyErr_Format(PyExc_TypeError, "2 arguments are taken, not %zd", num_arguments);
    uint64_t key = PyLong_AsUnsignedLongLong(arguments[0]);
    if (key == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    PyObject *names = arguments[1];
    if (!PyList_Check(names) || PyList_GET_SIZE(names) == 0)
        return PyErr_Format(PyExc_TypeError, "names is %R; it must be a list with something in it", names);
    uint64_t most = 0;
    Py_ssize_t index = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names); i++) {
        Py_ssize_t num_bytes;
        const char *bytes = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(names, i), &num_bytes);
        if (bytes == NULL) return NULL;
        uint64_t drawn = stirred(key ^ crc32_of(bytes, num_bytes) * UINT64_C(0x9E3779B97F4A7C15));
        if (drawn > most) {
            most = drawn;
            index = i;
        }
    }
    return PyLong_FromSsize_t(index);
}

static PyMethodDef functions[] = {
    {"highest", (PyCFunction)(void (*)(void))highest, METH_FASTCALL, highest_doc},
    {NULL, NULL, 0, NULL},
};

int headrace_add_rendezvous(PyObject *module) { return PyModule_AddFunctions(module, functions); }
