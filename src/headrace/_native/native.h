/* The owners of what is compiled. Each is one C file, and adds its functions to the module. */
#ifndef HEADRACE_NATIVE_H
#define HEADRACE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Raised whenever a function changes its arguments or its meaning: `headrace._native` takes no other. */
#define HEADRACE_NATIVE_VERSION 2

/* Each returns 0, or -1 with an exception set. */
int headrace_add_chain(PyObject *module);      /* chain.c, for headrace.gateway.prefix_index.chain */
int headrace_add_events(PyObject *module);     /* events.c, for headrace.gateway.http.plain_events */
int headrace_add_rendezvous(PyObject *module); /* rendezvous.c, for headrace.gateway.routing.rendezvous */

#endif
