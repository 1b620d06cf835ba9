#include <random>
#include "tests/unit/trace/fixture.h"

namespace {

class TraceRead : public TraceTest {
  protected:
    std::string counters_bytes, segment_bytes;

    void SetUp() override {
        TraceTest::SetUp();
        trace_start(directory.c_str(), 1 << 20, 0);
        trace_name_set(TRACE_CALL, 1, "cudaMalloc");
        trace_plugin_set("gemini");
        for (uint64_t i = 0; i < 700; i++)
            record_call(1, i);
        counters_bytes = content(files(TRACE_COUNTERS_SUFFIX).at(0));
        segment_bytes = content(files(TRACE_SEGMENT_SUFFIX).at(0));
    }
    std::string content(const std::string &name) const {
        std::string bytes;
        FILE *file = fopen(path(name).c_str(), "re");
        char part[65536];
        for (size_t length; file != nullptr && (length = fread(part, 1, sizeof part, file)) > 0;)
            bytes.append(part, length);
        if (file != nullptr)
            fclose(file);
        return bytes;
    }
    void write(const std::string &name, const std::string &bytes) const {
        FILE *file = fopen(path(name).c_str(), "we");
        ASSERT_NE(file, nullptr);
        EXPECT_EQ(fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
        fclose(file);
    }
    template <typename Value> static void put(std::string &bytes, size_t offset, Value value) {
        memcpy(bytes.data() + offset, &value, sizeof value);
    }

    /* The message, "" when the file is fine, "empty" when it was never finished. */
    std::string counters_error(const std::string &bytes, trace_counters *counters = nullptr) const {
        trace_counters own;
        write("case", bytes);
        int fd = open(path("case").c_str(), O_RDONLY | O_CLOEXEC);
        char message[TRACE_READ_MESSAGE_MAX] = "";
        trace_read_status status = trace_read_counters(fd, counters == nullptr ? &own : counters, message);
        close(fd);
        return status == TRACE_READ_BAD ? message : status == TRACE_READ_EMPTY ? "empty" : "";
    }
    std::string segment_error(const std::string &bytes, size_t *records = nullptr) const {
        write("case", bytes);
        int fd = open(path("case").c_str(), O_RDONLY | O_CLOEXEC);
        char message[TRACE_READ_MESSAGE_MAX] = "";
        trace_segment header;
        size_t count = 0;
        trace_read_status status = trace_read_segment(
            fd, &header, [](void *context, const trace_record *) { ++*static_cast<size_t *>(context); },
            &count, message);
        close(fd);
        if (records != nullptr)
            *records = count;
        return status == TRACE_READ_BAD ? message : status == TRACE_READ_EMPTY ? "empty" : "";
    }
    static void expect_contains(const std::string &text, const std::string &part) {
        EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" has no \"" << part << "\"";
    }
};

TEST_F(TraceRead, GoodFilesAreGood) {
    size_t records;
    EXPECT_EQ(counters_error(counters_bytes), "");
    EXPECT_EQ(segment_error(segment_bytes, &records), "");
    EXPECT_EQ(records, 700u);
}

TEST_F(TraceRead, FilesThatWereNeverFinishedAreEmpty) {
    EXPECT_EQ(counters_error(""), "empty");
    EXPECT_EQ(segment_error(""), "empty");
    EXPECT_EQ(segment_error(std::string(65536, '\0')), "empty");
}

TEST_F(TraceRead, TruncatedAtAnyLength) {
    for (size_t length : {1u, 7u, 8u, 11u, 12u, 100u, 255u, 256u, 300u, 20000u}) {
        std::string error = segment_error(segment_bytes.substr(0, length));
        expect_contains(error, "is ");
        expect_contains(counters_error(counters_bytes.substr(0, length)), "is ");
    }
    expect_contains(counters_error(counters_bytes.substr(0, counters_bytes.size() - 1)), "is truncated");
    size_t records;
    expect_contains(segment_error(segment_bytes.substr(0, 256 + 64 * 40 + 63), &records),
                    "is truncated: 40 of its 700 records are there");
    EXPECT_EQ(records, 40u);
}

TEST_F(TraceRead, ForeignFilesAndOtherVersions) {
    expect_contains(counters_error("#!/bin/sh\necho hello, this is a script\n"),
                    "is not a counter file of castor");
    expect_contains(segment_error(counters_bytes), "is not a trace segment of castor");
    std::string future = segment_bytes;
    put<uint32_t>(future, offsetof(trace_segment, version), 7);
    expect_contains(segment_error(future), "has trace version 7, this castor reads version 3");
    future = counters_bytes;
    put<uint32_t>(future, offsetof(trace_counters, version), 7);
    expect_contains(counters_error(future), "use the castor that ran the job");
}

TEST_F(TraceRead, DamagedHeaders) {
    std::string bytes = segment_bytes;
    put<uint64_t>(bytes, offsetof(trace_segment, committed), UINT64_MAX);
    expect_contains(segment_error(bytes), "is damaged: 18446744073709551615 records in a segment for");
    put<uint32_t>(bytes, offsetof(trace_segment, capacity), UINT32_MAX);
    put<uint64_t>(bytes, offsetof(trace_segment, committed), UINT32_MAX);
    expect_contains(segment_error(bytes), "is truncated");
    bytes = segment_bytes;
    put<uint32_t>(bytes, offsetof(trace_segment, record_bytes), 0);
    expect_contains(segment_error(bytes), "is damaged");
    bytes = segment_bytes;
    put<uint32_t>(bytes, 256 + 64 * 3 + offsetof(trace_record, kind), 1000);
    size_t records;
    expect_contains(segment_error(bytes, &records), "is damaged: 1 of its 700 records are of no known kind");
    EXPECT_EQ(records, 699u);
    bytes = counters_bytes;
    put<uint32_t>(bytes, offsetof(trace_counters, gauge_count), UINT32_MAX);
    expect_contains(counters_error(bytes), "is damaged");
    for (uint32_t offset : {(uint32_t)TRACE_NAMES_BYTES, UINT32_MAX, 3u}) {
        bytes = counters_bytes;
        put<uint32_t>(bytes, offsetof(trace_counters, name_offsets) + 4 * trace_slot(TRACE_CALL, 1), offset);
        expect_contains(counters_error(bytes), "is damaged: the name of counter 1 lies outside");
    }
}

TEST_F(TraceRead, TextsAreSafeToPrint) {
    std::string bytes = counters_bytes;
    memcpy(bytes.data() + offsetof(trace_counters, names) + 1, "\x1b[2J\xc2\x9b\xff\x7fo", 9);
    memset(bytes.data() + offsetof(trace_counters, host), 'h', TRACE_HOST_MAX);
    memcpy(bytes.data() + offsetof(trace_counters, plugin), "ge\nm\xc3\xa4ini", 9);
    auto counters = std::make_unique<trace_counters>();
    ASSERT_EQ(counters_error(bytes, counters.get()), "");
    EXPECT_EQ(std::string(trace_read_name(counters.get(), TRACE_CALL, 1)).substr(0, 8), "?[2J????");
    EXPECT_EQ(strlen(counters->host), TRACE_HOST_MAX - 1u);
    EXPECT_STREQ(counters->plugin, "ge?m\xc3\xa4ini");
}

/* The sanitizers say whether a reader trusts what it should not. */
TEST_F(TraceRead, RandomDamageIsNeverFatal) {
    unsigned seed = (unsigned)time(nullptr);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    for (int round = 0; round < 300; round++) {
        std::string bytes = round % 2 == 0 ? segment_bytes : counters_bytes;
        size_t where = round % 4 < 2 ? 300 : bytes.size();
        for (int flips = 1 + (int)(random() % 20); flips > 0; flips--)
            bytes[12 + random() % (where - 12)] = (char)random();
        if (random() % 4 == 0)
            bytes.resize(random() % bytes.size());
        if (round % 2 == 0)
            segment_error(bytes);
        else
            counters_error(bytes);
    }
}

} // namespace
