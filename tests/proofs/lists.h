/* lists.h - layout.h whose lists are arrays of this program, so that each access is checked against
 * them */
#pragma once

#include "../../zero_plugin/machine/base.h"
#include "proof.h"

enum { LISTED = 8 };
static void *proof_calloc(size_t n, size_t size);
#define calloc     proof_calloc
#define free(list) ((void)(list))
#ifdef __CPROVER
#define memset(to, of, n)                                                                          \
    ((void)(to)) /* all is 0 when a proof begins, and each builds one layout */
#endif
#include "../../zero_plugin/core/layout.h"
#undef calloc
#undef free
#undef memset
static zp_unit listed_units[LISTED];
static zp_member listed_members[LISTED];
static zp_member *listed_by_tensor[LISTED];
static void *proof_calloc(size_t n, size_t size) {
    PROVE(n <= LISTED, "a list is as long as this proof says");
    void *list = size == sizeof(zp_unit)     ? (void *)listed_units
                 : size == sizeof(zp_member) ? (void *)listed_members
                                             : (void *)listed_by_tensor;
#ifndef __CPROVER
    memset(list, 0, n * size);
#endif
    return list;
}
