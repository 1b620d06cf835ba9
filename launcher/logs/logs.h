/* `castor logs`: the runs whose log directories are in a folder; removes old ones. */
#ifndef CASTOR_LAUNCHER_LOGS_H
#define CASTOR_LAUNCHER_LOGS_H

int logs_main(int argc, char **argv); /* argv[0] is "logs" */

#endif
