/* Notes in the log directory about processes that do not train as asked for; the launcher and the report read them. */
#ifndef CASTOR_TRACE_REFUSAL_H
#define CASTOR_TRACE_REFUSAL_H

#include <stdbool.h>

/* Refuses the job for this reason: logs it, once per job, and writes the file `refused` in the log directory. */
void refusal_write(const char *reason);

/* Whether a plugin should train here, must not step aside, and no agent has attached. */
bool refusal_is_due(void);

/* PyTorch was used and the agent was not reached: the run counts as passthrough. Logs it, and leaves a file that the report reads. */
void refusal_of_agent(void);

#endif
