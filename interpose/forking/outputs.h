/* Where a rank other than 0 reads and writes, where castor has not seen to it when it started the process. No malloc. */
#ifndef CASTOR_FORKING_OUTPUTS_H
#define CASTOR_FORKING_OUTPUTS_H

#include <stdbool.h>

/* Standard input is empty. */
bool outputs_take_input(void);
/* Standard output and error go to the rank's files in `directory`. *log_file: the descriptor for log lines, of what standard error was. */
bool outputs_take(int rank, const char *directory, int *log_file);

#endif
