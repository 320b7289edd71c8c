// Runs a fuzz target over its corpus, so that every input that once was of interest is tried with
// each change, by any compiler and under every sanitizer.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void RunOne(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

TEST(CorpusTest, EveryInputAndItsTruncations) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(WARMPATH_FUZZ_CORPUS)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    RunOne(bytes);
    for (std::size_t n = 0; n < bytes.size(); n += 1 + n / 64) RunOne(bytes.substr(0, n));
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << "no corpus in " << WARMPATH_FUZZ_CORPUS;
}

}  // namespace
