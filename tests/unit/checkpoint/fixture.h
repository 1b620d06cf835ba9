/* A checkpoint of two shards and an index in a folder of its own, as the tests write and check it. */
#ifndef CASTOR_TESTS_CHECKPOINT_FIXTURE_H
#define CASTOR_TESTS_CHECKPOINT_FIXTURE_H

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

extern "C" {
#include "checkpoint/hold.h"
#include "checkpoint/pending.h"
#include "checkpoint/save_queue.h"
#include "checkpoint/verify.h"
#include "checkpoint/checksum.h"
#include "base/error.h"
#include "events/held.h"
}

namespace checkpoint {

inline std::string read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

inline std::set<std::string> names(const std::string &folder) {
    std::set<std::string> found;
    DIR *dir = opendir(folder.c_str());
    for (struct dirent *entry; dir && (entry = readdir(dir)) != nullptr;)
        if (entry->d_name[0] != '.' || entry->d_name[1] == 'c')
            found.insert(entry->d_name);
    if (dir)
        closedir(dir);
    return found;
}

inline std::string hex(uint64_t value) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return text;
}

class Folder {
  public:
    explicit Folder(bool in_memory = false) {
        char disk[] = "/tmp/castor-checkpoint-XXXXXX", memory[] = "/dev/shm/castor-checkpoint-XXXXXX";
        path = mkdtemp(in_memory && access("/dev/shm", W_OK) == 0 ? memory : disk);
    }
    ~Folder() {
        for (const std::string &name : names(path))
            unlink((path + "/" + name).c_str());
        rmdir(path.c_str());
    }
    std::string operator/(const std::string &name) const { return path + "/" + name; }
    std::string path;
};

/* The bytes of shard `number` of save `version`. */
inline std::string bytes_of(int version, int number, size_t bytes) {
    std::string made(bytes, 0);
    for (size_t i = 0; i < bytes; i++)
        made[i] = (char)(i * 31 + i / 251 * 7 + (size_t)(version * 101 + number * 13));
    return made;
}

/* Shards get names of their own in each save; the index has a checksum of itself and names them with theirs; those of the save
 * before are removed. */
inline job *job_of(const Folder &folder, int version, const std::string shards[2]) {
    job *made;
    uint32_t number[3];
    if (job_new(&made) != CASTOR_OK)
        return nullptr;
    castor_status status = CASTOR_OK;
    const std::string own = "save " + std::to_string(version) + " ", index = own + "################\n";
    for (int i = 0; i < 2 && !status; i++) {
        std::string name = "shard" + std::to_string(i) + "." + std::to_string(version);
        if (!(status = job_file_add(made, (folder / name).c_str(), &number[i])))
            status = job_memory_add(made, shards[i].data(), shards[i].size());
    }
    if (!status)
        status = job_file_add(made, (folder / "index").c_str(), &number[2]);
    if (!status)
        status = job_bytes_add(made, index.data(), index.size());
    if (!status)
        status = job_sum_add(made, "", 0, own.size());
    for (int i = 0; i < 2 && !status; i++) {
        std::string line = "shard" + std::to_string(i) + "." + std::to_string(version) + " ";
        if (!(status = job_bytes_add(made, line.data(), line.size())) &&
            !(status = job_digits_add(made, number[i])))
            status = job_bytes_add(made, "\n", 1);
    }
    for (int i = 0; i < 2 && version > 1 && !status; i++)
        status = job_remove_add(
            made, (folder / ("shard" + std::to_string(i) + "." + std::to_string(version - 1))).c_str());
    if (status) {
        job_drop(made);
        return nullptr;
    }
    return made;
}

/* In the background; *partial: how others see its end. */
inline castor_status start(job *j, job_partial *partial) {
    return queue_start(j, nullptr, partial);
}
inline castor_status start(job *j) {
    job_partial partial;
    return start(j, &partial);
}

/* The version that the index names, if all that it names is there, whole; else 0, with the reason. */
inline int loads(const Folder &folder, std::string *why) {
    std::istringstream index(read(folder / "index"));
    std::string word, name, sum;
    int version = 0, count = 0;
    uint64_t own = 0;
    failure unread;
    index >> word >> version >> sum;
    verify_checksum((folder / "index").c_str(), (uint64_t)index.tellg() + 1, "", 0, &own, &unread);
    if (hex(own) != sum) {
        *why = "the index has not its own checksum";
        return 0;
    }
    for (; index >> name >> sum; count++) {
        uint64_t found;
        failure failed;
        if (!verify_checksum((folder / name).c_str(), 0, "", 0, &found, &failed)) {
            *why = "no " + name;
            return 0;
        }
        if (hex(found) != sum) {
            *why = name + " has the checksum " + hex(found) + ", the index says " + sum;
            return 0;
        }
    }
    *why = "the index has " + std::to_string(count) + " lines";
    return count == 2 ? version : 0;
}

} // namespace checkpoint

#endif
