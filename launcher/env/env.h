/* `castor env`: prints the environment that makes any later Python process Castor's, for launchers other than `castor run`.
 *
 * It is what `castor run` would set here, without what belongs to one job: the token and the log directory, which the processes make
 * by themselves (job/begin.h), and a rank's place. */
#ifndef CASTOR_LAUNCHER_ENV_ENV_H
#define CASTOR_LAUNCHER_ENV_ENV_H

int env_main(int argc, char **argv); /* argv[0] is "env" */

#endif
