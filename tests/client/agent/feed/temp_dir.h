// A directory that is gone when the test ends.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_FEED_TEMP_DIR_H_
#define WARMPATH_TESTS_CLIENT_AGENT_FEED_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace warmpath::testing {

class TempDir {
 public:
  TempDir() : path_(::testing::TempDir() + "warmpath-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_FEED_TEMP_DIR_H_
