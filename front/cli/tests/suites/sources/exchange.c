/* Two processes that exchange messages of megabytes by MPI, which reads them from each other's
 * memory, and check what they get: neighbours, a window, a sum of all. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 3000000, ROUNDS = 4 };

static double value(int rank, int round, int index)
{
    return (double)rank * 7 + round * 3 + index % 1009;
}

static void check(double found, double expected, const char *what, int index)
{
    if (found == expected)
        return;
    fprintf(stderr, "%s %d: %f instead of %f\n", what, index, found, expected);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int count, char **arguments)
{
    int rank, all;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    int next = (rank + 1) % all, last = (rank + all - 1) % all;
    double *own = malloc(COUNT * sizeof *own), *got = malloc(COUNT * sizeof *got), sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            own[i] = value(rank, round, i);
        MPI_Sendrecv(own, COUNT, MPI_DOUBLE, next, round, got, COUNT, MPI_DOUBLE, last, round,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < COUNT; i++)
            check(got[i], value(last, round, i), "message", i);
    }
    MPI_Win shared;
    MPI_Win_create(own, COUNT * sizeof *own, sizeof *own, MPI_INFO_NULL, MPI_COMM_WORLD, &shared);
    MPI_Win_fence(0, shared);
    MPI_Get(got, COUNT, MPI_DOUBLE, next, 0, COUNT, MPI_DOUBLE, shared);
    MPI_Win_fence(0, shared);
    for (int i = 0; i < COUNT; i++)
        check(got[i], value(next, ROUNDS - 1, i), "window", i);
    MPI_Win_free(&shared);
    MPI_Allreduce(own, got, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        sum += got[i];
    if (rank == 0)
        printf("%.0f\n", sum);
    MPI_Finalize();
    return 0;
}
