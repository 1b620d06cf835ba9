#include <gtest/gtest.h>
#include <string>

extern "C" {
#include "base/error.h"
#include "job/options.h"
#include "job/torch_version.h"
}

namespace {

void use_plugin(const char *name) {
    std::string entry = std::string("CASTOR_PLUGIN=") + name;
    char message[256], *block[] = {entry.data(), nullptr};
    ASSERT_EQ(options_load(block, message, sizeof message), CASTOR_OK) << message;
}

TEST(TorchVersion, OldOnesAreRefusedUnderAPluginWithAnEngine) {
    use_plugin("gemini");
    for (const char *version : {"2.9.1", "2.4.1+cu121", "1.13.1", "2.9.0a0+git12", "0.4.0", "2.0"}) {
        EXPECT_EQ(torch_version_check(version), CASTOR_ERR_ARGUMENT) << version;
        EXPECT_NE(
            std::string(error_text()).find(std::string("torch ") + version + " is too old for plugin gemini"),
            std::string::npos)
            << error_text();
    }
    for (const char *version : {"2.10.0", "2.10", "2.11.0+cu130", "2.100.0", "3.0.0", "10.1"})
        EXPECT_EQ(torch_version_check(version), CASTOR_OK) << version;
    for (const char *unreadable : {"", "2", "2.", "nightly", "two.nine"})
        EXPECT_EQ(torch_version_check(unreadable), CASTOR_OK) << unreadable;
}

TEST(TorchVersion, NoneIsRefusedWithoutAnEngine) {
    use_plugin("none");
    EXPECT_EQ(torch_version_check("1.13.1"), CASTOR_OK);
}

TEST(TorchVersion, IsReadFromVersionPy) {
    char version[32] = "";
    EXPECT_TRUE(torch_version_read("from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n"
                                   "__version__ = '2.4.1+cu121'\ncuda = '12.1'\n",
                                   version, sizeof version));
    EXPECT_STREQ(version, "2.4.1+cu121");
    EXPECT_TRUE(torch_version_read("__version__: str = \"2.9.1\"", version, sizeof version));
    EXPECT_STREQ(version, "2.9.1");
    for (const char *text : {"", "version = '2.4.1'\n", "__version__ = 2\n", "__version__ = '2.4.1\n'",
                             "__version__ =\n'2.4.1'\n", "__version__ = ''\n",
                             "__version__ = '0123456789012345678901234567890123456789'\n"})
        EXPECT_FALSE(torch_version_read(text, version, sizeof version)) << text;
}

} // namespace
