/* What the ranks of `--nproc` keep of files (docs/files.md): a folder of the log directory, which ends with the job. */
#include "run.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/log.h"
#include "launcher/job/runs.h"

void run_files_path(const run_directory *directory, char *out, size_t out_size) {
    log_format(out, out_size, "%s/" JOB_FILES_NAME, directory->path);
}

void run_files_tell_full(const char *path) {
    enum { ROOM_BYTES_MIN = 1 << 20 };
    struct statvfs disk;
    if (statvfs(path, &disk) == 0 && disk.f_bavail * disk.f_frsize < ROOM_BYTES_MIN)
        LOG_E("no room is left in %s, which holds the ranks' own copies of the files that they change: "
              "--log-dir names a "
              "folder on another disk",
              path);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info;
    (void)type;
    (void)place;
    remove(path);
    return 0;
}

static int open_folder(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)place;
    if ((type == FTW_D || type == FTW_DNR) && (info->st_mode & 0700) != 0700)
        chmod(path, 0700);
    return 0;
}

void run_files_remove(const char *path) {
    enum { FOLDERS_OPEN = 32 };
    if (rmdir(path) == 0 || errno == ENOENT)
        return;
    nftw(path, remove_entry, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS);
    if (access(path, F_OK) != 0)
        return;
    /* Folders that the script has closed for its owner too. */
    nftw(path, open_folder, FOLDERS_OPEN, FTW_PHYS);
    nftw(path, remove_entry, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS);
    if (access(path, F_OK) == 0)
        LOG_W("%s, which held the ranks' own copies of files, cannot be removed", path);
}
