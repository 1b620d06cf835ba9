#include "meeting.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/siphash.h"

/* A key from half of the token: in one that `castor run` has drawn, it holds 64 random bits. */
static uint64_t fold(const char *half, size_t length) {
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)half[i]) * 1099511628211ull;
    return h;
}

void meeting_key(const char *token, uint64_t key[2]) {
    size_t length = strlen(token), half = length / 2;
    key[0] = fold(token, half);
    key[1] = fold(token + half, length - half);
}

socklen_t meeting_address(struct sockaddr_un *address, const char *token, const char *what) {
    uint64_t key[2];
    meeting_key(token, key);
    uint64_t a = siphash(key, what, strlen(what));
    uint64_t b = siphash(key, &a, sizeof a);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t n = log_format(address->sun_path + 1, sizeof address->sun_path - 1, "castor-%lx%lx",
                          (unsigned long)a, (unsigned long)b);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static socklen_t ended_address(struct sockaddr_un *address, const char *token, int rank) {
    char what[32];
    log_format(what, sizeof what, "rank %d has ended", rank);
    return meeting_address(address, token, what);
}

bool ended_tell(const char *token, int rank) {
    struct sockaddr_un address;
    socklen_t length = ended_address(&address, token, rank);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0)
        return true; /* it stays open */
    if (fd >= 0)
        close(fd);
    return false;
}

bool ended_told(const char *token, int rank) {
    struct sockaddr_un address;
    socklen_t length = ended_address(&address, token, rank);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool told = connect(fd, (struct sockaddr *)&address, length) == 0;
    close(fd);
    return told;
}
