#include "core/index/writer_gate.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace warmpath::index_internal {
namespace {

TEST(WriterGateTest, TheFirstIsAloneAndWhoComesMeanwhileSharesWithTheNext) {
  WriterGate gate;
  EXPECT_EQ(WriterGate::Pass(&gate).mode(), Writing::kAlone);
  EXPECT_EQ(WriterGate::Pass(&gate).mode(), Writing::kAlone) << "again, when the gate is empty";

  std::optional<WriterGate::Pass> first(std::in_place, &gate);
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  std::thread second([&] {
    const WriterGate::Pass pass(&gate);
    EXPECT_EQ(pass.mode(), Writing::kShared);
    inside = true;
    while (!leave) std::this_thread::yield();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(inside) << "not while another is alone";
  first.reset();
  while (!inside) std::this_thread::yield();
  {
    const WriterGate::Pass third(&gate);  // does not wait for the second
    EXPECT_EQ(third.mode(), Writing::kShared);
  }
  leave = true;
  second.join();
  EXPECT_EQ(WriterGate::Pass(&gate).mode(), Writing::kAlone);
}

// Who is alone may use plain memory: under ThreadSanitizer this test is a proof of that.
TEST(WriterGateTest, NobodyIsInsideWithOneThatIsAlone) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20'000;
  WriterGate gate;
  std::uint64_t plain = 0;  // changed by those alone, read by those that share
  std::atomic<int> sharing{0};
  std::atomic<std::uint64_t> alone{0};
  std::atomic<std::uint64_t> read{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const WriterGate::Pass pass(&gate);
        if (pass.mode() == Writing::kAlone) {
          EXPECT_EQ(sharing.load(), 0);
          ++plain;
          EXPECT_EQ(plain, ++alone);
        } else {
          ++sharing;
          read += plain;
          EXPECT_EQ(plain, alone.load()) << "nobody is alone now";
          --sharing;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(plain, alone.load());
  EXPECT_GT(plain, 0u);
}

}  // namespace
}  // namespace warmpath::index_internal
