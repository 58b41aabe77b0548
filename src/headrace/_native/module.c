/* The module `headrace._native._compiled`: the table of its owners, and nothing else. */
#include "native.h"

static int (*const owners[])(PyObject *) = {
    headrace_add_chain,
    headrace_add_events,
    headrace_add_rendezvous,
};

static int fill(PyObject *module) {
    for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++)
        if (owners[i](module) < 0) return -1;
    return PyModule_AddIntConstant(module, "VERSION", HEADRACE_NATIVE_VERSION);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace._native._compiled",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModuleDef_Init(&definition); }
