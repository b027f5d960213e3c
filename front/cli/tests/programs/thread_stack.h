/* Where the stack of this thread lies. */
#ifndef THREAD_STACK_H
#define THREAD_STACK_H

#include "check.h"

#include <pthread.h>

static void find_stack(char **low, char **end)
{
    pthread_attr_t attributes;
    void *start;
    size_t length;
    MUST(pthread_getattr_np(pthread_self(), &attributes) == 0);
    MUST(pthread_attr_getstack(&attributes, &start, &length) == 0);
    MUST(pthread_attr_destroy(&attributes) == 0);
    *low = start, *end = *low + length;
}

#endif
