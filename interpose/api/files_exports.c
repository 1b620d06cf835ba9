/* The exported functions about files: thin, over interpose/files. */
#include "castor.h"

#include <errno.h>
#include "base/error.h"
#include "files/overlay.h"

castor_status castor_files_divert(const char *folder) {
    return files_divert(folder);
}

castor_status castor_files_adopt(const char *path, const char *from) {
    if (files_adopt(path, from) == 0)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_SYSTEM,
                     "cannot copy %s, which rank 0 has written, to %s for this rank (errno %d)",
                     from ? from : path, path, errno);
}
