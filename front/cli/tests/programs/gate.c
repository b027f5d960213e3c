/* System calls whose pointers lie in paged memory that is swapped out: results, error numbers and
 * contents are the same as with ordinary memory.   gate      in a writable directory
 *
 * gate_frame.h: how calls are compared. gate_files.h, gate_sockets.h, gate_system.h: calls that
 * succeed. gate_errors.h: bad pointers. gate_signals.h: signals, threads and coroutines.
 */
#define _GNU_SOURCE
#include "gate_signals.h"

int main(void)
{
    char directory[] = "gate.XXXXXX";
    MUST(mkdtemp(directory) && chdir(directory) == 0);
    frame_begin();
    files_begin();
    run_group("files", FILES);
    run_group("sockets", SOCKETS);
    run_group("system", SYSTEM);
    run_group("errors", ERRORS);
    signals_and_threads();
    frame_end();
    files_end();
    MUST(chdir("..") == 0 && rmdir(directory) == 0);
    return 0;
}
