/* Hashes of prompt blocks, equal to those of headrace/gateway/prefix_index/chain.py, where their theory stands. */
#include <stdint.h>
#include <string.h>

#include "native.h"

#define STEP UINT64_C(0x9E3779B97F4A7C15)
#define STIR UINT64_C(0xD6E8FEB86659FD93)

/* One build for each level of x86-64, of which the loader takes what the CPU has: a multiple of the plain one's speed. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define FOR_EACH_LEVEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_LEVEL
#endif

/* Each block's words times the keys, for blocks of `num_keys` words of two ids. */
FOR_EACH_LEVEL
static void add_up_pairs(const unsigned char *ids, const uint64_t *keys, Py_ssize_t num_keys, Py_ssize_t num_blocks,
                         uint64_t *sums) {
    for (Py_ssize_t block = 0; block < num_blocks; block++, ids += 8 * num_keys) {
        uint64_t sum = 0;
        for (Py_ssize_t i = 0; i < num_keys; i++) {
            uint64_t word;
            memcpy(&word, ids + 8 * i, sizeof word);
            sum += (word ^ word >> 32) * keys[i];
        }
        sums[block] = sum;
    }
}

/* The same for words of one id. */
static void add_up_ids(const unsigned char *ids, const uint64_t *keys, Py_ssize_t num_keys, Py_ssize_t num_blocks,
                       uint64_t *sums) {
    for (Py_ssize_t block = 0; block < num_blocks; block++, ids += 4 * num_keys) {
        uint64_t sum = 0;
        for (Py_ssize_t i = 0; i < num_keys; i++) {
            uint32_t id;
            memcpy(&id, ids + 4 * i, sizeof id);
            sum += id * keys[i];
        }
        sums[block] = sum;
    }
}

static inline uint64_t stirred(uint64_t sum) {
    sum ^= sum >> 32;
    sum *= STIR;
    return sum ^ sum >> 32;
}

typedef struct {
    Py_buffer ids, keys;
    Py_ssize_t block_size, num_keys, num_blocks;
} prompt;

static void release(prompt *of) {
    PyBuffer_Release(&of->ids);
    PyBuffer_Release(&of->keys);
}

/* Take (ids, keys, block_size) from the arguments; 0, or -1 with an exception set. */
static int take_prompt(prompt *of, PyObject *const *arguments) {
    of->block_size = PyLong_AsSsize_t(arguments[2]);
    if (of->block_size == -1 && PyErr_Occurred()) return -1;
    if (PyObject_GetBuffer(arguments[0], &of->ids, PyBUF_SIMPLE) < 0) return -1;
    if (PyObject_GetBuffer(arguments[1], &of->keys, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&of->ids);
        return -1;
    }
    of->num_keys = of->keys.len / 8;
    if (of->ids.itemsize != 4 || of->num_keys < 1 || (uintptr_t)of->keys.buf % 8 ||
        (of->block_size != of->num_keys && of->block_size != 2 * of->num_keys)) {
        PyErr_Format(PyExc_ValueError, "blocks of %zd ids of %zd bytes do not go with %zd keys", of->block_size,
                     of->ids.itemsize, of->num_keys);
        release(of);
        return -1;
    }
    of->num_blocks = of->ids.len / 4 / of->block_size;
    return 0;
}

/* New bytes with a word for each block, its words times the keys; NULL with an exception set if there is no memory. */
static PyObject *add_up(const prompt *of) {
    PyObject *result = PyBytes_FromStringAndSize(NULL, 8 * of->num_blocks);
    if (result == NULL) return NULL;
    uint64_t *sums = (uint64_t *)PyBytes_AS_STRING(result);
    if (of->num_keys == of->block_size)
        add_up_ids(of->ids.buf, of->keys.buf, of->num_keys, of->num_blocks, sums);
    else
        add_up_pairs(of->ids.buf, of->keys.buf, of->num_keys, of->num_blocks, sums);
    return result;
}

PyDoc_STRVAR(own_hashes_doc,
             "own_hashes(ids, keys, block_size, /)\n--\n\n"
             "The own hash of each whole block of the 32-bit `ids`, as 64-bit words in bytes.");

static PyObject *own_hashes(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    prompt of;
    if (num_arguments != 3) return PyErr_Format(PyExc_TypeError, "3 arguments are taken, not %zd", num_arguments);
    if (take_prompt(&of, arguments) < 0) return NULL;
    PyObject *result = add_up(&of);
    if (result != NULL) {
        uint64_t *hashes = (uint64_t *)PyBytes_AS_STRING(result);
        for (Py_ssize_t i = 0; i < of.num_blocks; i++) hashes[i] = stirred(hashes[i]);
    }
    release(&of);
    return result;
}

PyDoc_STRVAR(chain_doc,
             "chain(ids, keys, block_size, start, salt, /)\n--\n\n"
             "The chained hash of each whole block of the 32-bit `ids`, as 64-bit words in bytes; `salt` is added to\n"
             "the own hash of the first.");

static PyObject *chain(PyObject *module, PyObject *const *arguments, Py_ssize_t num_arguments) {
    (void)module;
    prompt of;
    if (num_arguments != 5) return PyErr_Format(PyExc_TypeError, "5 arguments are taken, not %zd", num_arguments);
    uint64_t hash = PyLong_AsUnsignedLongLong(arguments[3]);
    if (hash == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    uint64_t salt = PyLong_AsUnsignedLongLong(arguments[4]);
    if (salt == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    if (take_prompt(&of, arguments) < 0) return NULL;
    PyObject *result = add_up(&of);
    if (result != NULL) {
        uint64_t *hashes = (uint64_t *)PyBytes_AS_STRING(result);
        for (Py_ssize_t i = 0; i < of.num_blocks; i++, salt = 0)
            hashes[i] = hash = hash * STEP + stirred(hashes[i]) + salt;
    }
    release(&of);
    return result;
}

static PyMethodDef functions[] = {
    {"own_hashes", (PyCFunction)(void (*)(void))own_hashes, METH_FASTCALL, own_hashes_doc},
    {"chain", (PyCFunction)(void (*)(void))chain, METH_FASTCALL, chain_doc},
    {NULL, NULL, 0, NULL},
};

int headrace_add_chain(PyObject *module) { return PyModule_AddFunctions(module, functions); }
