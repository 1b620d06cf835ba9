/* `castor rehearse`: `castor run` on simulated devices, and what that says of memory and collectives. */
#ifndef CASTOR_LAUNCHER_REHEARSE_H
#define CASTOR_LAUNCHER_REHEARSE_H

int rehearse_main(int argc, char **argv); /* argv[0] is "rehearse" */

#endif
